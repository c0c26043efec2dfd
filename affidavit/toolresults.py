"""Results of tools that are not there when the function returns: awaitables, futures, and what is iterated over.

Such a result is given on in a form that reports once: when it is done, when it fails, or when it is dropped.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Final, Protocol

from pydantic_core import to_jsonable_python

KEPT_ITEMS: Final = 1000
"""Of what a tool yields, so many items are kept to be reported; the others are counted."""

_SCALARS: Final = frozenset((str, int, float, bool, bytes, type(None)))


class DroppedResult(Exception):
    """Nobody has waited for a tool's result, or read it to its end."""


def reportable(value: Any) -> Any:
    """A value as JSON can carry it: models and dataclasses as objects, what nobody can write by its `repr`.

    Never raises: foreign code that fails to describe its own value is named by the type of its error.
    """
    try:
        return to_jsonable_python(_readable(value), fallback=repr, inf_nan_mode="constants", bytes_mode="base64")
    except Exception:  # noqa: BLE001 - of whatever a model or a `__repr__` does
        try:
            return repr(value)
        except Exception as error:  # noqa: BLE001
            return not_reported(error)


def _readable(value: Any) -> Any:
    """The value without its iterators, which the agent could not read any more once they were written."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict:
        return {name: _readable(each) for name, each in value.items()}
    if kind is list or kind is tuple:
        return [_readable(each) for each in value]
    if is_pending(value):
        return f"not reported: {kind.__name__}"
    return repr(value) if isinstance(value, Iterator) else value


def not_reported(error: BaseException) -> str:
    """What stands in the place of a value that could not be reported."""
    return f"not reported: {type(error).__name__}"


def described(error: BaseException) -> dict[str, str]:
    """An exception of a tool as its result; never raises."""
    try:
        message = str(error)
    except Exception as failure:  # noqa: BLE001 - a `__str__` that raises must not take the exception's place
        message = not_reported(failure)
    return {"error": type(error).__name__, "message": message}


class Reporting(Protocol):
    """How the end of a call is reported; from any thread, and never raising."""

    def result(self, call_id: str, content: Any, *, ok: bool) -> None:
        """Report what came of a call."""
        ...

    def later(self, call: Callable[[], object]) -> None:
        """Run something soon, but not now."""
        ...


class Ending:
    """The end of one call: the first of `done`, `failed` and `dropped` counts."""

    def __init__(self, call_id: str, reporting: Reporting, pending: set[Ending]) -> None:
        self._call_id = call_id
        self._reporting = reporting
        self._pending = pending
        self._open = [True]
        self._items: list[Any] = []
        self._count = 0
        self._collected: Any = None

    def done(self, content: Any) -> None:
        """It has its result."""
        if self._ends():
            self._reporting.result(self._call_id, content, ok=True)

    def failed(self, error: BaseException) -> None:
        """It has raised, after the items that were taken."""
        if self._ends():
            said: dict[str, Any] = described(error)
            if self._count:
                said["items"] = self._yielded()
            self._reporting.result(self._call_id, said, ok=False)

    def dropped(self) -> None:
        """Nobody wants its result any more."""
        self.failed(DroppedResult("nobody has waited for the end of this result"))

    def took(self, item: Any) -> None:
        """It has yielded something."""
        self._count += 1
        if len(self._items) < KEPT_ITEMS:
            self._items.append(reportable(item))  # as it is now

    def exhausted(self) -> None:
        """It has yielded everything."""
        self.done(self._yielded())

    def watch(self, owner: object) -> None:
        """Have it end as dropped when its last owner is garbage, or the session is left."""
        if self._collected is not None:
            self._collected.detach()  # an awaitable that has given an iterator, say, is done with
        self._pending.add(self)
        self._collected = weakref.finalize(owner, self._reporting.later, self.dropped)
        self._collected.atexit = False

    def settled(self, future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        """A future is done."""
        if future.cancelled():
            self.failed(asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.failed(error)
        else:
            self.done(future.result())

    def _yielded(self) -> list[Any]:
        more = self._count - len(self._items)
        return [*self._items, f"not reported: {more} more items"] if more else self._items

    def _ends(self) -> bool:
        try:
            self._open.pop()  # atomic: a result may be dropped in one thread while another one reads its end
        except IndexError:
            return False
        self._pending.discard(self)
        return True


def is_pending(result: Any) -> bool:
    """Whether what a function has returned is not its result yet.

    An iterator that is a context manager as well, a file say, is an object of its own and not the end of a call.
    """
    if inspect.isawaitable(result) or isinstance(result, Generator | AsyncGenerator | concurrent.futures.Future):
        return True
    managed = hasattr(type(result), "__enter__") or hasattr(type(result), "__aenter__")
    return isinstance(result, Iterator | AsyncIterator) and not managed


def watched(result: Any, ending: Ending) -> Any:
    """A result to give to the agent; its end is reported now, or once it comes."""
    if not is_pending(result):
        ending.done(result)
        return result
    given: Any = result
    if isinstance(result, asyncio.Future | concurrent.futures.Future):
        result.add_done_callback(ending.settled)
    elif inspect.iscoroutine(result):
        given = _awaited(result, ending)  # a coroutine again: tasks are made of nothing else
    elif inspect.isawaitable(result):
        given = _Awaitable(result, ending)
    elif isinstance(result, AsyncIterator):
        given = _AsyncItems(result, ending)
    else:
        given = _Items(result, ending)
    ending.watch(given)
    return given


async def _awaited(result: Awaitable[Any], ending: Ending) -> Any:
    try:
        value = await result
    except BaseException as error:
        ending.failed(error)
        raise
    return watched(value, ending)


class _Given:
    """In the place of a result; what it has beside the protocol is the result's own."""

    def __init__(self, result: Any, ending: Ending) -> None:
        self._result = result
        self._ending = ending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


class _Awaitable(_Given):
    def __await__(self) -> Generator[Any, Any, Any]:
        # A generator, so that this object, whose end is watched, lives as long as it is awaited.
        return (yield from _awaited(self._result, self._ending).__await__())


class _Items(_Given):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._step(lambda: next(self._result))

    def send(self, value: Any) -> Any:
        return self._step(lambda: self._result.send(value))

    def throw(self, *error: Any) -> Any:
        return self._step(lambda: self._result.throw(*error))

    def close(self) -> None:
        if hasattr(self._result, "close"):
            self._result.close()
        self._ending.dropped()

    def _step(self, step: Callable[[], Any]) -> Any:
        try:
            item = step()
        except StopIteration:
            self._ending.exhausted()
            raise
        except BaseException as error:
            self._ending.failed(error)
            raise
        self._ending.took(item)
        return item


class _AsyncItems(_Given):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._step(lambda: self._result.__anext__())

    async def asend(self, value: Any) -> Any:
        return await self._step(lambda: self._result.asend(value))

    async def athrow(self, *error: Any) -> Any:
        return await self._step(lambda: self._result.athrow(*error))

    async def aclose(self) -> None:
        if hasattr(self._result, "aclose"):
            await self._result.aclose()
        self._ending.dropped()

    async def _step(self, step: Callable[[], Awaitable[Any]]) -> Any:
        try:
            item = await step()
        except StopAsyncIteration:
            self._ending.exhausted()
            raise
        except BaseException as error:
            self._ending.failed(error)
            raise
        self._ending.took(item)
        return item
