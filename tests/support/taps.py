"""Stores and buses that let a test step in: at a chosen object or record, before or after it is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from activities.buses.base import Ack, BusRecord, EventBus
from affidavit.stores.base import EvidenceStore

LIMIT_S = 30.0
"""Nothing that a test waits for takes longer."""


def nothing(_: object) -> None:
    """A hook that does nothing."""


@dataclass
class TapStore:
    """An evidence store with hooks; a hook may block, raise, or look. `written` names what was really created."""

    inner: EvidenceStore
    before: Callable[[str], None] = nothing
    after: Callable[[str], None] = nothing
    reading: Callable[[str], None] = nothing
    written: list[str] = field(default_factory=list)

    def create(self, name: str, data: bytes) -> bool:
        self.before(name)
        created = self.inner.create(name, data)
        if created:
            self.written.append(name)
        self.after(name)
        return created

    def create_from_file(self, name: str, source: Path | BinaryIO) -> bool:
        self.before(name)
        created = self.inner.create_from_file(name, source)
        if created:
            self.written.append(name)
        self.after(name)
        return created

    def read(self, name: str) -> bytes:
        self.reading(name)
        return self.inner.read(name)

    def folders(self, prefix: str) -> list[str]:
        self.reading(prefix)
        return self.inner.folders(prefix)

    def list(self, prefix: str) -> list[str]:
        self.reading(prefix)
        return self.inner.list(prefix)

    @property
    def store_id(self) -> str:
        self.reading("store.id")
        return self.inner.store_id


@dataclass
class TapBus:
    """An event bus with a hook that sees what is about to be published; it may block or raise."""

    inner: EventBus
    before: Callable[[Sequence[BusRecord]], object] = nothing
    after: Callable[[Sequence[BusRecord]], object] = nothing

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        await _done(self.before(records))
        acks = await self.inner.publish(records, look_up=look_up)
        await _done(self.after(records))
        return acks

    async def close(self) -> None:
        await self.inner.close()


async def _done(answer: object) -> None:
    if isinstance(answer, asyncio.Future) or asyncio.iscoroutine(answer):
        await answer


class Gate:
    """Holds the first thread that comes through until it is opened; all later ones pass."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def hold(self) -> None:
        if not self._reached.is_set():
            self._reached.set()
            self._opened.wait(LIMIT_S)

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        """Wait until a thread is held."""
        assert await asyncio.to_thread(self._reached.wait, LIMIT_S), "nobody came to the gate"


class Outage:
    """Raises for every call while it lasts, and tells when somebody has met it often enough."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error
        self._lasts = True
        self._changed = threading.Condition()
        self.met = 0

    def strike(self) -> None:
        with self._changed:
            if not self._lasts:
                return
            self.met += 1
            self._changed.notify_all()
        raise self._error()

    def end(self) -> None:
        with self._changed:
            self._lasts = False

    async def met_times(self, times: int) -> None:
        """Wait until so many calls have failed."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: self.met >= times, LIMIT_S)

        assert await asyncio.to_thread(wait), f"met {self.met} times, not {times}"
