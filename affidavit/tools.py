"""Tools of an agent as evidence: `@session.tool` reports verdict, arguments, result and failure of a function."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

from affidavit.errors import InvalidStep, MessageTooLarge, SessionNotFound, ToolBlocked
from affidavit.evidence.text import printable
from affidavit.ids import new_session_id
from affidavit.reporter import Reporter
from affidavit.toolresults import Ending, described, not_reported, reportable, watched

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

REASON_CHARS: Final = 512
"""Of the error of a policy that has failed, at most."""

Policy = Callable[[Mapping[str, Any]], str | None]
"""Sees a call's arguments; returns why it is blocked, or None."""


class Tool(Protocol[P, R_co]):
    """A function whose calls are reported: at run time a function like the one it decorates, with `call` added."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call it as before; the call gets an id of its own.

        Raises:
            ToolBlocked: the policy refuses it or fails, or the arguments do not fit; the function was not called.
            SessionNotFound: the session has been closed; the function was not called.
        """
        ...

    def call(self, call_id: str, arguments: Mapping[str, Any] | str | None = None) -> R_co:
        """Run a call that a model has announced under that id, with its arguments as it gave them.

        Args:
            arguments: an object, or its JSON text as OpenAI gives it; nothing for none.

        Raises:
            ToolBlocked: the arguments are no object (stage `parse`), do not fit the function (`schema`), or the policy
                refuses them or fails (`policy`). The function was not called; the model may be told the reason.
            SessionNotFound: the session has been closed; the function was not called.
        """
        ...


class _Calls(Generic[P, R]):
    """What stands behind a tool."""

    def __init__(self, reporter: Reporter, function: Callable[P, R], name: str | None, policy: Policy | None) -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self._reporter = reporter
        self._function = function
        self._policy = policy
        self._signature = inspect.signature(function)
        self._pending: set[Ending] = set()
        reporter.handle.on_leaving(self._leave)

    def direct(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_open()
        try:
            arguments = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            self._block(new_session_id(), {"args": args, "kwargs": kwargs}, "schema", str(error))
        return self._run(new_session_id(), arguments, args, kwargs)

    def announced(self, call_id: str, arguments: Mapping[str, Any] | str | None = None) -> R:
        self._check_open()
        parsed = _parsed(arguments)
        if parsed is None:
            self._block(call_id, arguments, "parse", "the arguments are no JSON object")
        try:
            bound = self._signature.bind(**parsed)
        except TypeError as error:
            self._block(call_id, parsed, "schema", str(error))
        return self._run(call_id, parsed, bound.args, bound.kwargs)

    def result(self, call_id: str, content: Any, *, ok: bool) -> None:
        """Report what came of a call; what goes wrong there is told to the session's next caller."""
        step = {"kind": "tool_result", "call_id": call_id, "ok": ok, "content": reportable(content)}
        report_tool_step(self._reporter, step)

    def later(self, call: Callable[[], object]) -> None:
        """Run something soon, but not now."""
        self._reporter.later(call)

    def _leave(self) -> None:
        for ending in list(self._pending):
            ending.dropped()

    def _run(self, call_id: str, arguments: Mapping[str, Any], args: Any, kwargs: Any) -> R:
        self._check_policy(call_id, arguments)
        report_tool_step(self._reporter, self._verdict(call_id, arguments, allowed=True))
        ending = Ending(call_id, self, self._pending)
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            ending.failed(error)
            raise
        return cast("R", watched(result, ending))

    def _check_open(self) -> None:
        if self._reporter.handle.closed:
            raise SessionNotFound(f"the session has been closed, so {printable(self.name)} was not called")

    def _check_policy(self, call_id: str, arguments: Mapping[str, Any]) -> None:
        if self._policy is None:
            return
        try:
            reason = self._policy(arguments)
        except Exception as error:  # noqa: BLE001 - of whatever a policy does; it allows nothing
            said = described(error)
            text = printable(f"the policy failed: {said['error']}: {said['message']}", REASON_CHARS)
            self._block(call_id, arguments, "policy", text, error)
        if reason is not None:
            self._block(call_id, arguments, "policy", reason if isinstance(reason, str) else str(reportable(reason)))

    def _block(
        self,
        call_id: str,
        arguments: Any,
        stage: Literal["parse", "schema", "policy"],
        reason: str,
        cause: Exception | None = None,
    ) -> NoReturn:
        step = self._verdict(call_id, arguments, allowed=False) | {"stage": stage, "reason": reason}
        try:
            report_tool_step(self._reporter, step)
        except Exception as error:  # noqa: BLE001 - the call stays blocked
            self._reporter.failed(error)
        raise ToolBlocked(self.name, stage, reason) from cause

    def _verdict(self, call_id: str, arguments: Any, *, allowed: bool) -> dict[str, Any]:
        return {
            "kind": "tool_call",
            "call_id": call_id,
            "tool": self.name,
            "allowed": allowed,
            "arguments": reportable(arguments),
        }


class ReportsTools:
    """What a session of either client adds for tools."""

    def reporter(self) -> Reporter:
        """What a framework's callbacks report by, from any thread or event loop."""
        raise NotImplementedError

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...

    @overload
    def tool(
        self, /, *, name: str | None = None, policy: Policy | None = None
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(
        self, function: Callable[P, R] | None = None, /, *, name: str | None = None, policy: Policy | None = None
    ) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
        """Decorate a function, asynchronous or not, so that each call is reported: verdict, arguments, result, failure.

        It is called as before. `call(call_id, arguments)` runs a call that a model has announced. An awaitable, a
        future or an iterator that it returns is reported when that is done, has failed, or was dropped; of an iterator
        what it has yielded, 1000 items at most.

        Args:
            name: what the model calls it; the function's name if left out.
            policy: sees the arguments before the function does; returns why the call is blocked, or None.
        """
        if function is not None:
            return _tool(_Calls(self.reporter(), function, name, policy), function)
        return lambda decorated: _tool(_Calls(self.reporter(), decorated, name, policy), decorated)


def _tool(calls: _Calls[P, R], function: Callable[P, R]) -> Tool[P, R]:
    made: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await cast("Any", calls.direct(*args, **kwargs))

        made = asynchronous
    else:

        @functools.wraps(function)
        def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
            return calls.direct(*args, **kwargs)

        made = synchronous
    made.call = calls.announced
    return cast("Tool[P, R]", made)


def report_tool_step(reporter: Reporter, step: dict[str, Any]) -> None:
    """Report a tool's step. A result that cannot be reported is named by its size or by the error's type.

    Never raises for a result: the tool has run, and what it gave belongs to the agent. What fails there is told to the
    session's next `record`, `admit`, `flush` or `close`.

    Raises:
        InvalidStep: of a call: its id or its name is none that a session takes, or it is too large.
    """
    try:
        reporter.post(step)
    except Exception as error:
        if step["kind"] != "tool_result":
            if isinstance(error, MessageTooLarge):
                raise InvalidStep(str(error)) from error
            raise
        told = f"not reported: {error}" if isinstance(error, MessageTooLarge) else not_reported(error)
        try:
            reporter.post(step | {"content": told})
        except Exception as again:  # noqa: BLE001 - a redaction that raises, an id that is none
            reporter.failed(again)


def _parsed(arguments: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None
