"""What a session counts, on Temporal's own meter: silent while a history is replayed, exported with the SDK's metrics.

A refusal by a validator leaves no history, and is never met in a replay. But the task that brings the request may
replay the session's past first, and then Temporal's meter would be silent in the validator as well; so a validator
counts on the worker's meter, which comes from outside of the workflow (`workers.telemetry.LiveMeter`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, cast

from temporalio import workflow
from temporalio.common import MetricMeter

from affidavit import contract, metrics
from affidavit.activity_api import Entry
from affidavit.contract import SessionOutcome
from affidavit.metrics import Metric

STALLED_AFTER_MS = 5_000

_STAGES = {
    contract.REFUSED_QUEUE_FULL: "queue",
    contract.REFUSED_SLOTS_FULL: "response_slot",
    contract.REFUSED_BUSY: "busy",
    contract.REFUSED_ROLLING_OVER: "rolling_over",
    contract.REFUSED_CLOSING: "closing",
    contract.REFUSED_INCOMPLETE: "incomplete",
    contract.REFUSED_LOOP: "breaker",
    contract.REFUSED_IDENTITY: "identity",
    contract.REFUSED_BAD_REQUEST: "bad_request",
    contract.REFUSED_BAD_SPEC: "bad_spec",
    contract.REFUSED_MODE: "registration",
    contract.REFUSED_REGISTRATION: "registration",
}


LIVE_METER: Final = "affidavit_live_meter"
"""Name of the function by which a worker gives its meter to workflow code."""


def _meter() -> MetricMeter:
    validating = workflow.unsafe.is_replaying() and not workflow.unsafe.is_replaying_history_events()
    live = workflow.extern_functions().get(LIVE_METER)
    if not validating or live is None:
        return workflow.metric_meter()
    info, meter = workflow.info(), cast(MetricMeter, live())
    return meter.with_additional_attributes(
        {"namespace": info.namespace, "task_queue": info.task_queue, "workflow_type": info.workflow_type}
    )


def add(metric: Metric, value: int = 1, **labels: str) -> None:
    """Add to a counter."""
    if value:
        counter = _meter().create_counter(metric.name, metric.description, metric.unit)
        counter.add(value, dict(labels))


def refused(type_: str) -> None:
    """Count a refusal by the contract's type of it."""
    add(metrics.REFUSED, stage=_STAGES.get(type_, "other"))


class SessionMetrics:
    """Counts of one run of a session."""

    def __init__(self, mode: str, breaker_action: str, repeated: int) -> None:
        """`repeated`: repeats that earlier runs have counted."""
        self._mode = mode
        self._action = breaker_action
        self._repeated = repeated

    def opened(self) -> None:
        """The opening event is on disk."""
        add(metrics.SESSIONS_OPENED, mode=self._mode)

    def journaled(self, entries: Sequence[Entry]) -> None:
        """A batch is on disk."""
        add(metrics.STEPS, sum(entry.step is not None for entry in entries), mode=self._mode)
        add(metrics.REJECTED, sum(entry.action == "message_rejected" for entry in entries), mode=self._mode)
        trips = sum(entry.action == "breaker_tripped" for entry in entries)
        add(metrics.TRIPS, trips, mode=self._mode, action=self._action)

    def cut(self, depth: int, repeated: int) -> None:
        """A batch was cut from a queue of a depth; so many repeats were dropped in this session so far."""
        queue_depth = metrics.QUEUE_DEPTH
        workflow.metric_meter().create_histogram(queue_depth.name, queue_depth.description).record(depth)
        add(metrics.REPEATED, repeated - self._repeated, mode=self._mode)
        self._repeated = repeated

    def stage(self, name: str, duration_ms: int) -> None:
        """A stage has answered."""
        duration = metrics.STAGE_DURATION
        histogram = workflow.metric_meter().create_histogram_timedelta(duration.name, duration.description)
        histogram.record(timedelta(milliseconds=duration_ms), {"stage": name})
        if duration_ms >= STALLED_AFTER_MS:
            add(metrics.STALLS, stage=name)

    def ended(self, outcome: SessionOutcome) -> None:
        """The session has ended."""
        add(metrics.SESSIONS_ENDED, mode=self._mode, status=outcome.status)
        add(metrics.QUARANTINES, int(outcome.status == "quarantined"), mode=self._mode)
        add(metrics.RECEIPTS, int(outcome.receipt_id is not None), kind="session")
