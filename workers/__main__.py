"""`python -m workers`: run a worker until SIGTERM or SIGINT."""

import argparse

from affidavit.exiting import interrupts_end, leave

SETTINGS = """\
The connection is Temporal's own configuration: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TLS, ...

settings, from the environment:
  AFFIDAVIT_TASK_QUEUE            where sessions are polled; the signer polls <it>-signing
  AFFIDAVIT_ROLES                 session,signing: what this process does
  AFFIDAVIT_STORE                 the evidence store of all workers: a directory, or s3://, gs://, az://BUCKET/PREFIX
  AFFIDAVIT_STORE_TIMEOUT_S       seconds that a request to an object store may take
  AFFIDAVIT_STORE_ALLOW_HTTP      true: its endpoint may be without TLS
  AFFIDAVIT_STORE_CA_FILE         authorities to trust beside the system's
  AFFIDAVIT_BUS                   the embedded event log
  AFFIDAVIT_KAFKA_BOOTSTRAP       host:port,...: events go to Kafka instead (AFFIDAVIT_KAFKA_*: docs/kafka.md)
  AFFIDAVIT_JOURNAL_KEY_FILES     key files, colon-separated: the first seals, all of them open
  AFFIDAVIT_SIGNING_SEED_FILE     the seed of `affidavit keygen`
  AFFIDAVIT_JOURNAL_KEY           the same two as hex or base64,
  AFFIDAVIT_SIGNING_SEED            where a platform injects secrets
  AFFIDAVIT_PUBLIC_KEYS           keyring to put beside the evidence
  AFFIDAVIT_GRACE_S               seconds to finish work after SIGTERM
  AFFIDAVIT_THREADS               threads for activities
  AFFIDAVIT_MAX_CACHED_WORKFLOWS  sessions kept in memory
  AFFIDAVIT_CODEC_KEY_FILES       keys of payload encryption, colon-separated: the first encrypts, all of them decrypt
  AFFIDAVIT_CODEC_KEY             one more of them as hex or base64
  AFFIDAVIT_DEPLOYMENT            worker deployment: sessions stay with the build that runs them, and roll over
  AFFIDAVIT_BUILD_ID                to a new one; the product's version if left out
  AFFIDAVIT_LOG_FORMAT            human or json
  AFFIDAVIT_LOG_LEVEL             DEBUG, INFO, WARNING or ERROR
  AFFIDAVIT_PROMETHEUS            address that serves metrics, such as 127.0.0.1:9464
  AFFIDAVIT_OTEL                  true: spans and metrics by OTLP, as OTEL_EXPORTER_OTLP_ENDPOINT and the like say

exit codes: 0 after a signal; 2 a setting that does not fit; 3 work that hangs was left behind; 4 no server or store
"""


def main() -> int:
    """Read the command line, which holds nothing but `--help`, and run."""
    with interrupts_end():
        argparse.ArgumentParser(
            prog="python -m workers",
            description="Run a worker until SIGTERM or SIGINT.",
            epilog=SETTINGS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        ).parse_args()
        from workers import running
    return running.main()


if __name__ == "__main__":
    leave(main())
