"""`SessionProcess` and the grant book for threads; see `affidavit.sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar, cast

from affidavit.contract import SessionOutcome
from affidavit.eventlog import SessionEvent
from affidavit.granting import Grants, Listed
from affidavit.grants import DeletedHolder
from affidavit.process import SessionProcess
from affidavit.process_api import AbandonRequested, CancelRequested, Cursor
from affidavit.reporter import wait_for

T = TypeVar("T")

_END: Final = object()


class SyncProcess:
    """A session as others see it; each method does and raises what the one of the same name does there.

    Those that wait take a `timeout` in seconds, which raises `TimeoutError`; None waits for as long as it takes.
    """

    def __init__(self, process: SessionProcess, loop: asyncio.AbstractEventLoop) -> None:
        """`SyncSessionClient.process` is the way to get one."""
        self._process = process
        self._loop = loop

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._process.session_id

    @property
    def outcome(self) -> SessionOutcome | None:
        """Set once `result` has returned it."""
        return self._process.outcome

    # -- the end ---------------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> SessionOutcome:
        """Wait for the session's end."""
        return self._ask(lambda process: process.result(), timeout)

    def terminal_state(self) -> SessionOutcome | None:
        """The outcome if there is one."""
        return self._ask(lambda process: process.terminal_state())

    # -- events ----------------------------------------------------------------------------------------

    def events(self, after: Cursor | None = None, *, action: str | None = None) -> Iterator[SessionEvent]:
        """All events strictly after a cursor, up to the newest there is."""
        return self._each(lambda process: process.events(after, action=action))

    def recent_events(self, count: int = 10) -> list[SessionEvent]:
        """The last events, ascending."""
        return self._ask(lambda process: process.recent_events(count))

    def count_events(self, action: str, through: Cursor | None = None) -> int:
        """How many events of an action there are, up to a cursor."""
        return self._ask(lambda process: process.count_events(action, through))

    def await_event(
        self, action: str, after: Cursor | None = None, timeout: float | None = None
    ) -> SessionEvent | None:
        """Wait for the first event of an action strictly after a cursor, one of the past included."""
        return self._ask(lambda process: process.await_event(action, after), timeout)

    def watch(self, after: Cursor | None = None) -> Iterator[SessionEvent]:
        """A live feed of events, best effort, until the session has ended."""
        return self._each(lambda process: process.watch(after))

    # -- control ---------------------------------------------------------------------------------------

    def request_cancel(self, reason: str | None = None) -> CancelRequested:
        """Ask the session to end as cancelled."""
        return self._ask(lambda process: process.request_cancel(reason))

    def request_abandon(self, *, by: str, reason: str) -> AbandonRequested:
        """Say that the session's owner is gone."""
        return self._ask(lambda process: process.request_abandon(by=by, reason=reason))

    def set_external_ref(self, external_ref: str) -> str:
        """Note once what the session is called elsewhere."""
        return self._ask(lambda process: process.set_external_ref(external_ref))

    # -- what the methods share ------------------------------------------------------------------------

    def _ask(self, ask: Callable[[SessionProcess], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(timeout):
                return await ask(self._process)

        return wait_for(self._loop, bounded)

    def _each(self, feed: Callable[[SessionProcess], Any]) -> Iterator[T]:
        """Iterate in this thread over what comes on the client's loop; nothing is asked ahead of the reader."""
        coming: AsyncGenerator[T, None] = feed(self._process)

        async def following() -> Any:
            return await anext(coming, _END)

        try:
            while (event := wait_for(self._loop, following)) is not _END:
                yield cast(T, event)
        finally:
            if not self._loop.is_closed():
                wait_for(self._loop, lambda: _closed(coming))


class SyncGrants:
    """`Grants` for threads: who may address which session."""

    def __init__(self, grants: Grants, loop: asyncio.AbstractEventLoop) -> None:
        """`SyncSessionClient.grants` is the way to get it."""
        self._grants = grants
        self._loop = loop

    def grant(self, holder: str, *sessions: str, descriptor: str = "", only_first: bool = False) -> int:
        """Let a holder address sessions; returns how many grants are new or changed."""
        return self._wait(lambda: self._grants.grant(holder, *sessions, descriptor=descriptor, only_first=only_first))

    def revoke(self, holder: str, *sessions: str) -> int:
        """Take grants back; returns how many there were."""
        return self._wait(lambda: self._grants.revoke(holder, *sessions))

    def transfer(self, from_holder: str, to_holder: str, *sessions: str) -> int:
        """Move grants to another holder; returns how many moved."""
        return self._wait(lambda: self._grants.transfer(from_holder, to_holder, *sessions))

    def delete_holder(self, holder: str) -> DeletedHolder:
        """Revoke everything that a holder has."""
        return self._wait(lambda: self._grants.delete_holder(holder))

    def list(self, holder: str, *, live_only: bool = False) -> Listed:
        """What a holder may address."""
        return self._wait(lambda: self._grants.list(holder, live_only=live_only))

    def holders(self, session_id: str) -> Listed:
        """Who may address a session."""
        return self._wait(lambda: self._grants.holders(session_id))

    def holds(self, holder: str, session_id: str) -> bool:
        """Whether a holder may address a session."""
        return self._wait(lambda: self._grants.holds(holder, session_id))

    def check(self, holder: str, session_id: str) -> None:
        """That a holder may address a session."""
        self._wait(lambda: self._grants.check(holder, session_id))

    def deleted(self, holder: str) -> bool:
        """Whether a holder was deleted, and has been granted nothing since."""
        return self._wait(lambda: self._grants.deleted(holder))

    def _wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return wait_for(self._loop, call)


async def _closed(coming: AsyncGenerator[Any, None]) -> None:
    await coming.aclose()
