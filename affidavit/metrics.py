"""Every metric of the product: name, kind, unit and meaning. Dashboards and alerts are tested against this list.

Names are as Temporal's meter takes them. Prometheus adds `_total` to counters and `_seconds` to durations; Temporal's
meter adds the labels `namespace`, `task_queue` and `workflow_type` to what a session counts. No label names a session:
there are too many of them, and the Web UI finds one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "histogram", "duration"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` are the product's own."""

    name: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()
    unit: str | None = None
    buckets: tuple[float, ...] = ()


SESSIONS_OPENED: Final = Metric("affidavit_sessions_opened", "counter", "sessions whose opening is on disk", ("mode",))
SESSIONS_ENDED: Final = Metric("affidavit_sessions_ended", "counter", "sessions that ended", ("mode", "status"))
STEPS: Final = Metric("affidavit_steps", "counter", "reported steps that were journaled", ("mode",))
REJECTED: Final = Metric("affidavit_messages_rejected", "counter", "messages that could not be read", ("mode",))
REPEATED: Final = Metric("affidavit_steps_repeated", "counter", "repeats of numbered steps, dropped", ("mode",))
REFUSED: Final = Metric("affidavit_refused", "counter", "requests refused, by what refused them", ("stage",))
TRIPS: Final = Metric("affidavit_breaker_trips", "counter", "trips of the loop breaker", ("mode", "action"))
QUARANTINES: Final = Metric("affidavit_quarantines", "counter", "sessions that ended quarantined", ("mode",))
RECEIPTS: Final = Metric("affidavit_receipts", "counter", "receipts that sessions and promotions got", ("kind",))
STALLS: Final = Metric("affidavit_stalls", "counter", "stages that took five seconds or more, once over", ("stage",))
FAILURES: Final = Metric(
    "affidavit_stage_failures", "counter", "attempts of a stage that failed, by type of failure", ("stage", "type")
)
STAGE_DURATION: Final = Metric(
    "affidavit_stage_duration",
    "duration",
    "time from asking for a stage to its answer, retries included",
    ("stage",),
    unit="s",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
QUEUE_DEPTH: Final = Metric(
    "affidavit_queue_depth",
    "histogram",
    "steps waiting in a session when a batch is cut",
    buckets=(0, 1, 4, 16, 64, 256, 512, 768, 1024, 4096),
)

METRICS: Final = (
    SESSIONS_OPENED,
    SESSIONS_ENDED,
    STEPS,
    REJECTED,
    REPEATED,
    REFUSED,
    TRIPS,
    QUARANTINES,
    RECEIPTS,
    STALLS,
    FAILURES,
    STAGE_DURATION,
    QUEUE_DEPTH,
)
