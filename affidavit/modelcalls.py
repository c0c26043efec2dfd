"""Calls of a model as evidence: admitted before, and ended exactly once, whatever becomes of them.

This is what the integrations share. A framework's adapter says what is sent and what came back; here it becomes a
request and one terminal record of an attempt (behaviours C1, C3).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from affidavit.cursor import Message, MessageCursor, context_sha256
from affidavit.errors import AffidavitError, InvalidStep, MessageTooLarge, NotReported, SessionRefused
from affidavit.evidence.text import printable
from affidavit.ids import new_session_id
from affidavit.reporter import Reporter, Reports

ERROR_CHARS: Final = 512
"""Of a provider's error message, at most."""


class SpanError(Exception):
    """What a span says of the error that has ended it."""


class ModelCall:
    """One call of a model that was admitted. The first of `respond` and `fail` counts, later ones do nothing.

    `correction` is a system message to put behind the messages, where the breaker injects one.
    """

    def __init__(self, calls: ModelCalls, attempt_id: str, correction: str | None, thread: int) -> None:
        self.attempt_id = attempt_id
        self.correction = correction
        self._calls = calls
        self._thread = thread
        self._open = [True]
        calls.open.add(self)

    def respond(
        self,
        *,
        text: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        reasoning: str | None = None,
        **more: Any,
    ) -> None:
        """Report what the model answered. Never waits, and may be called from any thread.

        Args:
            tool_calls: each `{call_id, name, arguments}`.
            more: further fields of a `model_response` step; those that are None are left out.
        """
        if not self._ends():
            return
        step: dict[str, Any] = {"kind": "model_response", "attempt_id": self.attempt_id}
        if text is not None or not (tool_calls or reasoning):
            step["text"] = text or ""
        if tool_calls:
            step["tool_calls"] = [dict(call) for call in tool_calls]
        if reasoning:
            step["reasoning"] = reasoning
        step |= {name: value for name, value in more.items() if value is not None}
        try:
            self._calls.ended(step)
        except (InvalidStep, MessageTooLarge) as error:
            # What cannot be reported must not leave the attempt open: the session would end without a receipt.
            self._calls.ended(self._failure("upstream_error", f"the answer cannot be reported: {error}"))
        else:
            self._calls.answered(self._thread, text, tool_calls)

    def fail(self, error: BaseException | None = None, *, partial: str | None = None) -> None:
        """Report that there is no answer. Never waits, and may be called from any thread.

        Args:
            error: why; None where the answer was dropped by the one who had asked for it.
            partial: what had come of its text.
        """
        if self._ends():
            step = self._failure(*explained(error))
            try:
                self._calls.ended(step | ({"extra": {"partial_text": partial}} if partial else {}))
            except MessageTooLarge:
                self._calls.ended(step)

    def when_collected(self, owner: object, report: Callable[[], None]) -> None:
        """Have something report the end of the call once `owner`, a stream say, is garbage."""
        weakref.finalize(owner, self._calls.reporter.later, report)

    def _ends(self) -> bool:
        try:
            self._open.pop()  # atomic: a stream may be dropped in one thread while another one reads its end
        except IndexError:
            return False
        self._calls.open.discard(self)
        return True

    def _failure(self, reason: str, message: str | None = None, status: int | None = None) -> dict[str, Any]:
        step: dict[str, Any] = {"kind": "model_failure", "attempt_id": self.attempt_id, "reason": reason}
        return step | ({"message": message} if message else {}) | ({"status": status} if status is not None else {})


class ModelCalls:
    """All calls that an agent makes within one session."""

    def __init__(self, session: Reports) -> None:
        self.reporter: Reporter = session.reporter()
        self._cursor = MessageCursor()
        self._settling: asyncio.Task[Any] | None = None
        self.open: set[ModelCall] = set()
        self.reporter.handle.on_leaving(self.drop)

    def drop(self) -> None:
        """End the calls that are still open: the runtime leaves the session, so nobody reads their answers."""
        for call in list(self.open):
            call.fail()

    async def begin(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
        sent: Any = None,
    ) -> ModelCall:
        """Have a call admitted and report its request; to be awaited before the model is called.

        Args:
            messages: the whole list, in the form of formats.md 2; only what is new of it is reported.
            sent: what is really sent, for the digest of the whole; `messages` if left out.

        Raises:
            SessionRefused: the call must not be made.
            AffidavitUnavailable: nobody answers; the call must not be made either.
        """
        return await self.reporter.run(lambda: self._begin(messages, model, tools, sent))

    def begin_blocking(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
        sent: Any = None,
    ) -> ModelCall:
        """The same for code that is not asynchronous."""
        return self.reporter.wait(lambda: self._begin(messages, model, tools, sent))

    async def admit(self) -> tuple[str, str | None]:
        """Have a call admitted whose request `requested` will report; returns its attempt and a correction."""
        handle, attempt_id = self.reporter.handle, new_session_id()
        try:
            # The breaker judges an answer when that is journaled. Mostly it is by now: tools have run since.
            result = await handle.admit(attempt_id, after=self._settling)
        except SessionRefused:
            raise
        except BaseException as error:
            # It may have been admitted. A request and its failure are consistent in either case; an open attempt that
            # nobody ends would cost the session its receipt.
            self.abandon(attempt_id, error)
            raise
        return attempt_id, result.message

    def requested(
        self,
        attempt_id: str,
        correction: str | None,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
        sent: Any = None,
    ) -> ModelCall:
        """Report the request of an admitted call. On the session's loop only.

        Raises:
            InvalidStep, MessageTooLarge: it cannot be reported; the attempt is ended.
        """
        fresh, thread = self._cursor.take(messages)
        whole = list(messages) if sent is None else sent
        if correction is not None:
            fresh.append(correction_message(correction))
            whole = [*whole, correction_message(correction)] if isinstance(whole, list) else whole
        step: dict[str, Any] = {"kind": "model_request", "attempt_id": attempt_id, "messages": fresh}
        optional = {"model": model, "tools": self._cursor.new_tools(tools), "context_sha256": context_sha256(whole)}
        step |= {name: value for name, value in optional.items() if value is not None}
        try:
            self.reporter.post(step)
        except (InvalidStep, MessageTooLarge) as error:
            self.abandon(attempt_id, error)
            raise
        return ModelCall(self, attempt_id, correction, thread)

    def ended(self, step: Mapping[str, Any]) -> None:
        """Report a terminal record, and have it journaled while the agent goes on."""
        self.reporter.post(step)
        self.reporter.soon(self._settle)

    def answered(self, thread: int, text: str | None, calls: Sequence[Mapping[str, Any]]) -> None:
        """Expect the echo of an answer in the conversation's next list."""
        self.reporter.soon(lambda: self._cursor.answered(thread, text, calls))

    async def _begin(
        self, messages: Sequence[Message], model: str | None, tools: Sequence[Any] | None, sent: Any
    ) -> ModelCall:
        attempt_id, correction = await self.admit()
        # No await in between: the attempt is ours to end from here on.
        return self.requested(attempt_id, correction, messages, model=model, tools=tools, sent=sent)

    def abandon(self, attempt_id: str, error: BaseException | None = None) -> None:
        """End an admitted call of which no request was reported."""
        reason, message, _ = explained(error)
        failure = {"kind": "model_failure", "attempt_id": attempt_id, "reason": reason, "message": message or reason}
        with suppress(AffidavitError):
            self.reporter.post({"kind": "model_request", "attempt_id": attempt_id, "messages": []}, failure)

    def _settle(self) -> None:
        if self._settling is None or self._settling.done():
            self._settling = asyncio.ensure_future(self._flushed())

    async def _flushed(self) -> None:
        try:
            await self.reporter.handle.flush()
        except NotReported as error:  # told once, and nobody listens here
            self.reporter.handle.report_failed(error.__cause__ or error)
        except AffidavitError:
            pass  # the next admission says so


def correction_message(text: str) -> Message:
    """What a model is told when the breaker injects a correction."""
    return {"role": "system", "content": text}


def explained(error: BaseException | None) -> tuple[str, str | None, int | None]:
    """Reason, message and HTTP status of a failed call, of whatever SDK the error is."""
    if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return "cancelled", None, None
    status = getattr(error, "status_code", None)
    known = status if isinstance(status, int) and 0 <= status <= 999 else None
    message = printable(f"{type(error).__name__}: {error}", ERROR_CHARS)
    if isinstance(error, AffidavitError):
        return "refused", message, known
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return "timeout", message, known
    return "upstream_error", message, known
