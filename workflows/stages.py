"""The stages of a session as activity calls: one place for queues, time limits and retry (design.md 2).

Every stage but `embed` retries for ever, because a transient failure never poisons (E1): the view shows it as
stalled meanwhile. An error that no retry mends is raised by the activity as non-retryable.
"""

from __future__ import annotations

from datetime import timedelta
from types import NoneType
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit.activity_api import (
        Caller,
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
    from affidavit.converter import local_json, raw_json
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


async def embed(request: bytes, *, generation: str, first: int, last: int) -> EmbedResult | None:
    """Assessments for a batch that will be events `first` to `last`; None when all three attempts failed (D5)."""
    try:
        result: EmbedResult = await workflow.execute_local_activity(
            contract.ACTIVITY_EMBED,
            local_json(request, generation=generation, sequence=f"{first}-{last}"),
            result_type=EmbedResult,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=EMBED_ATTEMPTS, initial_interval=timedelta(milliseconds=50)),
            summary="model responses",
        )
    except FailureError as error:
        workflow.logger.warning("embedding failed, not assessed: %s", _given_up(error))
        return None
    return _opened(contract.ACTIVITY_EMBED, result)


async def check_batch(schemas: RawValue, record: RawValue) -> dict[int, str] | None:
    """What is wrong with custom events, by their places in a record; None when nobody could tell."""
    try:
        result: EventFaults = await workflow.execute_local_activity(
            contract.ACTIVITY_CHECK_EVENTS,
            args=[schemas, record],
            result_type=EventFaults,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=CHECK_ATTEMPTS, initial_interval=timedelta(milliseconds=50)),
        )
    except FailureError as error:
        workflow.logger.warning("events could not be checked: %s", _given_up(error))
        return None
    return result.faults


async def check_submission(schemas: RawValue, record: RawValue) -> dict[int, str] | None:
    """The same for a submission, whose caller waits."""
    try:
        result: EventFaults = await workflow.execute_activity(
            contract.ACTIVITY_CHECK_EVENTS,
            args=[schemas, record],
            result_type=EventFaults,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=CHECK_ATTEMPTS, initial_interval=timedelta(milliseconds=50)),
            summary="custom events",
        )
    except FailureError as error:
        workflow.logger.warning("events could not be checked: %s", _given_up(error))
        return None
    return result.faults


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
    return result


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
    return result


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


def _given_up(error: FailureError) -> BaseException:
    """What an activity failed with after its last attempt.

    A local activity that failed raises what it failed with, as it is; only its time limits come as an `ActivityError`.
    A cancellation is no failure and goes on.
    """
    if is_cancelled_exception(error):
        raise error
    return error.cause or error


def reason_of(error: ActivityError) -> str:
    """What an activity that gave up has said, with its type."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.type}: {cause.message}"
    return str(cause)
