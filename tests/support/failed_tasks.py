"""Watching for failed workflow tasks: Temporal retries them for ever, so a test would pass over one unseen."""

from __future__ import annotations

import logging
from typing import Final

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

CORE_LOGGER: Final = "temporalio.core"
_SIGNS: Final = ("Failed activation", "Failing workflow task", "Unhandled", "Unfinished", "unfinished", "eviction job")


class FailedTasks(logging.Handler):
    """Collects what Temporal's loggers say of workflow tasks that failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(sign in message for sign in _SIGNS):
            self.seen.append(f"{record.name}: {message}")


def forward_core_logs() -> None:
    """Bring the Rust core's warnings, non-determinism among them, to the logger `temporalio.core`."""
    logging_config = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(logger=logging.getLogger(CORE_LOGGER)),
    )
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logging_config)))
