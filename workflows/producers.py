"""What each producer has sent: repeats, conflicts and gaps by its own numbering (pure; behaviours B7).

A producer numbers its steps; the session never sorts by those numbers, it only tells by them what came twice and what
did not come. Numbers may start anywhere: below the first one nothing is missed, but a late one is still taken.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from enum import Enum, IntEnum
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ValidationInfo, field_serializer, field_validator, model_serializer, model_validator

PRODUCERS: Final = 64
RANGES: Final = 32
JUMP: Final = 10_000
MEMORY: Final = 64
_DIGEST_BYTES: Final = 8
_DIGEST_CHARS: Final = 11
"""64 bits tell a repeat from another body; all producers' digests must fit the state that a run hands on."""


class Arrival(Enum):
    """What a numbered step is."""

    NEW = "new"
    LATE = "late"
    REPEAT = "repeat"
    UNVERIFIED = "unverified"
    CONFLICT = "conflict"


class Unacceptable(Exception):
    """The numbers of this producer cannot be followed any further; the text is the reason."""


class Standing(IntEnum):
    """What has become of a gap."""

    OPEN = 0
    REPORTED = 1
    WATCHED = 2


class Gap(BaseModel):
    """Numbers `first` to `last` that did not come; `since` when that was first seen (epoch milliseconds)."""

    first: int
    last: int
    since: int
    standing: Standing = Standing.OPEN

    @model_serializer
    def _as_row(self) -> list[int]:
        # Without names: thousands of gaps must fit the state that a run hands on.
        return [self.first, self.last, self.since, int(self.standing)]

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, value: Any) -> Any:
        return dict(zip(cls.model_fields, value, strict=True)) if isinstance(value, list) else value


class Producer(BaseModel):
    """One producer: numbers `lowest` to `highest` came, but for the gaps; the highest 64 with their digests."""

    lowest: int
    highest: int
    gaps: list[Gap] = []
    digests: dict[int, str] = {}

    @field_serializer("digests")
    def _joined(self, digests: dict[int, str]) -> str:
        # Without their numbers: those are the highest that came.
        return "".join(digests[number] for number in islice(_came(self.lowest, self.highest, self.gaps), len(digests)))

    @field_validator("digests", mode="before")
    @classmethod
    def _split(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        parts = [value[place : place + _DIGEST_CHARS] for place in range(0, len(value), _DIGEST_CHARS)]
        return dict(zip(_came(**info.data), parts, strict=False))


def body_digest(step: dict[str, Any]) -> str:
    """A short digest of a step, whatever the order in which its keys were written."""
    text = json.dumps(step, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode("ascii")).digest()[:_DIGEST_BYTES]
    return base64.b64encode(digest)[:_DIGEST_CHARS].decode("ascii")


class Producers(BaseModel):
    """All producers of a session, by name."""

    known: dict[str, Producer] = {}

    def arrive(self, name: str, number: int, digest: str, now_ms: int) -> Arrival:
        """Take a numbered step in.

        Args:
            name, number: the step's `producer` and `producer_seq`.
            digest: from `body_digest`.
            now_ms: admitted time of the step.

        Raises:
            Unacceptable: a 65th producer, a jump over 10 000, or a 33rd gap; nothing has changed then.
        """
        producer = self.known.get(name)
        if producer is None:
            if len(self.known) >= PRODUCERS:
                raise Unacceptable(f"more than {PRODUCERS} producers")
            self.known[name] = Producer(lowest=number, highest=number, digests={number: digest})
            return Arrival.NEW
        arrival = _place(producer, number, now_ms)
        if arrival is None:
            held = producer.digests.get(number)
            if held is None:
                return Arrival.UNVERIFIED
            return Arrival.REPEAT if held == digest else Arrival.CONFLICT
        producer.digests[number] = digest
        if len(producer.digests) > MEMORY:
            del producer.digests[min(producer.digests)]
        return arrival

    def has_open_gaps(self) -> bool:
        """Whether there is a gap that is not reported."""
        return bool(self._gaps(Standing.OPEN, Standing.WATCHED))

    def watch_gaps(self) -> int:
        """Watch all gaps that are open, unless some are watched already. Returns since when the last of those stands
        open, in epoch milliseconds; there is one."""
        watched = self._gaps(Standing.WATCHED) or self._gaps(Standing.OPEN)
        for _, gap in watched:
            gap.standing = Standing.WATCHED
        return max(gap.since for _, gap in watched)

    def overdue(self) -> list[tuple[str, Gap]]:
        """The gaps that were watched and are still there; they are marked as reported."""
        return self._reported(Standing.WATCHED)

    def unreported(self) -> list[tuple[str, Gap]]:
        """All gaps that are not reported yet; they are marked as reported."""
        return self._reported(Standing.OPEN, Standing.WATCHED)

    def _reported(self, *standings: Standing) -> list[tuple[str, Gap]]:
        found = self._gaps(*standings)
        for _, gap in found:
            gap.standing = Standing.REPORTED
        return found

    def _gaps(self, *standings: Standing) -> list[tuple[str, Gap]]:
        return [
            (name, gap) for name, producer in self.known.items() for gap in producer.gaps if gap.standing in standings
        ]


def _came(lowest: int, highest: int, gaps: list[Gap]) -> Iterator[int]:
    """The numbers that came, the highest first."""
    for gap in sorted(gaps, key=lambda gap: gap.first, reverse=True):
        yield from range(highest, gap.last, -1)
        highest = gap.first - 1
    yield from range(highest, lowest - 1, -1)


def _place(producer: Producer, number: int, now_ms: int) -> Arrival | None:
    """Where a number belongs; None if it has come before."""
    if number > producer.highest:
        _open(producer, producer.highest + 1, number - 1, now_ms)
        producer.highest = number
        return Arrival.NEW
    if number < producer.lowest:
        _open(producer, number + 1, producer.lowest - 1, now_ms)
        producer.lowest = number
        return Arrival.LATE
    for place, gap in enumerate(producer.gaps):
        if gap.first <= number <= gap.last:
            _fill(producer, place, gap, number)
            return Arrival.LATE
    return None


def _open(producer: Producer, first: int, last: int, now_ms: int) -> None:
    if last < first:
        return
    if last - first >= JUMP:
        raise Unacceptable(f"a jump over {JUMP} numbers")
    if len(producer.gaps) >= RANGES:
        raise Unacceptable(f"more than {RANGES} gaps")
    producer.gaps.append(Gap(first=first, last=last, since=now_ms))


def _fill(producer: Producer, place: int, gap: Gap, number: int) -> None:
    parts = [
        gap.model_copy(update={"first": first, "last": last})
        for first, last in ((gap.first, number - 1), (number + 1, gap.last))
        if first <= last
    ]
    if len(producer.gaps) - 1 + len(parts) > RANGES:
        raise Unacceptable(f"more than {RANGES} gaps")
    producer.gaps[place : place + 1] = parts
