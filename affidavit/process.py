"""A session as others see it: wait for its end, follow its events, ask it to end. Its runtime has a `SessionHandle`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RawValue

from affidavit import contract
from affidavit.arguments import as_argument
from affidavit.contract import SessionOutcome, TerminalState
from affidavit.errors import AffidavitUnavailable, SessionNotFound, SessionNotOpened
from affidavit.eventlog import EventLog, SessionEvent, starting_at
from affidavit.process_api import (
    AbandonRequest,
    AbandonRequested,
    CancelRequest,
    CancelRequested,
    Cursor,
    ExternalRefRequest,
    ExternalRefResult,
)
from affidavit.rpc import Line

if TYPE_CHECKING:
    from affidavit.client import SessionClient

R = TypeVar("R", bound=BaseModel)


class SessionProcess:
    """One session, addressed by its id; of a life of it where a generation is given, else of the newest.

    Safe to share between tasks of one event loop. `outcome` is set once `result` has returned it. Every wait lasts
    until what is waited for comes; its caller bounds it, as by `asyncio.timeout`.
    """

    def __init__(self, client: SessionClient, session_id: str, generation: str | None = None) -> None:
        self.session_id = session_id
        self.outcome: SessionOutcome | None = None
        self._client = client
        self._life = generation
        self._line = Line(client.temporal, session_id, generation, client.retry_timeout)
        self._log = EventLog(session_id, self._line, self._ask, client.stored(session_id))

    # -- the end ---------------------------------------------------------------------------------------

    async def result(self) -> SessionOutcome:
        """Wait for the session's end; one that has ended is answered at once, and needs no worker (P2).

        A quarantined or abandoned session has an outcome like any other; a terminated or timed-out execution reads as
        abandoned. Once Temporal has forgotten it, or has only an attempt to open it again that failed, the outcome
        sealed in the evidence store is returned, if this client shares the store.

        Raises:
            SessionNotFound: nobody knows such a session; SessionPruned, one of these, if its evidence was erased on
                purpose, as the store says that this client shares.
            SessionFailed: it ended without an outcome, as one that could not be opened.
            AffidavitUnavailable: Temporal does not answer, for longer than the client's `retry_timeout`.
            SessionRefused: type NotGranted, where the client has a holder without a grant.
        """
        await self._addressed()
        try:
            self.outcome = await self._line.result()
        except (SessionNotFound, SessionNotOpened):
            sealed = await self._client.sealed_outcome(self.session_id, self._life)
            if sealed is None:
                raise
            self.outcome = sealed
        return self.outcome

    async def terminal_state(self) -> SessionOutcome | None:
        """The outcome if the session has ended, without waiting; None while it lives (P5).

        One that runs is asked and needs a worker; the end is read from Temporal, or from the store, without one.

        Raises:
            SessionNotFound, SessionFailed: as `result`.
            AffidavitUnavailable: it runs, and no worker answers for it.
        """
        await self._addressed()
        newest = await self._line.newest()
        if newest is None or newest.status is not WorkflowExecutionStatus.RUNNING:
            return await self.result()
        return (await self._ask(contract.QUERY_TERMINAL_STATE, TerminalState)).outcome

    # -- events ----------------------------------------------------------------------------------------

    async def events(self, after: Cursor | None = None, *, action: str | None = None) -> AsyncIterator[SessionEvent]:
        """All events strictly after a cursor, ascending, up to the newest there is (P6, P7).

        Args:
            after: from the first event on if left out.
            action: only those of this action; `event:<type>` for custom events of one type.

        Raises:
            SessionNotFound: there is no such session; SessionPruned, if it was pruned.
            EvidenceNeeded: events that the session has forgotten, and this client does not share the store.
            SessionRefused: the cursor belongs to another life.
            AffidavitUnavailable: no worker answers, and this client does not share the store.
        """
        async for event in self._log.after(starting_at(await self._generation(), after), action):
            yield event

    async def recent_events(self, count: int = 10) -> list[SessionEvent]:
        """The last events, ascending; raises as `events`."""
        return await self._log.recent(await self._generation(), count)

    async def count_events(self, action: str, through: Cursor | None = None) -> int:
        """How many events of an action there are, up to a cursor; 0 of one that nobody knows. Raises as `events`."""
        generation = await self._generation()
        bound = None if through is None else starting_at(generation, through).sequence
        return 0 if bound is not None and bound < 0 else await self._log.count(generation, action, bound)

    async def await_event(self, action: str, after: Cursor | None = None) -> SessionEvent | None:
        """Wait for the first event of an action strictly after a cursor, one of the past included (P8).

        It survives rollovers of the session and restarts of workers, because it asks again and again, most often right
        after something has happened; it costs the session no history.

        Returns:
            The event, or None if the session has ended without one.

        Raises:
            SessionNotFound, SessionRefused, EvidenceNeeded: as `events`.
        """
        return await self._log.first(starting_at(await self._generation(), after), action)

    async def watch(self, after: Cursor | None = None) -> AsyncIterator[SessionEvent]:
        """A live feed of events from now on, or from a cursor, until the session has ended (P10).

        Best effort: in order, but a reader that is slow misses what the session has forgotten meanwhile, and the events
        of the end (receipt, closed, …) are not in it. It never slows the session. Who needs all reads `events` at the
        end, and drops what has come already by its cursor.

        Raises:
            SessionNotFound, SessionRefused: as `events`.
        """
        generation = await self._generation()
        cursor = None if after is None else starting_at(generation, after)
        async for event in self._log.live(cursor, generation):
            yield event

    # -- control ---------------------------------------------------------------------------------------

    async def request_cancel(self, reason: str | None = None) -> CancelRequested:
        """Ask the session to end as cancelled: it takes note, drains, seals and ends (P11).

        Returns:
            The first request, whose reason stands; a second one changes nothing.

        Raises:
            SessionRefused: type SessionEnded, it is past that.
            SessionNotFound: it is not running.
            AffidavitUnavailable: no worker answered in time.
        """
        return await self._control(
            contract.UPDATE_REQUEST_CANCEL, CancelRequested, as_argument(CancelRequest, reason=reason)
        )

    async def request_abandon(self, *, by: str, reason: str) -> AbandonRequested:
        """Say that the session's owner is gone (P12).

        It ends as `abandoned` once nothing has been reported for `owner_lapse_s` after this; whatever is reported
        before that keeps it alive. Raises as `request_cancel`.

        Returns:
            The first request, which stands.
        """
        request = as_argument(AbandonRequest, by=by, reason=reason)
        return await self._control(contract.UPDATE_REQUEST_ABANDON, AbandonRequested, request)

    async def set_external_ref(self, external_ref: str) -> str:
        """Note once what the session is called elsewhere; saying the same again changes nothing (P13).

        Raises:
            SessionRefused: type ExternalRefConflict, it is called otherwise; or SessionClosing, CaptureIncomplete.
            SessionNotFound, AffidavitUnavailable.
        """
        request = as_argument(ExternalRefRequest, external_ref=external_ref)
        return (await self._control(contract.UPDATE_SET_EXTERNAL_REF, ExternalRefResult, request)).external_ref

    # -- what the methods share ------------------------------------------------------------------------

    async def _addressed(self) -> None:
        """That this client's holder, if it has one, may address the session (P15)."""
        await self._client.check_grant(self.session_id)

    async def _generation(self) -> str:
        await self._addressed()
        return await self._log.life(self._life)

    async def _control(self, name: str, result_type: type[R], *args: RawValue) -> R:
        """An update that the session answers at once, if anybody runs it."""
        await self._addressed()
        async with self._answered():
            return await self._line.update(name, result_type, *args)

    async def _ask(self, name: str, result_type: type[R], *args: RawValue) -> R:
        """A query, for a bounded time: without a worker nobody would ever answer."""
        async with self._answered():
            return await self._line.query(name, result_type, *args)

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._client.admit_timeout):
                yield
        except TimeoutError:
            raise AffidavitUnavailable(await self._client.missing()) from None
