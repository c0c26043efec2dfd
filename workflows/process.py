"""A session as a process that others wait for, watch and end: its own state, and the rules of it (pure; P6-P14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from affidavit import contract
from affidavit.activity_api import Entry
from affidavit.process_api import (
    CUSTOM,
    REASON_CHARS,
    TAIL,
    Abandonment,
    AbandonRequest,
    AbandonRequested,
    CancelRequested,
    EventCount,
    EventCountRequest,
    EventPage,
    EventsAfter,
    EventSummary,
    Wait,
    WaitRequest,
)
from workflows.registration import Refused


class Held(NamedTuple):
    """An event in the tail. Its sequence follows from its place, and it is handed on as an array, because of 200 KB."""

    time: int
    action: str
    status_id: int
    type: str | None = None


class EventLog(BaseModel):
    """What is remembered of the events: a bounded tail up to `last`, and how many of each action there were.

    It counts from `since` on; that is above 0 only where an older version has handed the session on without it.
    """

    tail: list[Held] = []
    counts: dict[str, int] = {}
    since: int = 0
    last: int = -1
    opened_ms: int | None = None

    @property
    def held_from(self) -> int:
        """The lowest sequence in the tail; with an empty one the next to come."""
        return self.last + 1 - len(self.tail)

    def append(self, entries: Sequence[Entry]) -> None:
        """Take in events that are on disk now."""
        for entry in entries:
            if entry.sequence != self.last + 1:
                self.tail, self.counts, self.since = [], {}, entry.sequence
            self.last = entry.sequence
            if entry.action == "opened":
                self.opened_ms = entry.time
            type_ = entry.payload["type"] if entry.action == CUSTOM else None
            self._count(entry.action)
            if type_ is not None:
                self._count(f"{CUSTOM}:{type_}")
            self.tail.append(Held(entry.time, entry.action, entry.status_id, type_))
        del self.tail[:-TAIL]

    def after(self, request: EventsAfter, generation: str, *, ended: bool) -> EventPage:
        """Events after a cursor, of those that are held (P6)."""
        found = [each for each in self._held() if each.sequence > request.sequence and each.is_a(request.action)]
        return self._page(found[: request.limit], generation, ended=ended)

    def recent(self, count: int, generation: str, *, ended: bool) -> EventPage:
        """The last events."""
        return self._page(self._held()[-count:], generation, ended=ended)

    def count(self, request: EventCountRequest, generation: str) -> EventCount:
        """How many events of an action there are up to a sequence; unknown below what is held."""
        through = self.last if request.through is None else request.through
        if self.since > 0 or through < self.held_from - 1:
            return EventCount(generation=generation, count=None)
        later = sum(each.sequence > through and each.is_a(request.action) for each in self._held())
        return EventCount(generation=generation, count=self.counts.get(request.action, 0) - later)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _held(self) -> list[EventSummary]:
        first = self.held_from
        return [EventSummary(sequence=first + place, **each._asdict()) for place, each in enumerate(self.tail)]

    def _page(self, events: list[EventSummary], generation: str, *, ended: bool) -> EventPage:
        return EventPage(generation=generation, events=events, held_from=self.held_from, last=self.last, ended=ended)


class ProcessState(BaseModel):
    """What a run hands on of it: under 20 KB, most of it the tail."""

    waiting: Wait | None = None
    external_ref: str | None = None
    cancel: CancelRequested | None = None
    abandon: AbandonRequested | None = None
    abandon_reports: int = 0
    """How often a runtime had been heard of when that was asked for."""
    abandoned_ms: int | None = None
    """When the request took effect."""
    log: EventLog = EventLog()

    # Each of these returns the payload of the event that tells of the change; None where nothing changes.

    def set_wait(self, request: WaitRequest, now_ms: int) -> dict[str, Any] | None:
        """The session waits for something; another wait takes the place of an earlier one (P14)."""
        if self.waiting is not None and (self.waiting.kind, self.waiting.name) == (request.kind, request.name):
            return None
        self.waiting = Wait(kind=request.kind, name=request.name, since=now_ms)
        return {"kind": request.kind, "name": request.name}

    def clear_wait(self) -> dict[str, Any] | None:
        """It goes on."""
        waited, self.waiting = self.waiting, None
        return None if waited is None else {"kind": waited.kind, "name": waited.name}

    def request_cancel(self, reason: str | None, now_ms: int) -> dict[str, Any] | None:
        """Somebody asks it to end as cancelled; the first reason stands (P11)."""
        if self.cancel is not None:
            return None
        self.cancel = CancelRequested(time=now_ms, reason=None if reason is None else reason[:REASON_CHARS])
        return self.cancel.model_dump(include={"reason"}, exclude_none=True)

    def request_abandon(self, request: AbandonRequest, now_ms: int, reports: int) -> dict[str, Any] | None:
        """Somebody says that its owner is gone; the first word stands (P12)."""
        if self.abandon is not None:
            return None
        self.abandon_reports = reports
        self.abandon = AbandonRequested(time=now_ms, by=request.by, reason=request.reason[:REASON_CHARS])
        return {"by": self.abandon.by, "reason": self.abandon.reason}

    def check_external_ref(self, external_ref: str) -> None:
        """That it may be called so.

        Raises:
            Refused: it is called otherwise already (P13).
        """
        if self.external_ref not in (None, external_ref):
            raise Refused(contract.REFUSED_EXTERNAL_REF, "the session has another external_ref already")

    def owner_is_silent(self, reports: int) -> bool:
        """Whether its owner was said to be gone, and has not been heard of since."""
        return self.abandon is not None and reports == self.abandon_reports

    def abandon_due(self, last_report_ms: int, lapse_ms: int) -> int | None:
        """When a request takes effect if nothing more is reported; None if nobody has asked."""
        return None if self.abandon is None else max(self.abandon.time, last_report_ms) + lapse_ms

    def abandonment(self) -> Abandonment | None:
        """By whom, when and why it was abandoned; None if it was not."""
        if self.abandon is None or self.abandoned_ms is None:
            return None
        return Abandonment(
            by=self.abandon.by, at=self.abandoned_ms, why=self.abandon.reason, requested_at=self.abandon.time
        )
