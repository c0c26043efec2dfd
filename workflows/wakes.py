"""What a session knows of wakes: those that came and are not acknowledged, and those that are to go out (pure; P18)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from affidavit.activity_api import Entry
from affidavit.steps import WakeSource
from affidavit.waking_api import (
    OUTBOX_BYTES,
    OUTBOX_WAKES,
    WAKE_INPUT_BYTES,
    WAKE_SENDERS,
    WAKES_KNOWN,
    WAKES_KNOWN_OF_SENDER,
    WAKES_LISTED,
    WakeNote,
    WakesResult,
)


class Wakes(BaseModel):
    """The part of a session's state that is about wakes; under 40 KB, and 5 KB from an earlier version."""

    target: str | None = None
    """Whom this session wakes by default."""
    listed: list[WakeNote] = []
    unlisted: int = 0
    taken: dict[str, list[str]] = {}
    """By sender, the last wakes that came from it; the sender heard of last, and its wake heard of last, stand last."""
    marks: dict[str, int] = {}
    """What earlier versions kept instead: by sender, the event of its last wake. Handed on, and no longer added to."""
    undelivered: int = 0

    def take(self, source: WakeSource, wake_id: str) -> bool:
        """Whether a delivered wake is new. A sender delivers in the order of its events, some of them twice.

        Known by ids, not by the greatest sequence: whoever can send a signal could name one that no wake ever reaches,
        and the sender's own wakes would all be repeats. An id that does not exist yet cannot be named.
        """
        sender = _short(f"{source.session_id}#{source.generation}", 16)
        wake = _short(wake_id, 10)
        known = self.taken.pop(sender, [])
        self.taken[sender] = known
        if wake in known or source.sequence <= self.marks.get(sender, -1):
            return False
        known.append(wake)
        del known[:-WAKES_KNOWN_OF_SENDER]
        while len(self.taken) > WAKE_SENDERS:
            del self.taken[next(iter(self.taken))]
        while sum(map(len, self.taken.values())) > WAKES_KNOWN:
            oldest = next(iter(self.taken))
            del self.taken[oldest][0]
            if not self.taken[oldest]:
                del self.taken[oldest]
        return True

    def came(self, sequence: int, step: dict[str, Any]) -> None:
        """List a wake whose event is journaled."""
        if len(self.listed) >= WAKES_LISTED:
            self.unlisted += 1
            return
        source = WakeSource.model_validate(step["source"])
        text: str | None = json.dumps(step["input"], ensure_ascii=True, separators=(",", ":"))
        if len(text or "") + sum(len(note.input_json or "") for note in self.listed) > WAKE_INPUT_BYTES:
            text = None
        note = WakeNote(sequence=sequence, wake_id=step["wake_id"], source=source, input_json=text)
        self.listed = [*self.listed, note]

    def acknowledge(self, through: int) -> None:
        """Forget the wakes up to an event; a repeat changes nothing."""
        before = len(self.listed)
        self.listed = [note for note in self.listed if note.sequence > through]
        if before and not self.listed:
            # Those that found no room came later than all that were listed; whoever is told of them reads the log.
            self.unlisted = 0

    def after(self, sequence: int) -> WakesResult:
        """What is not acknowledged, of events strictly after one."""
        return WakesResult(
            wakes=[note for note in self.listed if note.sequence > sequence],
            unlisted=self.unlisted,
            target=self.target,
            undelivered=self.undelivered,
        )

    def clear(self, target: str) -> None:
        """Stop waking a target by default: as a holder it was deleted (P16)."""
        if self.target == target:
            self.target = None


class Outgoing(BaseModel):
    """A wake that is journaled and not delivered; `generation` is the life that it goes to, once that is known.

    `waited_s`: for how long its delivery has paused, in seconds.
    """

    wake_id: str
    sequence: int
    target: str
    step: str
    waited_s: float = 0.0
    generation: str | None = None


class Outbox:
    """Wakes to deliver, in the order of their events. Those of a run that ends are handed on."""

    def __init__(self, wakes: list[Outgoing]) -> None:
        self.wakes = wakes

    @property
    def has_room(self) -> bool:
        """Whether the wakes of another batch may come in."""
        return len(self.wakes) < OUTBOX_WAKES and sum(len(wake.step) for wake in self.wakes) < OUTBOX_BYTES

    def put(self, entry: Entry, step: str) -> None:
        """Take in a wake whose event is journaled; one without a target is an event and nothing else."""
        if (target := entry.payload.get("target")) is not None:
            self.wakes.append(
                Outgoing(
                    wake_id=entry.payload["wake_id"],
                    sequence=entry.sequence,
                    target=target,
                    step=step,
                )
            )

    def settle(self, wake_ids: set[str]) -> None:
        """Take out what is done with."""
        self.wakes = [wake for wake in self.wakes if wake.wake_id not in wake_ids]


def _short(text: str, digits: int) -> str:
    # Short: whoever looks for a collision could as well forge the wake itself.
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
