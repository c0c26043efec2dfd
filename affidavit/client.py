"""The client: open a session, report steps, wait for its outcome.

    client = await SessionClient.connect()
    async with client.session(SessionSpec(agent=agent)) as session:
        await session.record({"kind": "tool_call", "call_id": "1", "tool": "search", "allowed": True})
    print(session.outcome.receipt)

Needs the `client` extra (temporalio).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import envconfig
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract
from affidavit.contract import (
    Agent,
    AttachResult,
    BreakerReset,
    CloseAccepted,
    FlushResult,
    IdentityResult,
    SessionOutcome,
    SessionSpec,
    SessionView,
    SubmitResult,
    TerminalState,
    registration_hash,
)
from affidavit.converter import data_converter, encode_json, raw_json
from affidavit.errors import (
    AffidavitUnavailable,
    InvalidStep,
    MessageTooLarge,
    SessionFailed,
    SessionNotFound,
    SessionRefused,
)
from affidavit.evidence.canonical import CanonicalError
from affidavit.evidence.scalars import BadSessionId, check_session_id
from affidavit.evidence.text import printable
from affidavit.ids import new_session_id
from affidavit.steps import STEP
from affidavit.validation import first_error

DEFAULT_ADDRESS = "localhost:7233"
CONNECT_TIMEOUT_S = 5.0
ADMIT_TIMEOUT_S = 5.0
"""How long an open may take before the client says what is missing (issue of the operator, not of the agent)."""

M = TypeVar("M", bound=BaseModel)
Step = Mapping[str, Any]


class SessionClient:
    """A connection to Temporal, seen as a place to open and find sessions.

    Safe to share between tasks of one event loop.
    """

    def __init__(
        self, client: Client, *, task_queue: str = contract.TASK_QUEUE, admit_timeout: float = ADMIT_TIMEOUT_S
    ) -> None:
        """Takes a connected Temporal client whose data converter is `affidavit.converter.data_converter()`.

        Args:
            task_queue: where workers poll for sessions.
            admit_timeout: seconds that an open may take.
        """
        self.temporal = client
        self._task_queue = task_queue
        self._admit_timeout = admit_timeout

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        task_queue: str = contract.TASK_QUEUE,
        admit_timeout: float = ADMIT_TIMEOUT_S,
    ) -> SessionClient:
        """Connect as the environment says (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, TLS, …), or to `address`.

        Raises:
            AffidavitUnavailable: nothing answers there.
        """
        config = envconfig.ClientConfig.load_client_connect_config()
        target = address or config.get("target_host") or DEFAULT_ADDRESS
        config["target_host"] = target
        if namespace is not None:
            config["namespace"] = namespace
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                client = await Client.connect(**config, data_converter=data_converter())
        except (RuntimeError, TimeoutError, RPCError) as error:
            raise AffidavitUnavailable(
                f"no Temporal server answers at {printable(target)}; `affidavit dev` starts one"
            ) from error
        return cls(client, task_queue=task_queue, admit_timeout=admit_timeout)

    async def open(self, spec: SessionSpec | Mapping[str, Any], *, session_id: str | None = None) -> SessionHandle:
        """Open a session, or join the living one of that id if it was opened with an equal spec.

        Args:
            spec: how to open it; a mapping is validated.
            session_id: 1-128 bytes of 0x21-0x7e without `#`; a fresh UUIDv7 if left out.

        Returns:
            A handle, once the opening event is on disk.

        Raises:
            SessionRefused: the id or the spec is bad, the session is bound to another spec, closing, or ended.
            AffidavitUnavailable: no server or no worker answered within `admit_timeout`.
        """
        session_id = _checked_id(session_id)
        checked = _checked_spec(spec)
        argument = raw_json(encode_json(checked.model_dump(mode="json", exclude_none=True)))
        start: WithStartWorkflowOperation[Any, SessionOutcome] = WithStartWorkflowOperation(
            contract.SESSION_WORKFLOW,
            argument,
            id=session_id,
            task_queue=self._task_queue,
            result_type=SessionOutcome,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            static_summary=f"{checked.agent.charter} {checked.agent.version} · {checked.mode}".encode()[:200].decode(
                errors="ignore"
            ),
            static_details=f"charter **{_markdown(checked.agent.charter)}**, instance "
            f"**{_markdown(checked.agent.instance_uid)}**, content {checked.content}",
        )
        with _errors(session_id):
            try:
                with _heard(start):
                    attached: AttachResult = await self.temporal.execute_update_with_start_workflow(
                        contract.UPDATE_ATTACH,
                        argument,
                        start_workflow_operation=start,
                        result_type=AttachResult,
                        rpc_timeout=timedelta(seconds=self._admit_timeout),
                    )
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                _check_cancelled(error)
                raise AffidavitUnavailable(await self._missing()) from error
        return SessionHandle(self, session_id, attached)

    @asynccontextmanager
    async def session(
        self, spec: SessionSpec | Mapping[str, Any], *, session_id: str | None = None
    ) -> AsyncIterator[SessionHandle]:
        """Open a session for the length of a block: closed when it is left, cancelled when it raises."""
        handle = await self.open(spec, session_id=session_id)
        async with handle:
            yield handle

    def handle(self, session_id: str) -> SessionHandle:
        """A handle of a session that exists somewhere; nothing is asked of the server yet.

        Raises:
            SessionRefused: the id is none.
        """
        return SessionHandle(self, _checked_id(session_id), None)

    async def task_queue_polled(self) -> bool:
        """Whether some worker has asked for workflow tasks of the task queue of late."""
        request = DescribeTaskQueueRequest(
            namespace=self.temporal.namespace,
            task_queue=TaskQueue(name=self._task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        with _errors(self._task_queue):
            answer = await self.temporal.workflow_service.describe_task_queue(request)
        return bool(answer.pollers)

    async def _missing(self) -> str:
        """What an open has waited for in vain."""
        seconds = f"{self._admit_timeout:g} s"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                polled = await self.task_queue_polled()
        except (AffidavitUnavailable, TimeoutError):
            return f"the Temporal server did not answer within {seconds}"
        if not polled:
            return f"no worker polls task queue {printable(self._task_queue)}; `python -m workers` starts one"
        return f"no worker opened the session within {seconds}, though one polls {printable(self._task_queue)}"


class SessionHandle:
    """One session. `outcome` is set once `close` or `result` has returned it."""

    def __init__(self, client: SessionClient, session_id: str, attached: AttachResult | None) -> None:
        self.session_id = session_id
        self.attached = attached
        self.outcome: SessionOutcome | None = None
        self._workflow: WorkflowHandle[Any, SessionOutcome] = client.temporal.get_workflow_handle(
            session_id, result_type=SessionOutcome
        )
        # Signals sent side by side overtake each other; one at a time keeps them in the order of the calls.
        self._sending = asyncio.Lock()

    @property
    def generation(self) -> str | None:
        """Which life of the id this handle has opened; None for a handle that only names a session."""
        return self.attached.generation if self.attached else None

    async def record(self, *steps: Step) -> None:
        """Report steps, in order; returns when the server has them. `flush` tells when they are on disk.

        Raises:
            InvalidStep, MessageTooLarge: nothing was sent.
            SessionNotFound: the session is not running.
        """
        messages = list(_messages(steps))
        async with self._sending:
            with _errors(self.session_id):
                for message in messages:
                    await self._workflow.signal(contract.SIGNAL_RECORD, raw_json(message))

    async def submit(self, *steps: Step) -> SubmitResult:
        """Report steps and wait until they are in the journal.

        Raises:
            InvalidStep, MessageTooLarge: nothing was sent.
            SessionRefused: queue full, busy, closing, or the capture is incomplete.
        """
        messages = list(_messages(steps, one=True))
        async with self._sending:
            return await self._update(contract.UPDATE_SUBMIT, SubmitResult, raw_json(messages[0]))

    async def flush(self) -> FlushResult:
        """Wait until everything reported so far is in the journal."""
        async with self._sending:
            return await self._update(contract.UPDATE_FLUSH, FlushResult)

    async def refresh_identity(self, agent: Agent) -> IdentityResult:
        """Renew the lifetime of the agent's credential; the identity triple cannot change.

        Raises:
            SessionRefused: type IdentityConflict; the refusal is an event of the session.
        """
        argument = raw_json(encode_json(agent.model_dump(mode="json", exclude_none=True)))
        result = await self._update(contract.UPDATE_REFRESH_IDENTITY, IdentityResult, argument)
        if result.refused is not None:
            raise SessionRefused(result.refused.type, result.refused.reason)
        return result

    async def reset_breaker(self, *, by: str, reason: str) -> FlushResult:
        """Let a tripped loop breaker close again; who and why becomes an event."""
        request = BreakerReset(by=by, reason=reason)
        argument = raw_json(encode_json(request.model_dump(mode="json")))
        return await self._update(contract.UPDATE_RESET_BREAKER, FlushResult, argument)

    async def close(self) -> SessionOutcome:
        """End the session and wait for its outcome; also of one that is closing or has ended already.

        Raises:
            SessionNotFound: there is no such session.
            SessionFailed: it ended without an outcome.
        """
        try:
            async with self._sending:
                await self._update(contract.UPDATE_CLOSE, CloseAccepted)
        except SessionNotFound:
            # Not running any more, or never was: the result tells which.
            pass
        return await self.result()

    async def cancel(self) -> None:
        """Ask the session to end as cancelled: it drains, seals and stops."""
        with _errors(self.session_id):
            await self._workflow.cancel()

    async def result(self) -> SessionOutcome:
        """Wait for the session's end. A quarantined session has an outcome like any other.

        Raises:
            SessionNotFound, SessionFailed.
        """
        with _errors(self.session_id):
            try:
                self.outcome = await self._workflow.result()
            except WorkflowFailureError as error:
                self.outcome = _failed_outcome(self.session_id, error)
        return self.outcome

    async def receipt(self) -> dict[str, Any]:
        """The signed receipt, once the session has ended.

        Raises:
            SessionFailed: it ended without one.
        """
        outcome = self.outcome or await self.result()
        if outcome.receipt is None:
            raise SessionFailed(f"session {printable(self.session_id)} ended {outcome.status} without a receipt")
        return outcome.receipt

    async def view(self) -> SessionView:
        """What an operator asks: counts, head, breaker, what stalls. Needs a worker."""
        with _errors(self.session_id):
            view: SessionView = await self._workflow.query(contract.QUERY_VIEW, result_type=SessionView)
        return view

    async def terminal_state(self) -> SessionOutcome | None:
        """The outcome if the session has one, without waiting. Needs a worker."""
        with _errors(self.session_id):
            state: TerminalState = await self._workflow.query(contract.QUERY_TERMINAL_STATE, result_type=TerminalState)
        return state.outcome

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
            return
        await self.cancel()
        # A task that is being cancelled itself must not wait for what it has asked for.
        if not issubclass(kind, asyncio.CancelledError):
            await self.result()

    async def _update(self, name: str, result_type: type[M], *args: RawValue) -> M:
        with _errors(self.session_id):
            answer: M = await self._workflow.execute_update(name, args=args, result_type=result_type)
        return answer


# -- what goes out ------------------------------------------------------------------------------------


def _messages(steps: Sequence[Step], *, one: bool = False) -> Iterator[bytes]:
    """`record` messages for the steps: as many in each as a batch takes, so that each fits well."""
    if not steps:
        raise InvalidStep("there is no step to report")
    if one and len(steps) > contract.RECORD_STEPS:
        raise MessageTooLarge(f"{len(steps)} steps in one message, the limit is {contract.RECORD_STEPS}")
    parts = [_encoded(place, step) for place, step in enumerate(steps)]
    group: list[bytes] = []
    size = 0
    for part in parts:
        full = len(group) == contract.BATCH_STEPS or size + len(part) > contract.BATCH_BYTES
        if group and full and not one:
            yield _message(group)
            group, size = [], 0
        group.append(part)
        size += len(part)
    yield _message(group)


def _message(parts: list[bytes]) -> bytes:
    message = b'{"steps":[' + b",".join(parts) + b"]}"
    if len(message) > contract.MESSAGE_BYTES:
        raise MessageTooLarge(f"the message has {len(message)} bytes, the limit is {contract.MESSAGE_BYTES}")
    return message


def _encoded(place: int, step: Step) -> bytes:
    try:
        STEP.validate_python(dict(step))
        return encode_json(step)
    except ValidationError as error:
        raise InvalidStep(f"step {place}: {first_error(error, without=step.get('kind'))}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidStep(f"step {place}: {printable(str(error), 160)}") from None


def _checked_id(session_id: str | None) -> str:
    if session_id is None:
        return new_session_id()
    try:
        return check_session_id(session_id)
    except BadSessionId as error:
        raise SessionRefused(contract.REFUSED_BAD_SPEC, str(error)) from None


def _checked_spec(spec: SessionSpec | Mapping[str, Any]) -> SessionSpec:
    try:
        checked = spec if isinstance(spec, SessionSpec) else SessionSpec.model_validate(dict(spec))
        registration_hash(checked.registration())
    except ValidationError as error:
        reason = first_error(error)
    except CanonicalError as error:
        reason = str(error)
    else:
        return checked
    raise SessionRefused(contract.REFUSED_BAD_SPEC, f"invalid session spec: {reason}")


def _markdown(text: str) -> str:
    return printable(text).replace("*", "∗").replace("<", "‹")


# -- what comes back ----------------------------------------------------------------------------------


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    """Turn Temporal's errors into the client's own."""
    try:
        yield
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError):
            raise SessionRefused(cause.type or "Refused", cause.message) from error
        raise SessionFailed(f"session {printable(subject)}: {cause}") from error
    except WorkflowAlreadyStartedError as error:
        raise SessionRefused(
            contract.REFUSED_ENDED, f"session {printable(subject)} has ended; its id is not used again"
        ) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        _check_cancelled(error)
        raise AffidavitUnavailable("the session did not answer in time") from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise SessionNotFound(f"no running session {printable(subject)}") from error
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            raise AffidavitUnavailable(
                f"session {printable(subject)} needs a worker that can run it: {printable(error.message, 200)}"
            ) from error
        if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            raise AffidavitUnavailable(f"the Temporal server does not answer: {printable(error.message)}") from error
        raise SessionFailed(f"session {printable(subject)}: {printable(error.message, 200)}") from error


def _check_cancelled(error: WorkflowUpdateRPCTimeoutOrCancelledError) -> None:
    """Let the cancel of the calling task through; Temporal gives it and a time-out the same name."""
    if isinstance(error.__cause__, asyncio.CancelledError):
        raise error.__cause__


@contextmanager
def _heard(start: WithStartWorkflowOperation[Any, Any]) -> Iterator[None]:
    """Listen to the operation's own future: a start that fails tells it too, and asyncio complains if nobody hears."""
    listening = asyncio.create_task(start.workflow_handle())
    listening.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        yield
    finally:
        listening.cancel()


def _failed_outcome(session_id: str, error: WorkflowFailureError) -> SessionOutcome:
    """The outcome that a failed workflow carries; a quarantined session is one."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == contract.FAILED_QUARANTINED and cause.details:
        return SessionOutcome.model_validate(cause.details[0])
    text = cause.message if isinstance(cause, ApplicationError) else str(cause)
    raise SessionFailed(f"session {printable(session_id)} ended without an outcome: {printable(text, 200)}") from error
