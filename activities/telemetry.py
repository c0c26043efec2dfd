"""One span, and one log line, for each attempt of a stage: here, because activities are never replayed.

The spans of a session form one tree although no context travels with it: trace id and root span id are digests of the
generation, which every stage knows. So steps of any client, runs and workers all hang below the same root, and the
history carries no trace headers. The root itself is made when the outcome is sealed, over the session's whole time.

This needs nothing but opentelemetry-api; who installs a provider, exports (`workers.telemetry`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from affidavit import contract, metrics
from affidavit.activity_api import Claims, OpenRequest, OutcomeRequest
from affidavit.evidence.text import printable

logger = logging.getLogger("affidavit.stages")

TRACER: Final = "affidavit"
ROOT: Final = "session"
FREQUENT: Final = frozenset({contract.ACTIVITY_EMBED, contract.ACTIVITY_PUBLISH})
"""Stages whose log lines are for debugging: the journal's say the same."""

root_ids: ContextVar[tuple[int, int] | None] = ContextVar("root_ids", default=None)
"""Trace id and span id that the next span must get; read by the id generator of `workers.telemetry`."""

StartedAt = Callable[[str, str], Awaitable[datetime | None]]
"""When a generation of a session was started; None if nobody knows any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stage works: which life of which session, and which of its events (-1 where there are none)."""

    session_id: str
    generation: str
    first: int = -1
    last: int = -1

    @classmethod
    def of(cls, workflow_id: str, arguments: Sequence[Any]) -> Place:
        """By an activity's arguments; the generation is empty where it is not to be had."""
        request = arguments[0] if arguments else None
        if isinstance(request, RawValue):  # embedding says it beside its request
            request = arguments[-1]
        session_id = getattr(request, "session_id", workflow_id)
        generation = str(getattr(request, "generation", ""))
        if isinstance(request, OpenRequest):
            return cls(session_id, generation, request.entry.sequence, request.entry.sequence)
        if isinstance(request, Claims):
            return cls(session_id, generation, 0, request.count - 1)
        if isinstance(request, OutcomeRequest):
            return cls(session_id, generation, 0, request.outcome.event_count - 1)
        entries = getattr(request, "entries", None)
        if entries:
            return cls(session_id, generation, entries[0].sequence, entries[-1].sequence)
        return cls(session_id, generation, getattr(request, "first", -1), getattr(request, "last", -1))

    def ids(self) -> tuple[int, int]:
        """Trace id and root span id of the session."""
        digest = hashlib.sha256(b"affidavit trace\0" + self.generation.encode("utf-8", "replace")).digest()
        # All-zero ids are invalid; a digest never is.
        return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")

    def attributes(self) -> dict[str, str | int]:
        """For a span."""
        found: dict[str, str | int] = {
            "affidavit.session.id": self.session_id,
            "affidavit.session.generation": self.generation,
        }
        if self.first >= 0:
            found |= {"affidavit.sequence.first": self.first, "affidavit.sequence.last": self.last}
        return found


class StageTelemetry(Interceptor):
    """For a worker's activities."""

    def __init__(self, started_at: StartedAt | None = None, tracers: trace.TracerProvider | None = None) -> None:
        """`started_at` gives the root span its beginning; without it there is no root span. `tracers` instead of the
        process' own provider."""
        self._started_at = started_at
        self._tracer = trace.get_tracer(TRACER, tracer_provider=tracers)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self._started_at, self._tracer)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, started_at: StartedAt | None, tracer: trace.Tracer) -> None:
        super().__init__(next)
        self._started_at = started_at
        self._tracer = tracer

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        stage, place = info.activity_type, Place.of(info.workflow_id or "", input.args)
        started = datetime.now(UTC)
        attributes = {**place.attributes(), "affidavit.attempt": info.attempt}
        with self._tracer.start_as_current_span(
            f"affidavit.{stage}",
            context=_below_root(place),
            attributes=attributes,
            record_exception=False,  # a message may quote what nobody meant to export; the type is told below
            set_status_on_exception=False,
        ) as span:
            try:
                result = await super().execute_activity(input)
            except BaseException as error:
                _failed(span, stage, error)
                raise
            done = _done(span, place, result)
            recording = span.is_recording()
        duration_ms = round((datetime.now(UTC) - started).total_seconds() * 1000)
        _log(stage, done, info.attempt, duration_ms)
        if stage == contract.ACTIVITY_OUTCOME and recording:
            await self._root(input.args[0], place)
        return result

    async def _root(self, request: OutcomeRequest, place: Place) -> None:
        if self._started_at is None:
            return
        began = await self._started_at(place.session_id, place.generation)
        if began is None:
            return
        token = root_ids.set(place.ids())
        try:
            span = self._tracer.start_span(
                ROOT,
                context=trace.set_span_in_context(trace.INVALID_SPAN),
                start_time=int(began.timestamp() * 1_000_000_000),
                attributes={
                    **place.attributes(),
                    "affidavit.mode": request.outcome.mode,
                    "affidavit.status": request.outcome.status,
                },
            )
        finally:
            root_ids.reset(token)
        if span.get_span_context().span_id != place.ids()[1]:
            return  # another provider's ids: never ended, so never exported as a stray
        if request.outcome.status in ("quarantined", "abandoned"):
            span.set_status(Status(StatusCode.ERROR, request.outcome.status))
        span.end()


def _below_root(place: Place) -> Any:
    if not place.generation:
        return None
    trace_id, span_id = place.ids()
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return trace.set_span_in_context(NonRecordingSpan(context))


def _done(span: Span, place: Place, result: Any) -> Place:
    """Where the stage really was: a publish may have done a part of its range."""
    last = getattr(result, "last", None)
    if isinstance(last, int) and last != place.last:
        span.set_attribute("affidavit.sequence.last", last)
        return Place(place.session_id, place.generation, place.first, last)
    return place


def _failed(span: Span, stage: str, error: BaseException) -> None:
    type_ = error.type or "ApplicationError" if isinstance(error, ApplicationError) else type(error).__name__
    span.set_status(Status(StatusCode.ERROR, type_))
    span.set_attribute("error.type", type_)
    failures = metrics.FAILURES
    counter = activity.metric_meter().create_counter(failures.name, failures.description)
    counter.add(1, {"stage": stage, "type": type_})


def _log(stage: str, place: Place, attempt: int, duration_ms: int) -> None:
    level = logging.DEBUG if stage in FREQUENT else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, str | int] = {
        "session": printable(place.session_id, 128),
        "generation": printable(place.generation),
        "stage": stage,
        "attempt": attempt,
        "duration_ms": duration_ms,
    }
    events = ""
    if place.first >= 0:
        fields |= {"first": place.first, "last": place.last}
        events = f" of events {place.first}-{place.last}"
    logger.log(level, "%s%s done for %s", stage, events, fields["session"], extra={"fields": fields})
