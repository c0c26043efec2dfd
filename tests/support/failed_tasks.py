"""Watching for failed workflow tasks: Temporal retries them for ever, so a test would pass over one unseen."""

from __future__ import annotations

import logging
from typing import Final

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from affidavit.contract import PLAYED_AHEAD

CORE_LOGGER: Final = "temporalio.core"
SLOW: Final = "[TMPRL1101]"
"""What the SDK says of a task that had no answer for 2 s. Where many sessions or workers share the cores, a task may
wait that long for its turn; it is tried again, and what it did not do is not in the history. Where the workflow's own
code blocks, tests that forbid every failed task show it."""
_SIGNS: Final = ("Failed activation", "Failing workflow task", "Unhandled", "Unfinished", "unfinished", "eviction job")


class FailedTasks(logging.Handler):
    """Collects what Temporal's loggers say of workflow tasks that failed, but for a query that came first."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(sign in message for sign in _SIGNS) and PLAYED_AHEAD not in message:
            self.seen.append(f"{record.name}: {message}")

    def forget_slow(self) -> None:
        """Leave out those that only waited for their turn."""
        self.seen = [each for each in self.seen if SLOW not in each]


def forward_core_logs() -> None:
    """Bring the Rust core's warnings, non-determinism among them, to the logger `temporalio.core`."""
    logging_config = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(logger=logging.getLogger(CORE_LOGGER)),
    )
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logging_config)))
