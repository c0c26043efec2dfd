"""What refuses an update before it is accepted, each refusal with a stable type (design.md 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn, TypeVar

from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from affidavit import contract
from affidavit.contract import Limits
from workflows.consumer import Consumer
from workflows.inbox import Inbox, Item, Message, Reply
from workflows.messages import Unreadable, read_model
from workflows.refusing import refuse as refuse
from workflows.state import SessionState
from workflows.turns import Turns

M = TypeVar("M", bound=BaseModel)


def check_model(raw: RawValue, model: type[M]) -> M:
    """An argument as a model; refused if it is none."""
    try:
        return read_model(raw.payload, model)
    except Unreadable as error:
        refuse(contract.REFUSED_BAD_REQUEST, str(error))


class Guards:
    """The bounds of a session, and how many updates wait. Read-only, but for that count."""

    def __init__(self, limits: Limits, state: SessionState, inbox: Inbox, turns: Turns) -> None:
        self._turns = turns
        self._limits = limits
        self._state = state
        self._inbox = inbox
        self.waiting = 0
        self._line: list[object] = []

    def live(self) -> None:
        """Refuse on a session that is closing or whose capture is incomplete."""
        self.unclosed()
        if self._state.poisoned is not None:
            refuse(contract.REFUSED_INCOMPLETE, f"capture is incomplete: {self._state.poisoned}")

    def unclosed(self) -> None:
        """Refuse on a session that is closing."""
        if self._state.closing:
            refuse(contract.REFUSED_CLOSING, "session is closing")

    def ended(self) -> NoReturn:
        """Refuse what comes once the chain is complete: how the session ends is settled."""
        refuse(contract.REFUSED_ENDED, "session has ended")

    def queue(self) -> None:
        """Refuse while as many steps wait as the queue holds."""
        if self._inbox.depth >= self._limits.queue:
            refuse(contract.REFUSED_QUEUE_FULL, f"queue full: {self._inbox.depth} steps waiting")

    def slots(self, open_attempts: int) -> None:
        """Refuse while as many attempts are open as there are response slots."""
        if open_attempts >= self._limits.response_slots:
            refuse(contract.REFUSED_SLOTS_FULL, f"response slots full: {open_attempts} attempts open")

    def places(self, consumer: Consumer) -> None:
        """Refuse what would have to wait, while the run is handed on or as many wait as may."""
        if consumer.rolling:
            refuse(contract.REFUSED_ROLLING_OVER, "the run is being handed on; ask again")
        if self.waiting >= contract.WAITING_UPDATES:
            refuse(contract.REFUSED_BUSY, f"{self.waiting} updates are waiting already")

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait in one of the places."""
        with self.place():
            await self._turns.wait(condition)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the places for as long as the block lasts."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @asynccontextmanager
    async def in_line(self, consumer: Consumer, payload: Payload) -> AsyncIterator[None]:
        """Check a submission, and let it in behind those that were accepted before it.

        Whether its check is answered before a later update is heard of is one thing now and may be another in a replay.
        """
        own = object()
        self._line.append(own)
        try:
            with self.place():
                waited = await consumer.custom_events.check_submission(payload)
                if waited:
                    self._turns.speak()
                if self._line[0] is not own:
                    waited = True
                    await self._turns.wait(lambda: self._line[0] is own)
            if waited:
                self.live()  # it may have been closed meanwhile
            yield
        finally:
            self._line.remove(own)

    async def journaled(self, items: list[Item], consumer: Consumer) -> None:
        """Wait until the journal holds what was enqueued, or it is certain that it never will."""
        last = items[-1]
        await self.wait(lambda: consumer.processed > last.ticket)
        self._check_journaled(items)

    async def read_and_journaled(self, message: Message, reply: Reply, consumer: Consumer) -> list[Item]:
        """The same for a submission that is read when its turn comes; returns its items."""
        await self.wait(lambda: consumer.processed > message.ticket)
        if reply.refused is not None:
            refuse(contract.REFUSED_BAD_REQUEST, reply.refused)
        self._check_journaled(reply.items)
        return reply.items

    def _check_journaled(self, items: list[Item]) -> None:
        if not items or any(item.sequence < 0 and not item.repeat and item.refused is None for item in items):
            refuse(contract.REFUSED_INCOMPLETE, f"capture is incomplete: {self._state.poisoned}")
        if refused := [item.refused for item in items if item.refused is not None]:
            refuse(contract.REFUSED_BAD_REQUEST, refused[0])
