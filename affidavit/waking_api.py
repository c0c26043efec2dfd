"""Wakes between sessions: names on the wire, what a session answers, and what passes to its activities (P18).

A `wake` step of one session becomes a step of another one. The event of the sender has the id of the wake; what is
sent is `affidavit.steps.Woken`, in a signal of its own.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel

from affidavit.steps import WakeSource

SIGNAL_WOKEN: Final = "woken"
SIGNAL_ACK_WAKE: Final = "ack_wake"
QUERY_WAKES_AFTER: Final = "wakes_after"
ACTIVITY_LOCATE: Final = "locate_wake_targets"
ACTIVITY_DELIVER: Final = "deliver_wakes"

WAKE_BYTES: Final = 64 * 1024
"""A wake step as text, at most: it is a nudge, and waits in the state of the sender until it is delivered."""

WAKES_LISTED: Final = 64
"""Unacknowledged wakes that a session lists; the event log has all of them."""
WAKE_INPUT_BYTES: Final = 3 * 1024
"""Inputs that stand in that list, all together; the others stand in the captures alone."""
WAKE_SENDERS: Final = 128
"""Sessions whose last wakes are remembered, so that none is taken twice."""
WAKES_KNOWN_OF_SENDER: Final = 32
"""So many of each: what two rounds of its delivery hold. A repeat comes from a round that is tried again."""
WAKES_KNOWN: Final = 512
"""So many of all senders."""

OUTBOX_WAKES: Final = 64
OUTBOX_BYTES: Final = 256 * 1024
"""With so much undelivered the session cuts no further batch."""
DELIVERED_AT_ONCE: Final = 16
WAKE_LAPSE_S: Final = 600
"""For how long a wake is tried whose target lives but takes nothing."""

Found = Literal["missing", "deleted"]


class LocateRequest(BaseModel):
    """Wake targets as they were given: a session id, or `id#generation` for one life of it."""

    targets: list[str]


class LocateResult(BaseModel):
    """Lives by target; of the others why there is none: no such session runs, or the holder was deleted."""

    generations: dict[str, str] = {}
    absent: dict[str, Found] = {}


class WakeToDeliver(BaseModel):
    """One wake on its way; `step` is the step as it was reported, to the letter."""

    wake_id: str
    sequence: int
    target: str
    generation: str
    step: str


class DeliverRequest(BaseModel):
    """Wakes of one session in order; which session that is, the activity has from Temporal."""

    generation: str
    wakes: list[WakeToDeliver]


class DeliverResult(BaseModel):
    """Wake ids by what became of them; those in neither list are to be tried again."""

    delivered: list[str] = []
    missing: list[str] = []


class WakeNote(BaseModel):
    """One unacknowledged wake; `sequence` is its event in this session's log.

    `input_json`: the input as JSON text, in ASCII, because it may hold what no other JSON does; None if it is too large
    for the list. It stands in the capture of that event.
    """

    sequence: int
    wake_id: str
    source: WakeSource
    input_json: str | None = None

    @property
    def input(self) -> Any:
        """The input; None where it was left out, as for an input that is null."""
        return None if self.input_json is None else json.loads(self.input_json)

    @property
    def input_omitted(self) -> bool:
        """Whether the input stands in the capture alone."""
        return self.input_json is None


class WakesResult(BaseModel):
    """Answer of `wakes_after`.

    `unlisted`: unacknowledged wakes beyond what the list holds, to be found in the event log. `target`: whom this
    session wakes by default, if anybody. `undelivered`: wakes of this session whose target lived but took nothing.
    """

    wakes: list[WakeNote] = []
    unlisted: int = 0
    target: str | None = None
    undelivered: int = 0
