"""One session, reported to from wherever a framework calls back: its own event loop, another one, or a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from affidavit.outgoing import Encoded, Step

if TYPE_CHECKING:
    from affidavit.handle import SessionHandle

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Reports(Protocol):
    """A session of either client: `SessionHandle` or `SyncSession`."""

    def reporter(self) -> Reporter:
        """What a framework's callbacks report by."""
        ...


class Reporter:
    """A session's handle and the event loop that it belongs to. Safe to use from any thread."""

    def __init__(self, handle: SessionHandle, loop: asyncio.AbstractEventLoop) -> None:
        self.handle = handle
        self._loop = loop

    def post(self, *steps: Step) -> None:
        """Report steps without waiting; those of one thread keep their order.

        Raises:
            InvalidStep, MessageTooLarge: nothing was taken.
        """
        encoded = self.handle.encoded(steps)
        if self._here():
            self.handle.post_encoded(encoded)
        else:
            self.later(lambda: self._post_late(encoded), steps=len(encoded))

    def failed(self, error: Exception) -> None:
        """Have the session's next caller told that something was not reported."""
        self.soon(lambda: self.handle.report_failed(error))

    def _post_late(self, encoded: Sequence[Encoded]) -> None:
        try:
            self.handle.post_encoded(encoded)
        except Exception as error:  # noqa: BLE001 - a spool's disk, say; whoever has reported it is gone
            self.handle.report_failed(error)

    def soon(self, call: Callable[[], object], *, steps: int = 1) -> None:
        """Run a function on the session's loop: now where that is ours, else as soon as it can."""
        if self._here():
            call()
        else:
            self.later(call, steps=steps)

    def later(self, call: Callable[[], object], *, steps: int = 1) -> None:
        """Run a function on the session's loop, but never now: for finalizers, which interrupt anything."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed; an object that is collected late reports into nothing
            _log.warning("%d steps are not sent: the session's event loop is closed", steps)

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine that belongs to the session's loop, from any loop."""
        if self._here():
            return await call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    def wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same from a thread that may be held up until the answer is there.

        Raises:
            RuntimeError: the thread is that of the session's own loop, which would wait for itself.
        """
        return wait_for(self._loop, call)

    def _here(self) -> bool:
        return _runs_here(self._loop)


def wait_for(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a loop of another thread, and wait for its answer.

    Raises:
        RuntimeError: the loop is closed, or it is the one that would have to wait.
    """
    if loop.is_closed():
        raise RuntimeError("the client is closed")
    if _runs_here(loop):
        raise RuntimeError(
            "this blocks the event loop that the session lives on; use the framework's asynchronous interface, "
            "or a session of SyncSessionClient, which has a loop of its own"
        )
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # of a KeyboardInterrupt: nobody waits for it any more
        raise


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
