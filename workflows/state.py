"""Everything a run of a session hands to the next run, as one model (design.md 4).

`Ledger` is what the journal proves. Only the consumer loop replaces it, as a whole and after a batch is on
disk, so that a view never shows a number that the evidence does not have. What message handlers touch stands
beside it in `SessionState`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import BaseModel

from affidavit.activity_api import (
    JournalRequest,
    LifecycleRequest,
    OpenRequest,
    SealRequest,
    SealResult,
    TrajectoryRequest,
    TrajectoryResult,
)
from affidavit.contract import REFUSED_EVENT_INTERVAL_MS, Agent, SessionOutcome, Totals
from affidavit.process_api import EventSummary
from workflows.attempts import Attempts
from workflows.breaker import BreakerState
from workflows.process import ProcessState
from workflows.producers import Producers
from workflows.wakes import Wakes

STATE_VERSION = 1
TAIL = 10


class Ledger(BaseModel):
    """What is journaled: `count` events, chained up to `head` (hex), and their sums."""

    agent: Agent
    head: str = ""
    count: int = 0
    totals: Totals = Totals()
    stop_reason_id: int = 0
    pending_estimate: int = 0
    """Tokens estimated for messages reported since the last terminal record."""
    breaker: BreakerState = BreakerState()
    steps: int = 0
    rejected: int = 0
    aborted: bool = False
    tail: list[EventSummary] = []

    def summarise(self, summary: EventSummary) -> None:
        """Append to the bounded tail; the list is replaced, because drafts share it."""
        self.tail = [*self.tail[-(TAIL - 1) :], summary]


class Pending(BaseModel):
    """A batch that was cut and decided, and is not known to be journaled; with the ledger it leads to.

    It must be written exactly so, by this run or a later one: an attempt that was given up may still write it.
    """

    request: OpenRequest | JournalRequest
    ledger: Ledger


class Ending(BaseModel):
    """How far the end of a session has come. Each request is fixed before it is first made."""

    seal: SealRequest | None = None
    sealed: SealResult | None = None
    trajectory: TrajectoryRequest | None = None
    written: TrajectoryResult | None = None
    lifecycle: LifecycleRequest | None = None
    lifecycle_written: bool = False
    outcome: SessionOutcome | None = None
    """The outcome as it will be sealed; `published` is settled last."""
    settled: bool = False


class Refusals(BaseModel):
    """Enforced refusals: at most one event a second, each counting those of its reason since the last one (C1)."""

    untold: dict[str, int] = {}
    told_ms: int = 0

    def add(self, reason: str, now_ms: int) -> dict[str, Any] | None:
        """Count a refusal. Returns the payload of an event if one is due; of the reason that has waited longest."""
        self.untold[reason] = self.untold.get(reason, 0) + 1
        if now_ms - self.told_ms < REFUSED_EVENT_INTERVAL_MS:
            return None
        self.told_ms = now_ms
        return self._tell(next(iter(self.untold)))

    def rest(self) -> list[dict[str, Any]]:
        """The payloads of what is not told yet, at the end."""
        return [self._tell(reason) for reason in list(self.untold)]

    def _tell(self, reason: str) -> dict[str, Any]:
        return {"reason": reason, "count": self.untold.pop(reason)}


class Shown(BaseModel):
    """What the search attributes said at the last transition; they survive a rollover, so it is handed on."""

    status: str
    tripped: bool = False
    waiting: str | None = None


class SessionState(BaseModel):
    """The session between two workflow tasks."""

    state_version: int = STATE_VERSION
    generation: str
    product_version: str
    trajectory_id: str
    registration_sha256: str
    runs: int = 1
    store_id: str = ""
    ledger: Ledger
    pending: Pending | None = None
    ending: Ending | None = None
    producers: Producers = Producers()
    attempts: Attempts = Attempts()
    last_admitted_ms: int = 0
    last_report_ms: int = 0
    reports: int = 0
    """How often a runtime was heard of."""
    published: int = 0
    """Events of the chain that the bus has acknowledged."""
    in_doubt_through: int = -1
    """Events up to this number may be on the bus: an earlier run did not learn what became of them."""
    opened: bool = False
    closing: bool = False
    closing_since_ms: int = 0
    cancelled: bool = False
    idle: bool = False
    poisoned: str | None = None
    repeated: int = 0
    unverified: int = 0
    late_steps: int = 0
    unprocessed: int = 0
    unprocessed_sha256: str = ""
    refusals: Refusals = Refusals()
    attributes: bool | None = None
    """Whether the opening activity found all search attributes; None where it did not say."""
    embedding: str = ""
    """The format that responses are embedded with in the workflow; empty: the embed activity is asked, always."""
    shown: Shown | None = None
    wakes: Wakes = Wakes()
    process: ProcessState = ProcessState()

    def admit(self, now_ms: int) -> int:
        """The time to give out now: it never runs backward in a session, whatever the clock does (B11)."""
        self.last_admitted_ms = max(self.last_admitted_ms, now_ms)
        return self.last_admitted_ms

    def hear(self, now_ms: int) -> int:
        """A runtime was heard of. Returns the time to give out for it."""
        self.last_report_ms = now_ms
        self.reports += 1
        return now_ms

    def close(self) -> None:
        """Begin the end; a repeat changes nothing."""
        if not self.closing:
            self.closing, self.closing_since_ms = True, self.last_admitted_ms

    def poison(self, why: str) -> None:
        """Mark the capture as incomplete; the first reason stands (behaviours E)."""
        self.poisoned = self.poisoned or why

    def give_up(self, steps: int, data: bytes) -> None:
        """Count a message that is not processed any more, and take it into the digest of all of those (E2)."""
        self.unprocessed += steps
        self.unprocessed_sha256 = hashlib.sha256(
            self.unprocessed_sha256.encode("ascii") + hashlib.sha256(data).digest()
        ).hexdigest()
