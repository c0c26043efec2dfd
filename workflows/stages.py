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
from temporalio.exceptions import ActivityError, ApplicationError

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
    from affidavit.publishing_api import PublishRequest, PublishResult

T = TypeVar("T")

_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
)
# A session moves again within 20 s of a kill (H6): what a dead worker held comes back after these limits.
_LONG_LIMIT = timedelta(minutes=5)
_HEARTBEAT = timedelta(seconds=10)


async def embed(request: bytes) -> EmbedResult | None:
    """Assessments for a batch; None when embedding failed in all three attempts (D5)."""
    try:
        result: EmbedResult = await workflow.execute_local_activity(
            contract.ACTIVITY_EMBED,
            local_json(request),
            result_type=EmbedResult,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=EMBED_ATTEMPTS, initial_interval=timedelta(milliseconds=50)),
        )
    except ActivityError as error:
        workflow.logger.warning("embedding failed, not assessed: %s", error.cause)
        return None
    return result


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
    except ActivityError as error:
        workflow.logger.warning("events could not be checked: %s", error.cause)
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
    except ActivityError as error:
        workflow.logger.warning("events could not be checked: %s", error.cause)
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
    return result


def reason_of(error: ActivityError) -> str:
    """What an activity that gave up has said, with its type."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.type}: {cause.message}"
    return str(cause)
