"""What an audit has to say, and what it has looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from affidavit.evidence.text import printable

Kind: TypeAlias = Literal[
    "open",  # the only one that is no finding
    "open_or_abandoned",
    "missing",
    "differs",
    "duplicate",
    "gap",
    "not_on_bus",
    "not_in_journal",
    "orphan_captures",
    "misplaced",
    "unreadable",
    "half_pruned",
]

BUS: Final = "bus"
"""Stands for the session where a finding is about the bus itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the audit has to say; the texts are safe to show.

    `session` is the id, or the stem of its folder where nothing readable tells the id.
    """

    kind: Kind
    session: str
    generation: str
    what: str


Findings: TypeAlias = Iterator[Finding]


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    sessions: int = 0
    generations: int = 0
    open: int = 0
    pruned: int = 0
    journal_events: int = 0
    bus_events: int | None = None
    findings: int = 0


def events_are(first: int, last: int, count: int | None = None) -> str:
    """Subject and verb of a sentence about a range of events, of which `count` records stand there (default: each)."""
    count = last - first + 1 if count is None else count
    if first == last:
        return f"event {first} is" if count == 1 else f"{count} events {first} are"
    return f"events {first}-{last} are" if count == last - first + 1 else f"{count} events of {first}-{last} are"


def reason_of(error: Exception) -> str:
    """Why something could not be read, without paths of the machine."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(text, 200)
