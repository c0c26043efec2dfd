"""Tools of an agent as evidence: `@session.tool` reports verdict, arguments, result and failure of a function."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

from pydantic_core import to_jsonable_python

from affidavit.errors import InvalidStep, MessageTooLarge, ToolBlocked
from affidavit.ids import new_session_id
from affidavit.reporter import Reporter

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Policy = Callable[[Mapping[str, Any]], str | None]
"""Sees a call's arguments; returns why it is blocked, or None."""


def reportable(value: Any) -> Any:
    """A value as JSON can carry it: models and dataclasses as objects, what nobody can write by its `repr`."""
    try:
        return to_jsonable_python(value, fallback=repr, inf_nan_mode="constants", bytes_mode="base64")
    except (ValueError, TypeError, RecursionError):
        return repr(value)


class Tool(Protocol[P, R_co]):
    """A function whose calls are reported: at run time a function like the one it decorates, with `call` added."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call it as before; the call gets an id of its own.

        Raises:
            ToolBlocked: the policy refuses it, or the arguments do not fit; the function was not called.
        """
        ...

    def call(self, call_id: str, arguments: Mapping[str, Any] | str | None = None) -> R_co:
        """Run a call that a model has announced under that id, with its arguments as it gave them.

        Args:
            arguments: an object, or its JSON text as OpenAI gives it; nothing for none.

        Raises:
            ToolBlocked: the arguments are no object (stage `parse`), do not fit the function (`schema`), or the policy
                refuses them (`policy`). The function was not called; the model may be told the reason.
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

    def direct(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            arguments = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            self._block(new_session_id(), {"args": args, "kwargs": kwargs}, "schema", str(error))
        return self._run(new_session_id(), arguments, args, kwargs)

    def announced(self, call_id: str, arguments: Mapping[str, Any] | str | None = None) -> R:
        parsed = _parsed(arguments)
        if parsed is None:
            self._block(call_id, arguments, "parse", "the arguments are no JSON object")
        try:
            bound = self._signature.bind(**parsed)
        except TypeError as error:
            self._block(call_id, parsed, "schema", str(error))
        return self._run(call_id, parsed, bound.args, bound.kwargs)

    def _run(self, call_id: str, arguments: Mapping[str, Any], args: Any, kwargs: Any) -> R:
        reason = self._policy(arguments) if self._policy is not None else None
        if reason is not None:
            self._block(call_id, arguments, "policy", reason)
        self._report(self._verdict(call_id, arguments, allowed=True))
        if inspect.iscoroutinefunction(self._function):
            return cast("R", self._awaited(call_id, args, kwargs))
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            self._failed(call_id, error)
            raise
        self._result(call_id, result, ok=True)
        return result

    async def _awaited(self, call_id: str, args: Any, kwargs: Any) -> Any:
        try:
            result = await cast("Any", self._function(*args, **kwargs))
        except BaseException as error:
            self._failed(call_id, error)
            raise
        self._result(call_id, result, ok=True)
        return result

    def _block(
        self, call_id: str, arguments: Any, stage: Literal["parse", "schema", "policy"], reason: str
    ) -> NoReturn:
        self._report(self._verdict(call_id, arguments, allowed=False) | {"stage": stage, "reason": reason})
        raise ToolBlocked(self.name, stage, reason)

    def _verdict(self, call_id: str, arguments: Any, *, allowed: bool) -> dict[str, Any]:
        return {
            "kind": "tool_call",
            "call_id": call_id,
            "tool": self.name,
            "allowed": allowed,
            "arguments": reportable(arguments),
        }

    def _failed(self, call_id: str, error: BaseException) -> None:
        self._result(call_id, {"error": type(error).__name__, "message": str(error)}, ok=False)

    def _result(self, call_id: str, content: Any, *, ok: bool) -> None:
        self._report({"kind": "tool_result", "call_id": call_id, "ok": ok, "content": reportable(content)})

    def _report(self, step: dict[str, Any]) -> None:
        report_tool_step(self._reporter, step)


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

        It is called as before. `call(call_id, arguments)` runs a call that a model has announced.

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
    """Report a tool's step; a result too large for a message is reported by its size, and not left out.

    Raises:
        InvalidStep: the id or the name of the call is none that a session takes.
    """
    try:
        reporter.post(step)
    except MessageTooLarge as error:
        if step["kind"] != "tool_result":
            raise InvalidStep(str(error)) from error
        reporter.post(step | {"content": f"not reported: {error}"})


def _parsed(arguments: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None
