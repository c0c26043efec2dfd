"""One session as its runtime sees it: report steps, ask, wait for the end."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from pydantic import BaseModel
from temporalio.common import RawValue

from affidavit import contract
from affidavit.arguments import as_argument
from affidavit.contract import (
    AdmitRequest,
    AdmitResult,
    Agent,
    AttachResult,
    BreakerReset,
    CloseAccepted,
    FlushResult,
    IdentityResult,
    SessionOutcome,
    SessionView,
    SubmitResult,
)
from affidavit.converter import encode_json, raw_json
from affidavit.errors import (
    AffidavitError,
    AffidavitUnavailable,
    AnswerUnreadable,
    NotReported,
    SessionFailed,
    SessionNotFound,
    SessionRefused,
)
from affidavit.evidence.layout import trajectory_name
from affidavit.evidence.text import printable
from affidavit.grants import holder_of
from affidavit.ids import new_session_id
from affidavit.outgoing import Encoded, Step, check_one_message, encoded
from affidavit.pacing import Pace
from affidavit.process import SessionProcess
from affidavit.process_api import WaitRequest
from affidavit.reporter import Reporter
from affidavit.sending import Sender
from affidavit.tools import ReportsTools
from affidavit.waking_api import QUERY_WAKES_AFTER, SIGNAL_ACK_WAKE, WakesResult

if TYPE_CHECKING:
    from affidavit.client import SessionClient

QUESTION_S: Final = 5.0
CANCEL_DRAIN_S: Final = 5.0
"""How long a cancel waits for what was reported before it."""

Redact = Callable[[dict[str, Any]], Step]
"""Is given a copy of each step before it leaves the process; returns what is reported in its place."""

ENDED_BY_REFUSAL: Final = (contract.REFUSED_LOOP, contract.REFUSED_IDENTITY, contract.REFUSED_CLOSING)
"""Refusals after which a session is closed and not cancelled: its own last event is why it ends, 91 or 94."""

R = TypeVar("R", bound=BaseModel)


class SessionHandle(SessionProcess, ReportsTools):
    """One session, with all that its runtime does beside what anybody may.

    `outcome` is set once `close` or `result` has returned it. Safe to share between tasks of
    one event loop. A handle numbers its steps as a producer of its own, so that none is taken twice however often it is
    sent; a session knows at most 64 producers, so keep a handle and share it.
    """

    def __init__(
        self, client: SessionClient, session_id: str, attached: AttachResult | None, *, redact: Redact | None = None
    ) -> None:
        super().__init__(client, session_id, attached.generation if attached else None)
        self.attached = attached
        self._sender = Sender(self._line.signal, Pace(self._crowded, patience=client.retry_timeout).wait)
        self._redact = redact
        self._on_leaving: list[Callable[[], None]] = []
        self._unreported: Exception | None = None
        self._closing = False

    @property
    def generation(self) -> str | None:
        """Which life of the id this handle has opened; None for a handle that only names a session."""
        return self.attached.generation if self.attached else None

    @property
    def closed(self) -> bool:
        """Whether this handle has closed or cancelled the session, or knows its outcome."""
        return self._closing or self.outcome is not None

    @property
    def producer(self) -> str:
        """The name under which this handle numbers its steps; steps with a `producer_seq` of their own keep it."""
        return self._sender.producer

    # -- reporting -------------------------------------------------------------------------------------

    async def record(self, *steps: Step) -> None:
        """Report steps, in order; returns when they are buffered, at once unless the buffer is full.

        The buffer fills when the server is slow or away, and when the session's queue is full: a handle that has sent
        256 steps looks, and holds the next ones back for up to `retry_timeout`.

        They are sent when 64 steps or 256 KiB have come together or 50 ms have passed, again and again until the
        server has them, for `retry_timeout` at most. `flush` tells when they are on disk; what is still buffered when
        the event loop ends is lost, so end with `close` or `flush`.

        Raises:
            InvalidStep, MessageTooLarge: nothing of this call was taken.
            AffidavitUnavailable, SessionStalled, SessionFailed: earlier steps could not be sent. They are kept and
                tried again; nothing of this call was taken.
            SessionNotFound: the session has ended, or never was; earlier steps of this handle were not taken, as many
                as the text says, nor those of this call.
        """
        checked = self.encoded(steps)
        self._tell()
        await self._may_wake(steps)
        await self._sender.put(checked)

    def post(self, *steps: Step) -> None:
        """`record` for code that cannot wait, a callback say: in order with it, but however full the buffer is.

        To be called on the session's event loop; `reporter()` gives the same for any thread.

        Raises:
            InvalidStep, MessageTooLarge: nothing of this call was taken. What else goes wrong is told to the next
                `record`, `flush`, `admit` or `close`.
        """
        self.post_encoded(self.encoded(steps))

    def reporter(self) -> Reporter:
        """What a framework's callbacks report by, from any thread; to be asked for on the session's event loop."""
        return Reporter(self, asyncio.get_running_loop())

    async def submit(self, *steps: Step) -> SubmitResult:
        """Report steps and wait until they are in the journal; other steps of this handle wait behind them.

        Raises:
            InvalidStep, MessageTooLarge: nothing was sent.
            SessionRefused: queue full, closing, or the capture is incomplete. A full queue is told at once.
            AffidavitUnavailable, SessionStalled: nobody answered in time; the steps may be in the journal or not.
            SessionNotFound: the session is not running.
        """
        checked = self.encoded(steps)
        check_one_message(checked, self._limit)
        await self._may_wake(steps)

        async def send(message: bytes) -> SubmitResult:
            return await self._line.update(contract.UPDATE_SUBMIT, SubmitResult, raw_json(message))

        return await self._sender.alone(checked, send)

    async def flush(self) -> FlushResult:
        """Send what is buffered and wait until everything reported so far is in the journal.

        Raises:
            AffidavitUnavailable, SessionStalled, SessionNotFound, SessionRefused: as `record` and `submit`.
            NotReported: everything else is in the journal, but a step of a tool's call could not be reported.
        """
        flushed = await self._update(contract.UPDATE_FLUSH, FlushResult)
        self._tell()
        return flushed

    async def admit(
        self, attempt_id: str | None = None, agent: Agent | None = None, *, after: asyncio.Future[Any] | None = None
    ) -> AdmitResult:
        """Ask whether a model may be called, and open the attempt that its answer or its failure will close.

        Args:
            attempt_id: the attempt's name; made here if left out, so that a retry opens no second one.
            agent: who asks; checked against the session's identity.
            after: waited for first, within the same time: a `flush`, so that the breaker has judged what came before.

        Returns:
            The attempt's id. `flagged`: the breaker is open and only observes. `message`: a system message to put
            before the next request.

        Raises:
            SessionRefused: type LoopDetected, IdentityConflict, QueueFull, ResponseSlotsFull, SessionClosing or
                CaptureIncomplete.
            AffidavitUnavailable: nobody answered within the client's `admit_timeout`; the text says who is missing.
                Asking again with the same `attempt_id` is safe.
            NotReported: a step of a tool's call could not be reported; told once, nothing was asked.
        """
        self._tell()
        argument = as_argument(AdmitRequest, attempt_id=attempt_id or new_session_id(), agent=agent)
        try:
            async with asyncio.timeout(self._client.admit_timeout):
                if after is not None:
                    await self._sender.drain()  # meanwhile
                    await asyncio.wait([after])
                result = await self._update(contract.UPDATE_ADMIT, AdmitResult, argument)
        except TimeoutError:
            raise AffidavitUnavailable(await self._client.missing()) from None
        if result.refused is not None:
            raise SessionRefused(result.refused.type, result.refused.reason)
        return result

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
        argument = as_argument(BreakerReset, by=by, reason=reason)
        return await self._update(contract.UPDATE_RESET_BREAKER, FlushResult, argument)

    async def set_wait(self, *, kind: str, name: str) -> FlushResult:
        """Say what the session waits for, such as kind `approval`, name `manager`; an event, and in the view (P14).

        Raises:
            SessionRefused: type SessionClosing, CaptureIncomplete, QueueFull or Busy.
            SessionNotFound, AffidavitUnavailable, SessionStalled.
        """
        request = as_argument(WaitRequest, kind=kind, name=name)
        return await self._update(contract.UPDATE_SET_WAIT, FlushResult, request)

    async def clear_wait(self) -> FlushResult:
        """Say that it goes on; an event if it waited. Raises as `set_wait`."""
        return await self._update(contract.UPDATE_CLEAR_WAIT, FlushResult)

    # -- waking ----------------------------------------------------------------------------------------

    async def wake(self, input: Any, target: str | None = None) -> SubmitResult:
        """Wake another session, by a step of this one; returns when that is in the journal, delivery follows.

        Args:
            input: any JSON value; at most 64 KiB with the step around it.
            target: a session id, `id#generation` for one life of it, or None for this session's own wake target. A
                target that does not run is no error.

        Raises:
            SessionRefused: NotGranted, where the client has a holder without a grant of the target; else as `submit`.
        """
        step: dict[str, Any] = {"kind": "wake", "input": input}
        return await self.submit(step if target is None else {**step, "target": target})

    async def wakes_after(self, sequence: int = -1) -> WakesResult:
        """Wakes that came and are not acknowledged, of events strictly after one. Needs a worker."""
        await self._addressed()
        return await self._line.query(QUERY_WAKES_AFTER, WakesResult, raw_json(encode_json(sequence)))

    async def ack_wake(self, sequence: int) -> None:
        """Acknowledge the wakes up to an event, that one included; a repeat changes nothing."""
        await self._addressed()
        await self._line.send(SIGNAL_ACK_WAKE, raw_json(encode_json(sequence)))

    def trajectory_ref(self) -> dict[str, Any]:
        """What a parent's `tool_result` says under `subagent_trajectory_ref`: where this life's trajectory is.

        The path is the one in the evidence store; of a signed session `affidavit trajectory` writes the file.

        Raises:
            SessionNotFound: this handle does not know which life it means; `open` gives one that does.
        """
        if self.generation is None:
            raise SessionNotFound(f"no life of session {printable(self.session_id)} was opened by this handle")
        return {
            "session_id": self.session_id,
            "trajectory_path": trajectory_name(self.session_id, self.generation),
        }

    # -- the end ---------------------------------------------------------------------------------------

    async def close(self) -> SessionOutcome:
        """Send what is buffered, end the session, and wait for its outcome; also of one that has ended already.

        Raises:
            SessionNotFound: there is no such session, or it had ended before the last steps came; calling again then
                returns its outcome.
            AffidavitUnavailable, SessionStalled: steps could not be sent, so the session was not closed.
            SessionFailed: it ended without an outcome.
            NotReported: it is closed and `outcome` is set, but a step of a tool's call could not be reported.
        """
        await self._addressed()
        await self._sender.drain()
        self._closing = True
        try:
            with suppress(SessionNotFound):  # not running any more, or never was: the result tells which
                await self._line.update(contract.UPDATE_CLOSE, CloseAccepted)
        except BaseException:
            self._closing = False
            raise
        outcome = await self.result()
        self._tell()
        return outcome

    async def cancel(self) -> None:
        """Ask the session to end as cancelled: it drains, seals and stops.

        Raises:
            AffidavitError: it is not cancelled; or it is, but without steps that could not be sent before.
        """
        await self._addressed()
        unsent = await self._cancel()
        if unsent is not None:
            raise unsent

    async def receipt(self) -> dict[str, Any]:
        """The signed receipt, once the session has ended.

        Raises:
            SessionFailed: it ended without one.
        """
        outcome = self.outcome or await self.result()
        if outcome.receipt is None:
            raise SessionFailed(f"session {printable(self.session_id)} ended {outcome.status} without a receipt")
        return outcome.receipt

    async def promote(self) -> dict[str, Any]:
        """Close the session, await its end, and have its trajectory attested; returns the receipt.

        Raises:
            SessionNotFound, SessionFailed: as `close`.
            SessionRefused: as `SessionClient.promote`.
        """
        outcome = await self.close()
        return (await self._client.promote(self.session_id, outcome.generation)).receipt

    # -- questions -------------------------------------------------------------------------------------

    async def view(self) -> SessionView:
        """What an operator asks: counts, head, breaker, what stalls. Needs a worker.

        What this handle has buffered is sent first; what goes wrong there is told to the next report.
        """
        await self._addressed()
        await self._sender.settle()
        return await self._line.query(contract.QUERY_VIEW, SessionView)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for call in self._on_leaving:
            call()
        if error is None or _ended_by_refusal(error):
            await self.close()
            return
        if isinstance(error, AffidavitUnavailable):
            # Nobody answers, so there is little hope to be heard, and the caller has waited once already.
            with suppress(AffidavitUnavailable, TimeoutError):
                async with asyncio.timeout(self._client.admit_timeout):
                    await self.cancel()
                return
            error.add_note("affidavit: the session was not cancelled; it closes itself once it is idle")
            return
        unsent = await self._cancel()
        if unsent is not None:
            error.add_note(f"affidavit: not all steps were reported: {unsent}")
        # A task that is being cancelled itself must not wait for what it has asked for; nor is an outcome worth it that
        # cannot be opened here.
        if not isinstance(error, asyncio.CancelledError | AnswerUnreadable):
            await self.result()

    async def _addressed(self) -> None:
        """That this client may address the session: it has opened it, or its holder has a grant (P15)."""
        if self.attached is None:
            await super()._addressed()

    async def _may_wake(self, steps: Sequence[Step]) -> None:
        """The same for the sessions that steps name as targets; the one fixed at open needs no grant."""
        if self._client.holder is None:
            return
        targets = {holder_of(step["target"]) for step in steps if step["kind"] == "wake" and "target" in step}
        for target in sorted(each for each in targets if each is not None):
            await self._client.check_grant(target)

    async def _crowded(self) -> bool:
        """Whether the session has no room for more steps, as far as somebody is there to say so."""
        try:
            async with asyncio.timeout(QUESTION_S):
                view = await self._line.query(contract.QUERY_VIEW, SessionView)
        except (AffidavitError, TimeoutError, RuntimeError):  # the last is what a lazy connection raises
            return False  # the signal itself will tell what is wrong
        return view.queue_depth >= view.queue_limit

    def on_leaving(self, call: Callable[[], None]) -> None:
        """Have something called when the session's block is left, before the session is closed or cancelled."""
        self._on_leaving.append(call)

    def encoded(self, steps: Sequence[Step]) -> list[Encoded]:
        """Steps as they would be sent, redacted and checked; for `post_encoded`.

        Raises:
            InvalidStep, MessageTooLarge.
        """
        if self._redact is not None:
            # A copy, so that the hook may change it in place and the agent's own data stays as it is.
            steps = [self._redact(copy.deepcopy(dict(step))) for step in steps]
        return encoded(steps, self._limit)

    def post_encoded(self, steps: Sequence[Encoded]) -> None:
        """`post` for steps that were encoded in another thread."""
        self._sender.post(steps)

    def report_failed(self, error: BaseException) -> None:
        """Remember that a step could not be reported where nobody could be told; on the session's loop only."""
        if self._unreported is None:
            self._unreported = NotReported(f"a step of a tool's call was not reported: {_worded(error)}")
            self._unreported.__cause__ = error

    def _tell(self) -> None:
        """Raise what nobody was told yet, once."""
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            raise unreported

    def _limit(self) -> int:
        return self._client.message_bytes(self.session_id)

    async def _cancel(self) -> BaseException | None:
        unsent = await self._sender.settle(CANCEL_DRAIN_S)
        await self._line.cancel()
        self._closing = True
        unreported, self._unreported = self._unreported, None
        return unsent or unreported

    async def _update(self, name: str, result_type: type[R], *args: RawValue) -> R:
        # In the order of the calls: what was reported before has to be there before.
        await self._sender.drain()
        return await self._line.update(name, result_type, *args)


def _worded(error: BaseException) -> str:
    """Our own words for it, else no more than its type: others' may quote what was to be redacted."""
    return printable(str(error), 200) if isinstance(error, AffidavitError) else type(error).__name__


def _ended_by_refusal(error: BaseException) -> bool:
    """Whether a block ends because the session refused to go on; frameworks wrap the refusal in errors of their own."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SessionRefused):
            return seen.type in ENDED_BY_REFUSAL
        seen = seen.__cause__
    return False
