"""Where spans and metrics of a worker go. Without settings: nowhere.

* `AFFIDAVIT_PROMETHEUS=127.0.0.1:9464`: metrics are served at `/metrics`. Needs nothing installed.
* `AFFIDAVIT_OTEL=true`: spans, and metrics unless Prometheus has them, go out by OTLP over gRPC to where
  OpenTelemetry's own variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, …). Needs the `otel`
  extra.

The product counts on Temporal's meter, in workflows and in activities, so its metrics and the SDK's own leave by the
same exporter, the one of the SDK's core. Its buffer for other exporters is not used: what drains it in
`temporalio.contrib.opentelemetry` (1.35.0) knows instruments and attributes by `id()` without keeping them alive, and
mixes up those of short-lived workflows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.util.re import parse_env_headers
from temporalio.common import MetricMeter
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    OpenTelemetryConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.worker import Interceptor, WorkflowInterceptorClassInput

from activities.telemetry import root_ids
from affidavit.metrics import METRICS
from affidavit.version import PRODUCT, VERSION
from workers.settings import SettingsError, WorkerSettings
from workflows.metrics import LIVE_METER

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

CORE_LOGGER: Final = "temporalio.core"
DEFAULT_ENDPOINT: Final = "http://localhost:4317"
DEFAULT_INTERVAL_MS: Final = 60_000

_BUCKETS: Final = {metric.name: metric.buckets for metric in METRICS if metric.buckets}


class LiveMeter(Interceptor):
    """Lets validators of a worker's workflows count on a meter (`workflows.metrics` says why)."""

    def __init__(self, meter: MetricMeter) -> None:
        self._meter = meter

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:
        """Intercepts nothing."""
        input.unsafe_extern_functions[LIVE_METER] = lambda: self._meter


@asynccontextmanager
async def telemetry(settings: WorkerSettings) -> AsyncIterator[Runtime]:
    """Set up what the settings ask for, as the process' default runtime, for the length of a block.

    Clients and workers of the block must be connected within it.

    Raises:
        SettingsError: the `otel` extra is not installed, or an address cannot be used.
    """
    async with AsyncExitStack() as stack:
        if settings.otel:
            await stack.enter_async_context(_exported_spans())
        runtime = _runtime(settings)
        Runtime.set_default(runtime, error_if_already_set=False)
        yield runtime


def prometheus(address: str) -> PrometheusConfig:
    """Core's endpoint with the names that Prometheus users expect."""
    return PrometheusConfig(
        bind_address=address,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides=_BUCKETS,
    )


def otlp(environment: Mapping[str, str] = os.environ) -> OpenTelemetryConfig:
    """Core's OTLP exporter, told by the variables that OpenTelemetry's own exporters read."""
    prefix = "OTEL_EXPORTER_OTLP"
    url = environment.get(f"{prefix}_METRICS_ENDPOINT") or environment.get(f"{prefix}_ENDPOINT") or DEFAULT_ENDPOINT
    headers = environment.get(f"{prefix}_METRICS_HEADERS") or environment.get(f"{prefix}_HEADERS") or ""
    try:
        interval = timedelta(milliseconds=int(environment.get("OTEL_METRIC_EXPORT_INTERVAL") or DEFAULT_INTERVAL_MS))
    except ValueError:
        raise SettingsError("OTEL_METRIC_EXPORT_INTERVAL is no number of milliseconds") from None
    return OpenTelemetryConfig(
        url=url if "://" in url else f"http://{url}",
        headers=parse_env_headers(headers, liberal=True),
        metric_periodicity=interval,
        durations_as_seconds=True,
        histogram_bucket_overrides=_BUCKETS,
    )


def _runtime(settings: WorkerSettings) -> Runtime:
    forwarded = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(logger=logging.getLogger(CORE_LOGGER)),
    )
    metrics: PrometheusConfig | OpenTelemetryConfig | None = None
    if settings.prometheus is not None:
        metrics = prometheus(settings.prometheus)
    elif settings.otel:
        metrics = otlp()
    tags = {"service_name": os.environ.get("OTEL_SERVICE_NAME", PRODUCT)}
    config = TelemetryConfig(logging=forwarded, metrics=metrics, global_tags=tags, attach_service_name=False)
    try:
        return Runtime(telemetry=config)
    except (RuntimeError, ValueError) as error:
        name = "AFFIDAVIT_OTEL" if settings.prometheus is None else "AFFIDAVIT_PROMETHEUS"
        raise SettingsError(f"{name}: {error}") from None


def tracer_provider(processor: SpanProcessor) -> TracerProvider:
    """A provider whose root spans get the ids that the stages of a session refer to. Needs the `otel` extra."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class SessionIds(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            ids = root_ids.get()
            return super().generate_trace_id() if ids is None else ids[0]

        def generate_span_id(self) -> int:
            ids = root_ids.get()
            return super().generate_span_id() if ids is None else ids[1]

    name = os.environ.get("OTEL_SERVICE_NAME", PRODUCT)
    resource = Resource.create({"service.name": name, "service.version": VERSION})
    provider = TracerProvider(resource=resource, id_generator=SessionIds())
    provider.add_span_processor(processor)
    return provider


@asynccontextmanager
async def _exported_spans() -> AsyncIterator[None]:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise SettingsError(f"AFFIDAVIT_OTEL needs the otel extra (affidavit[otel]): no {error.name}") from None
    provider = tracer_provider(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        await asyncio.to_thread(provider.shutdown)
