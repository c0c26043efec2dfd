# The worker image: the wheel's package in a virtual environment, the worker packages beside it. One image for both
# roles; AFFIDAVIT_ROLES says which one a container has, and nothing secret is in it.
FROM python:3.11.14-slim-trixie AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/affidavit
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY affidavit ./affidavit
# Every version of what is installed is the one that constraints.txt names.
RUN /opt/affidavit/bin/pip install --constraint constraints.txt ".[worker,s3,kafka]"

FROM python:3.11.14-slim-trixie
ENV PATH=/opt/affidavit/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 affidavit \
    && useradd --uid 10001 --gid affidavit --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin affidavit
COPY --from=build /opt/affidavit /opt/affidavit
COPY activities /app/activities
COPY workflows /app/workflows
COPY workers /app/workers
WORKDIR /var/empty
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=30s --retries=3 \
    CMD ["python", "-P", "-m", "workers.health"]
CMD ["python", "-P", "-m", "workers"]
