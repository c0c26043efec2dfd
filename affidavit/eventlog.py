"""The events of a session as one log: the tail that it remembers itself, and before that the evidence store (P6-P8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RawValue

from affidavit import contract
from affidavit.arguments import as_argument
from affidavit.errors import AffidavitUnavailable, EvidenceNeeded, SessionNotFound, SessionRefused
from affidavit.evidence.sources import LIFECYCLE_ACTIONS
from affidavit.evidence.text import printable
from affidavit.process_api import (
    TAIL,
    Cursor,
    EventCount,
    EventCountRequest,
    EventPage,
    EventsAfter,
    EventSummary,
    RecentEvents,
)
from affidavit.rpc import Line
from affidavit.stored import StoredSession
from affidavit.waiting import Pauses

M = TypeVar("M", bound=BaseModel)

LONG_PAUSE_S: Final = 0.8
"""So long without anything new, and it is time to ask Temporal whether there will ever be."""


class Ask(Protocol):
    """Puts a query to the session, for a bounded time."""

    def __call__(self, name: str, result_type: type[M], *args: RawValue) -> Awaitable[M]: ...


class SessionEvent(EventSummary):
    """An event in short, and the life of the session that it belongs to."""

    generation: str

    @property
    def cursor(self) -> Cursor:
        """Its place; two events are the same if their cursors are."""
        return Cursor(self.generation, self.sequence)


class EventLog:
    """Reads the events of one session.

    A life that is over is read from the store alone, so that it needs neither worker nor Temporal. One that runs is
    asked, and the store only tells what it has forgotten, or, where nobody answers, what is journaled.
    """

    def __init__(self, session_id: str, line: Line, ask: Ask, stored: StoredSession | None) -> None:
        self._session_id = session_id
        self._line = line
        self._ask = ask
        self._stored = stored
        self._over: set[str] = set()

    async def life(self, generation: str | None) -> str:
        """The life that is meant: the given one, else the newest.

        Raises:
            SessionNotFound: there is none; SessionPruned, if the newest was pruned.
        """
        newest = await self._newest(generation)
        if generation is not None:
            return generation
        if newest is not None:
            return newest
        latest = await asyncio.to_thread(self._stored.latest) if self._stored else None
        if latest is None:
            raise SessionNotFound(f"no session {printable(self._session_id)}")
        await self._check_kept(latest)
        return latest

    async def page(self, cursor: Cursor, action: str | None = None, limit: int = TAIL) -> EventPage:
        """The next events after a cursor; the page of a log that is read to its end is empty.

        Raises:
            EvidenceNeeded: the session has forgotten them, and the client has no store.
            SessionNotFound, SessionRefused, AffidavitUnavailable.
        """
        if (complete := await self._complete(cursor.generation)) is not None:
            return await self._stored_page(complete, cursor, action, limit, ended=True)
        try:
            page = await self._asked(cursor, action, limit)
        except (AffidavitUnavailable, SessionNotFound):
            if self._stored is None or not await asyncio.to_thread(self._known, self._stored, cursor.generation):
                await self._check_kept(cursor.generation)
                raise
            return await self._stored_page(self._stored, cursor, action, limit, ended=False)
        if page.held_from <= cursor.sequence + 1:
            return page
        if self._stored is None:
            raise EvidenceNeeded(
                f"events before {page.held_from} of session {printable(self._session_id)} are in the evidence store "
                "alone; give the client that store"
            )
        forgotten = await self._stored_page(self._stored, cursor, action, limit, ended=False, before=page.held_from)
        return forgotten if forgotten.events else page

    async def after(self, cursor: Cursor, action: str | None = None) -> AsyncIterator[SessionEvent]:
        """All events after a cursor, up to the last one that there is when it gets there."""
        while True:
            page = await self.page(cursor, action)
            for event in page.events:
                yield event_of(page, event)
            if not page.events:
                return
            cursor = Cursor(page.generation, page.events[-1].sequence)

    async def recent(self, generation: str, count: int) -> list[SessionEvent]:
        """The last events, ascending."""
        if (complete := await self._complete(generation)) is not None:
            last = await asyncio.to_thread(complete.last, generation)
        else:
            try:
                page = await self._asked_recent(count)
            except SessionNotFound:
                await self._check_kept(generation)
                raise
            if len(page.events) >= count or page.held_from == 0:
                return [event_of(page, event) for event in page.events]
            last = page.last
        return [event async for event in self.after(Cursor(generation, max(last - count, -1)))]

    async def count(self, generation: str, action: str, through: int | None) -> int:
        """How many events of an action there are, up to a sequence."""
        if await self._complete(generation) is None:
            request = as_argument(EventCountRequest, action=action, through=through)
            try:
                answer = await self._ask(contract.QUERY_COUNT_EVENTS, EventCount, request)
            except SessionNotFound:
                await self._check_kept(generation)
                raise
            if answer.count is not None:
                return answer.count
        if self._stored is None:
            raise EvidenceNeeded(f"only the evidence store can tell that of session {printable(self._session_id)}")
        return await asyncio.to_thread(
            lambda stored: sum(
                each.is_a(action) and (through is None or each.sequence <= through)
                for each in stored.after(generation, -1)
            ),
            self._stored,
        )

    async def first(self, cursor: Cursor, action: str) -> SessionEvent | None:
        """The first event of an action after a cursor, waited for; None if the session ended without one (P8)."""
        pauses, over = Pauses(), False
        while True:
            page = None
            try:
                page = await self.page(cursor, action, limit=1)
            except AffidavitUnavailable:
                if over:
                    raise  # else no worker, or none that can run it, for now; the caller bounds the wait
            else:
                if page.events:
                    return event_of(page, page.events[0])
                if page.ended or over:
                    return None
                if page.last > cursor.sequence:
                    cursor = Cursor(page.generation, page.last)
                    pauses.reset()
            over = await self._rest(cursor.generation, pauses, answered=page is not None)

    async def live(self, cursor: Cursor | None, generation: str) -> AsyncIterator[SessionEvent]:
        """Events as they come, best effort, without those of the end (P10).

        Only ever asks the session, and only when its reader is ready for more. What it has forgotten by then is
        skipped, so a slow reader holds up nobody.
        """
        pauses, over = Pauses(), False
        while True:
            page = None
            try:
                if cursor is None:
                    cursor = Cursor(generation, (await self._asked_recent(1)).last)
                page = await self._asked(cursor)
            except AffidavitUnavailable:
                if over:
                    return
            except SessionNotFound:
                return
            else:
                for event in page.events:
                    if event.action not in LIFECYCLE_ACTIONS:
                        yield event_of(page, event)
                if page.events:
                    cursor = Cursor(generation, page.events[-1].sequence)
                    pauses.reset()
                    continue
                if page.ended or over:
                    return
            over = await self._rest(generation, pauses, answered=page is not None)

    async def _rest(self, generation: str, pauses: Pauses, *, answered: bool) -> bool:
        """Pause before the next question. True if it will be the last: the execution is over, whatever it says itself,
        as one that was terminated does not know that it was."""
        await asyncio.sleep(pause := pauses.next())
        if answered and pause < LONG_PAUSE_S:
            return False
        with suppress(AffidavitUnavailable):  # to be asked again
            await self._newest(generation)
        return generation in self._over

    async def _newest(self, generation: str | None) -> str | None:
        """The newest life that Temporal knows; notes which are over."""
        newest = await self._line.newest()
        life = newest.raw_description.workflow_execution_info.first_run_id if newest is not None else None
        if (meant := generation or life) is not None and (
            newest is None or newest.status is not WorkflowExecutionStatus.RUNNING
        ):
            self._over.add(meant)
        return life

    async def _asked(self, cursor: Cursor, action: str | None = None, limit: int = TAIL) -> EventPage:
        request = as_argument(
            EventsAfter,
            generation=cursor.generation,
            sequence=cursor.sequence,
            action=action,
            limit=min(limit, TAIL),
        )
        return await self._ask(contract.QUERY_EVENTS_AFTER, EventPage, request)

    async def _asked_recent(self, count: int) -> EventPage:
        request = as_argument(RecentEvents, count=min(count, TAIL))
        return await self._ask(contract.QUERY_RECENT_EVENTS, EventPage, request)

    # -- the store ---------------------------------------------------------------------------------------

    async def _complete(self, generation: str) -> StoredSession | None:
        """The store, if it holds all that there will ever be of a life."""

        def look(stored: StoredSession) -> bool:
            return stored.outcome(generation) is not None or (
                generation in self._over and self._known(stored, generation)
            )

        return self._stored if self._stored is not None and await asyncio.to_thread(look, self._stored) else None

    async def _check_kept(self, generation: str) -> None:
        """Raises `SessionPruned` where that is why there is nothing of a life."""
        if self._stored is not None:
            await asyncio.to_thread(self._stored.check_kept, generation)

    def _known(self, stored: StoredSession, generation: str) -> bool:
        return next(stored.after(generation, -1), None) is not None

    async def _stored_page(
        self,
        stored: StoredSession,
        cursor: Cursor,
        action: str | None,
        limit: int,
        *,
        ended: bool,
        before: int | None = None,
    ) -> EventPage:
        def read() -> tuple[list[EventSummary], int]:
            last = cursor.sequence

            def matching() -> Iterator[EventSummary]:
                nonlocal last
                for event in stored.after(cursor.generation, cursor.sequence):
                    if before is not None and event.sequence >= before:
                        return
                    last = event.sequence
                    if event.is_a(action):
                        yield event

            return list(islice(matching(), limit)), last

        events, last = await asyncio.to_thread(read)
        return EventPage(generation=cursor.generation, events=events, held_from=0, last=last, ended=ended)


def event_of(page: EventPage, event: EventSummary) -> SessionEvent:
    """An event of a page, with the page's life."""
    return SessionEvent(**event.model_dump(), generation=page.generation)


def starting_at(generation: str, after: Cursor | None) -> Cursor:
    """The cursor to read from; the beginning of a life if none is given.

    Raises:
        SessionRefused: it belongs to another life.
    """
    if after is None:
        return Cursor(generation, -1)
    if after.generation != generation:
        raise SessionRefused(contract.REFUSED_BAD_REQUEST, "the cursor belongs to another life of the session")
    return Cursor(*after)
