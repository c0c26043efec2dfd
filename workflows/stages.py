"""The stages of a session as activity calls: one place for queues, time limits and retry (design.md 2).

Every stage but `embed` retries for ever, because a transient failure never poisons (E1): the view shows it as
stalled meanwhile. An error that no retry mends is raised by the activity as non-retryable. `embed` is a stage where the
embedder is not the built-in one, and for big responses (`workflows.embedding`).

None is a local activity. Where a query is answered while one runs, the SDK's core (temporalio 1.35) tells the session
of its end in the next task, but tells a replay of it in the task before, ahead of what came between: commands then come
in another order than history has them, and no worker can go on with the session.
"""

from __future__ import annotations

from datetime import timedelta
from types import NoneType
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit.activity_api import (
        Caller,
        EventRange,
        JournalRequest,
        JournalResult,
        LifecycleRequest,
        OpenRequest,
        OpenResult,
        OutcomeRequest,
        PromoteRequest,
        PromoteResult,
        SealRequest,
        SealResult,
        TrajectoryRequest,
        TrajectoryResult,
    )
    from affidavit.assessment import EMBED_ATTEMPTS, EmbedResult
    from affidavit.converter import raw_json
    from affidavit.events_api import CHECK_ATTEMPTS, EventFaults
    from affidavit.offloading import Unavailable
    from affidavit.publishing_api import PublishRequest, PublishResult
    from affidavit.waking_api import (
        ACTIVITY_DELIVER,
        ACTIVITY_LOCATE,
        DeliverRequest,
        DeliverResult,
        LocateRequest,
        LocateResult,
    )

T = TypeVar("T")

_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
)
# A session moves again within 20 s of a kill (H6): what a dead worker held comes back after these limits.
_LONG_LIMIT = timedelta(minutes=5)
_HEARTBEAT = timedelta(seconds=10)
_WAKE_LIMIT = timedelta(seconds=15)
_SHORT_LIMIT = timedelta(seconds=10)
# A run cannot be handed on while a batch is looked at, so that ends, also where a store that hangs has all the slots.
_GIVEN_UP = timedelta(minutes=10)
_SOON = timedelta(milliseconds=50)


async def embed(request: bytes, events: EventRange) -> EmbedResult | None:
    """Assessments for a batch that will be these events; None when the embedding was given up (D5)."""
    try:
        result: EmbedResult = await workflow.execute_activity(
            contract.ACTIVITY_EMBED,
            args=[raw_json(request), events],
            result_type=EmbedResult,
            start_to_close_timeout=_SHORT_LIMIT,
            schedule_to_close_timeout=_GIVEN_UP,
            # The activity itself counts the attempts that an embedder has; the others went with their worker.
            retry_policy=RetryPolicy(maximum_attempts=2 * EMBED_ATTEMPTS, initial_interval=_SOON),
            summary=f"responses of events {events.first}-{events.last}",
        )
    except ActivityError as error:
        workflow.logger.warning("embedding failed, not assessed: %s", reason_of(error))
        return None
    return _opened(contract.ACTIVITY_EMBED, result)


async def check_events(schemas: RawValue, record: RawValue) -> dict[int, str] | None:
    """What is wrong with custom events, by their places in a record; None when nobody could tell."""
    try:
        result: EventFaults = await workflow.execute_activity(
            contract.ACTIVITY_CHECK_EVENTS,
            args=[schemas, record],
            result_type=EventFaults,
            start_to_close_timeout=_SHORT_LIMIT,
            schedule_to_close_timeout=_GIVEN_UP,
            retry_policy=RetryPolicy(maximum_attempts=CHECK_ATTEMPTS, initial_interval=_SOON),
            summary="custom events",
        )
    except ActivityError as error:
        workflow.logger.warning("events could not be checked: %s", reason_of(error))
        return None
    return _opened(contract.ACTIVITY_CHECK_EVENTS, result).faults


C = TypeVar("C", bound=Caller)


def _called(request: C) -> C:
    """The request as this run makes it; one that was handed on was first made by an earlier run."""
    request.run_id = workflow.info().original_execution_run_id
    return request


async def open_session(request: OpenRequest) -> OpenResult:
    """Write the metadata and the opening event."""
    return await _write(contract.ACTIVITY_OPEN, OpenResult, "metadata and opening event", _called(request))


async def journal(request: JournalRequest, steps: bytes) -> JournalResult:
    """Write one batch as a segment; `steps` is a record whose steps the entries point into."""
    first, last = request.entries[0].sequence, request.entries[-1].sequence
    return await _write(
        contract.ACTIVITY_JOURNAL, JournalResult, f"events {first}-{last}", _called(request), raw_json(steps)
    )


async def write_lifecycle(request: LifecycleRequest) -> None:
    """Write the events that are numbered after the chain."""
    names = ", ".join(entry.action for entry in request.entries)
    await _write(contract.ACTIVITY_LIFECYCLE, NoneType, names, _called(request))


async def write_outcome(request: OutcomeRequest) -> None:
    """Seal the outcome in the store."""
    await _write(contract.ACTIVITY_OUTCOME, NoneType, request.outcome.status, _called(request))


async def publish(request: PublishRequest) -> PublishResult:
    """Publish a range of events by reference; a long one in part, as the result's `last` tells."""
    kind = "lifecycle" if request.lifecycle else "events"
    result: PublishResult = await workflow.execute_activity(
        contract.ACTIVITY_PUBLISH,
        request,
        result_type=PublishResult,
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=_HEARTBEAT,
        retry_policy=_RETRY,
        summary=f"{kind} {request.first}-{request.last}",
    )
    return _opened(contract.ACTIVITY_PUBLISH, result)


async def locate(request: LocateRequest) -> LocateResult:
    """Find the lives that wakes go to."""
    result: LocateResult = await workflow.execute_activity(
        ACTIVITY_LOCATE,
        request,
        result_type=LocateResult,
        start_to_close_timeout=_WAKE_LIMIT,
        retry_policy=_RETRY,
        summary=f"{len(request.targets)} targets",
    )
    return _opened(ACTIVITY_LOCATE, result)


async def deliver(request: DeliverRequest) -> DeliverResult:
    """Send wakes to their targets, those that go now."""
    result: DeliverResult = await workflow.execute_activity(
        ACTIVITY_DELIVER,
        request,
        result_type=DeliverResult,
        start_to_close_timeout=_WAKE_LIMIT,
        retry_policy=_RETRY,
        summary=f"{len(request.wakes)} wakes",
    )
    return _opened(ACTIVITY_DELIVER, result)


async def seal(request: SealRequest) -> SealResult:
    """Have the signer read the journal, check it and sign."""
    events = f"{request.count} events"
    return await _write(contract.ACTIVITY_SEAL, SealResult, events, _called(request), signing=True)


async def write_trajectory(request: TrajectoryRequest) -> TrajectoryResult:
    """Write the trajectory of an unsigned session, with its provenance."""
    return await _write(contract.ACTIVITY_TRAJECTORY, TrajectoryResult, f"{request.count} events", _called(request))


async def promote(request: PromoteRequest) -> PromoteResult:
    """Have the signer attest a trajectory that lies in the store."""
    return await _write(contract.ACTIVITY_PROMOTE, PromoteResult, "trajectory", request, signing=True)


async def _write(name: str, result_type: type[T], summary: str, *args: Any, signing: bool = False) -> T:
    """Run an activity that writes to the store, on the queue of the signers if it needs their key."""
    queue = workflow.info().task_queue
    result: T = await workflow.execute_activity(
        name,
        args=args,
        result_type=result_type,
        task_queue=contract.signing_queue(queue) if signing else queue,
        start_to_close_timeout=_LONG_LIMIT,
        heartbeat_timeout=_HEARTBEAT,
        retry_policy=_RETRY,
        summary=summary,
    )
    return _opened(name, result)


def _opened(name: str, result: T) -> T:
    # An activity's result that this worker cannot open suspends the session, as a bug would: the work was done, and
    # a worker with the key goes on with it.
    if isinstance(result, Unavailable):
        raise RuntimeError(f"the result of activity {name} cannot be opened{result.why}")
    return result


def reason_of(error: ActivityError) -> str:
    """What an activity that gave up has said, with its type."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.type}: {cause.message}"
    return str(cause)
