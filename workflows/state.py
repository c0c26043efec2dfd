"""Everything a run of a session hands to the next run, as one model (design.md 4).

`Ledger` is what the journal proves. Only the consumer loop replaces it, as a whole and after a batch is on
disk, so that a view never shows a number that the evidence does not have. What message handlers touch stands
beside it in `SessionState`.
"""

from __future__ import annotations

from pydantic import BaseModel

from affidavit.contract import Agent, EventSummary, Totals
from workflows.breaker import BreakerState

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


class SessionState(BaseModel):
    """The session between two workflow tasks."""

    state_version: int = STATE_VERSION
    generation: str
    product_version: str
    trajectory_id: str
    registration_sha256: str
    store_id: str = ""
    ledger: Ledger
    last_admitted_ms: int = 0
    published: int = 0
    """Events of the chain that the bus has acknowledged."""
    opened: bool = False
    closing: bool = False
    cancelled: bool = False
    poisoned: str | None = None
    repeated: int = 0
    late_steps: int = 0
    unprocessed: int = 0
    refusals_unreported: int = 0
    last_refusal_ms: int = 0

    def admit(self, now_ms: int) -> int:
        """The time to give out now: it never runs backward in a session, whatever the clock does (B11)."""
        self.last_admitted_ms = max(self.last_admitted_ms, now_ms)
        return self.last_admitted_ms

    def poison(self, why: str) -> None:
        """Mark the capture as incomplete; the first reason stands (behaviours E)."""
        self.poisoned = self.poisoned or why
