"""Calls to Temporal: which failures pass and for how long they are sat out, and what the others are called here."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract
from affidavit.answers import readable, reason_of
from affidavit.contract import SessionOutcome
from affidavit.converter import raw_json
from affidavit.errors import AffidavitUnavailable, SessionFailed, SessionNotFound, SessionRefused, SessionStalled
from affidavit.evidence.text import printable
from affidavit.terminal import failed_outcome

RETRY_TIMEOUT_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.1
ASK_AGAIN_LIMIT_S: Final = 25.0
LONGEST_PAUSE_S: Final = 5.0
SHORT_CALL: Final = timedelta(seconds=10)
QUERY_CALL: Final = timedelta(seconds=3)
"""Less than those who wait for an answer give it, so that a query that was lost is asked again for them."""
LONGEST_QUERY_CALL: Final = timedelta(seconds=12)
LONG_CALL: Final = timedelta(seconds=30)
"""Temporal answers every wait within 20 s; the SDK then waits on."""
ANSWERED_S: Final = 45.0
"""What lasted longer was answered in between: the SDK tries for 10 s at most, the last time for 30."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_PASSING: Final = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.ABORTED,
        # What the transport makes of a connection that breaks in the middle of a call.
        RPCStatusCode.CANCELLED,
        RPCStatusCode.UNKNOWN,
        RPCStatusCode.INTERNAL,
    }
)
_TIMED_OUT: Final = frozenset({RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
_RUN_IS_FULL: Final = (
    "exceeded workflow execution limit for signal events",  # InvalidArgument
    "limit on the total number of distinct updates",  # FailedPrecondition
)
_TASK_WAS_FAILED: Final = "unexpected workflow task failure"
"""FailedPrecondition: the task that had the update was refused, as when a run is handed on while signals come in. It is
asked again; a task that keeps failing is told in other words, and not waited for."""
_NO_NAMESPACE: Final = re.compile(r"Namespace (\S+) is not found")
_RUN_ENDED: Final = "AcceptedUpdateCompletedWorkflow"
_UNPROCESSED: Final = "UnprocessedUpdate"
"""What Temporal says where a task was answered without the update that came with it: the SDK's core does that if a
query has played all else of the task ahead of it."""
_CAPACITY: Final = (
    contract.REFUSED_BUSY,
    contract.REFUSED_ROLLING_OVER,
    contract.REFUSED_QUEUE_FULL,
    contract.REFUSED_SLOTS_FULL,
)


class _Fault(Enum):
    """What a failed call means for the next try."""

    FINAL = "final"
    LATER = "refused for the moment, and nothing was taken"
    FULL = "the run takes no more, the next one will"
    LOST = "nobody knows whether it was taken"
    GONE = "that run has ended"
    INTERRUPTED = "that run has ended, and it may have been taken"


_DOUBTFUL: Final = (_Fault.LOST, _Fault.INTERRUPTED)
_RUN_OVER: Final = (_Fault.GONE, _Fault.INTERRUPTED)


async def persist(call: Callable[[], Awaitable[T]], *, within: float, goes_on: Callable[[], Awaitable[bool]]) -> T:
    """Call until it succeeds, fails for good, or has failed for `within` seconds on end.

    Args:
        call: makes the same request each time, so that it is taken once.
        goes_on: asked when a run has ended: whether there is another one to ask.

    Raises:
        AffidavitUnavailable: a try that may have been taken was followed by nothing but refusals.
    """
    clock = asyncio.get_running_loop().time
    give_up: float | None = None
    pause = FIRST_PAUSE_S
    doubt = False
    while True:
        started = clock()
        try:
            return await call()
        except (TimeoutError, RPCError, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            check_cancelled(error)
            fault = _fault(error, doubt=doubt)
            doubt = doubt or fault in _DOUBTFUL
            if fault is _Fault.FINAL or (fault in _RUN_OVER and not await goes_on()):
                raise
            if give_up is None or clock() - started > ANSWERED_S:
                give_up, pause = clock() + within, FIRST_PAUSE_S
            if clock() >= give_up:
                if doubt and fault is _Fault.LATER:
                    raise AffidavitUnavailable(
                        f"an answer was lost, and now the session refuses: {printable(str(error.__cause__), 160)}"
                    ) from None
                raise
            left = give_up - clock()
        await asyncio.sleep(min(pause * random.uniform(0.5, 1), left))
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _fault(error: Exception, *, doubt: bool) -> _Fault:
    if isinstance(error, WorkflowUpdateFailedError):
        type_ = error.cause.type if isinstance(error.cause, ApplicationError) else None
        if type_ == _RUN_ENDED:
            return _Fault.INTERRUPTED
        # A full queue is the caller's to wait for, but only if it is sure that the steps did not get in before.
        passing = (_UNPROCESSED, *(_CAPACITY if doubt else _CAPACITY[:2]))
        return _Fault.LATER if type_ in passing else _Fault.FINAL
    if not isinstance(error, RPCError):
        return _Fault.LOST
    if any(text in error.message for text in _RUN_IS_FULL):
        return _Fault.FULL
    if error.status is RPCStatusCode.FAILED_PRECONDITION and _TASK_WAS_FAILED in error.message:
        return _Fault.LOST
    if error.status is RPCStatusCode.NOT_FOUND:
        return _Fault.FINAL if _NO_NAMESPACE.match(error.message) else _Fault.GONE
    return _Fault.LOST if error.status in _PASSING else _Fault.FINAL


async def asked(query: Callable[[timedelta], Awaitable[T]], each: timedelta = QUERY_CALL) -> T:
    """A query's answer, asked for again where a worker loses or refuses it: the SDK's core forgets queries that wait
    for a workflow while it is taken up anew, and where one has played the workflow ahead, it begins anew for the next.

    Args:
        query: asks, and waits so long at most.
        each: how long that is at first; a worker may have to replay a long history for an answer.

    Raises:
        WorkflowQueryFailedError, RPCError: it failed for another reason, or like that for long.
    """
    clock = asyncio.get_running_loop().time
    give_up = clock() + ASK_AGAIN_LIMIT_S
    while True:
        try:
            return await query(each)
        except WorkflowQueryFailedError as error:
            if contract.PLAYED_AHEAD not in error.message or clock() > give_up:
                raise
        except RPCError as error:
            check_cancelled(error)
            if error.status not in _TIMED_OUT or clock() > give_up:
                raise
            each = min(2 * each, LONGEST_QUERY_CALL)
        await asyncio.sleep(FIRST_PAUSE_S)


@contextmanager
def heard(start: WithStartWorkflowOperation[Any, Any]) -> Iterator[None]:
    """Listen to the operation's own future: a start that fails tells it too, and asyncio complains if nobody hears."""
    listening = asyncio.create_task(start.workflow_handle())
    listening.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        yield
    finally:
        listening.cancel()


class Line:
    """The way to one session, for as long as it lives, over all its runs.

    A signal cannot say for which life of an id it is meant, but for which run. So it goes to the newest run known,
    and when that has ended, to the next one of the same life: a later life never gets steps of an earlier one.
    """

    def __init__(self, temporal: Client, session_id: str, generation: str | None, retry_timeout: float) -> None:
        """`generation` is the life meant; None for whichever is the newest."""
        self._temporal = temporal
        self._session_id = session_id
        self._generation = generation
        self._run_id = generation
        self._retry_timeout = retry_timeout
        self._answer = f"the answer of session {printable(session_id)}"

    async def signal(self, message: bytes) -> None:
        """Deliver a `record` message.

        Raises:
            SessionNotFound, SessionStalled, AffidavitUnavailable, SessionFailed.
        """

        await self.send(contract.SIGNAL_RECORD, raw_json(message))

    async def send(self, name: str, argument: RawValue) -> None:
        """Deliver a signal of any name; it may arrive twice if an answer was lost.

        Raises:
            SessionNotFound, SessionStalled, AffidavitUnavailable, SessionFailed.
        """

        async def attempt() -> None:
            async with asyncio.timeout(SHORT_CALL.total_seconds()):
                run = self._temporal.get_workflow_handle(self._session_id, run_id=self._run_id)
                await run.signal(name, argument)

        await self._persist(attempt)

    async def update(self, name: str, result_type: type[M], *args: RawValue) -> M:
        """Execute an update, across failures and rollovers, under one id.

        Raises:
            SessionRefused: a refusal for want of room means that no try was taken.
            AnswerUnreadable: it was taken, and what came back cannot be opened here.
            SessionNotFound, SessionStalled, AffidavitUnavailable, SessionFailed.
        """
        update_id = str(uuid.uuid4())

        async def attempt() -> M:
            started = await self._handle().start_update(
                name,
                args=args,
                id=update_id,
                result_type=result_type,
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                rpc_timeout=LONG_CALL,
            )
            answer: M = await started.result(rpc_timeout=LONG_CALL)
            return readable(answer, self._answer)

        return await self._persist(attempt)

    async def query(self, name: str, result_type: type[M], *args: RawValue) -> M:
        """Ask the newest run of this life; needs a worker.

        Raises:
            SessionNotFound: also where the id has begun another life.
            AnswerUnreadable, AffidavitUnavailable, SessionFailed.
        """
        with translated(self._session_id):
            if self._generation is not None and await self._newest() is None:
                raise SessionNotFound(f"this life of session {printable(self._session_id)} has ended")
            run = self._temporal.get_workflow_handle(self._session_id, run_id=self._run_id)
            answer: M = await asked(
                lambda limit: run.query(name, args=args, result_type=result_type, rpc_timeout=limit)
            )
        return readable(answer, self._answer)

    async def newest(self) -> WorkflowExecutionDescription | None:
        """The newest run of this life as Temporal describes it; None if it knows none, or a later life of the id."""

        async def known() -> bool:
            return False

        return await self._persist(self._newest, known)

    async def cancel(self) -> None:
        """Ask for the workflow's cancellation."""
        await self._persist(lambda: self._handle().cancel(rpc_timeout=SHORT_CALL))

    async def result(self) -> SessionOutcome:
        """Wait for the session's end.

        Raises:
            SessionNotFound, SessionFailed, AnswerUnreadable, AffidavitUnavailable.
        """

        async def attempt() -> SessionOutcome:
            outcome = await self._handle(self._run_id).result(rpc_timeout=LONG_CALL)
            return readable(outcome, f"the outcome of session {printable(self._session_id)}")

        async def known() -> bool:
            return await self._newest() is not None

        try:
            return await self._persist(attempt, known)
        except WorkflowFailureError as error:
            with translated(self._session_id):
                return await failed_outcome(self._temporal, self._session_id, self._run_id, error)

    def _handle(self, result_run_id: str | None = None) -> WorkflowHandle[Any, SessionOutcome]:
        return WorkflowHandle(
            self._temporal,
            self._session_id,
            result_run_id=result_run_id,
            first_execution_run_id=self._generation,
            result_type=SessionOutcome,
        )

    async def _persist(
        self, attempt: Callable[[], Awaitable[T]], goes_on: Callable[[], Awaitable[bool]] | None = None
    ) -> T:
        with translated(self._session_id):
            return await persist(attempt, within=self._retry_timeout, goes_on=goes_on or self._running)

    async def _running(self) -> bool:
        try:
            newest = await self._newest()
        except RPCError as error:
            if error.status in _PASSING:
                return True  # to be asked again
            raise
        return newest is not None and newest.status is WorkflowExecutionStatus.RUNNING

    async def _newest(self) -> WorkflowExecutionDescription | None:
        """The newest run of this life, which later calls are aimed at; None if there is none any more."""
        try:
            found = await self._temporal.get_workflow_handle(self._session_id).describe(rpc_timeout=SHORT_CALL)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        if self._generation is not None:
            if found.raw_description.workflow_execution_info.first_run_id != self._generation:
                return None
            self._run_id = found.run_id
        return found


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """Turn Temporal's errors into the client's own; only what nobody foresaw keeps the SDK's trace as its cause."""
    try:
        yield
    except WorkflowQueryFailedError as error:
        if contract.PLAYED_AHEAD in error.message:
            raise AffidavitUnavailable(f"session {printable(subject)} needs a worker that takes it up") from None
        raise SessionRefused(contract.REFUSED_BAD_REQUEST, error.message) from None
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == _RUN_ENDED:
            raise SessionNotFound(f"session {printable(subject)} ended before it answered") from None
        if isinstance(cause, ApplicationError):
            raise SessionRefused(cause.type or "Refused", reason_of(cause)) from None
        raise SessionFailed(f"session {printable(subject)}: {cause}") from error
    except WorkflowAlreadyStartedError:
        raise SessionRefused(contract.REFUSED_ENDED, f"session {printable(subject)} has ended") from None
    except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError) as error:
        check_cancelled(error)
        raise AffidavitUnavailable("the session did not answer in time") from None
    except RPCError as error:
        named = _named(subject, error)
        raise named from error if isinstance(named, SessionFailed) else None


def _named(subject: str, error: RPCError) -> Exception:
    session, message = f"session {printable(subject)}", printable(error.message, 200)
    if any(text in error.message for text in _RUN_IS_FULL):
        return SessionStalled(f"{session} takes nothing more for now, its run has reached a limit: {message}")
    if error.status is RPCStatusCode.NOT_FOUND:
        if missing := _NO_NAMESPACE.match(error.message):
            return AffidavitUnavailable(f"namespace {printable(missing[1])} is not found on the Temporal server")
        return SessionNotFound(f"no running {session}")
    if error.status is RPCStatusCode.FAILED_PRECONDITION:
        return AffidavitUnavailable(f"{session} needs a worker that can run it: {message}")
    if error.status in _PASSING:
        return AffidavitUnavailable(f"the Temporal server does not answer: {message}")
    return SessionFailed(f"{session}: {message}")


def check_cancelled(error: Exception) -> None:
    """Let the cancel of the calling task through; Temporal gives it and a time-out the same name."""
    if isinstance(error, WorkflowUpdateRPCTimeoutOrCancelledError) and isinstance(
        error.__cause__, asyncio.CancelledError
    ):
        raise error.__cause__
