"""What has to be compared, in a SQLite database in a temporary file, so that memory grows with nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE lives (stem TEXT, generation TEXT, ended INTEGER, PRIMARY KEY (stem, generation)) WITHOUT ROWID;
CREATE TABLE bus (stem TEXT, generation TEXT, sequence INTEGER, digest BLOB, session TEXT);
CREATE INDEX bus_by_life ON bus (stem, generation, sequence);
CREATE TABLE journal (sequence INTEGER, digest BLOB, time INTEGER, chained INTEGER);
CREATE INDEX journal_by_sequence ON journal (sequence);
BEGIN;
"""
_JOURNAL_DOUBLED = "SELECT sequence, count(*) FROM journal GROUP BY sequence HAVING count(*) > 1 ORDER BY sequence"
_JOURNAL_HELD = "SELECT DISTINCT sequence FROM journal ORDER BY sequence"
_BUS_DOUBLED = (
    "SELECT sequence, count(*) FROM bus WHERE stem = ? AND generation = ?"
    " GROUP BY sequence HAVING count(*) > 1 ORDER BY sequence"
)
_BUS_HELD = "SELECT DISTINCT sequence FROM bus WHERE stem = ? AND generation = ? ORDER BY sequence"
_BEHIND = (
    "SELECT sequence, max(time) FROM journal"
    " WHERE sequence > (SELECT coalesce(max(sequence), -1) FROM bus WHERE stem = ? AND generation = ?)"
    " GROUP BY sequence ORDER BY sequence"
)
_SURPLUS = (
    "SELECT DISTINCT sequence FROM bus WHERE stem = ? AND generation = ?"
    " AND sequence NOT IN (SELECT sequence FROM journal) ORDER BY sequence"
)
_DIFFERING = (
    "SELECT DISTINCT sequence FROM bus WHERE stem = ? AND generation = ?"
    " AND sequence IN (SELECT sequence FROM journal) AND NOT EXISTS (SELECT 1 FROM journal"
    " WHERE journal.sequence = bus.sequence AND (journal.digest IS NULL OR journal.digest = bus.digest))"
    " ORDER BY sequence"
)
_UNKNOWN_LIVES = (
    "SELECT session, generation, min(sequence), max(sequence), count(*) FROM bus WHERE NOT EXISTS"
    " (SELECT 1 FROM lives WHERE lives.stem = bus.stem AND lives.generation = bus.generation)"
    " GROUP BY stem, generation ORDER BY session, generation"
)


class Scratch:
    """All lives, all events of the bus, and the journal of the one life that is looked at. Close it after use."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Give the temporary file back."""
        self._database.close()

    # -- lives ----------------------------------------------------------------------------------------

    def add_life(self, stem: str, generation: str, *, ended: bool) -> None:
        """A folder of a generation; the first word on it stands."""
        self._database.execute("INSERT OR IGNORE INTO lives VALUES (?, ?, ?)", (stem, generation, ended))

    def lives(self) -> Iterator[tuple[str, str, bool]]:
        """Stem, generation and whether it had ended, in the order of the folders."""
        for stem, generation, ended in self._query("SELECT * FROM lives ORDER BY stem, generation"):
            yield stem, generation, bool(ended)

    def unknown_lives(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Lives that only the bus has: session, generation, first and last sequence, number of records."""
        yield from self._query(_UNKNOWN_LIVES)

    # -- the journal of one life ----------------------------------------------------------------------

    def start_journal(self) -> None:
        """Forget the journal of the life before."""
        self._database.execute("DELETE FROM journal")

    def add_event(self, sequence: int, digest: bytes, time: int, *, chained: bool) -> None:
        """An event of the journal, or with `chained` false one numbered after the chain."""
        self._database.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (sequence, digest, time, chained))

    def add_unreadable(self, sequence: int | None, *, chained: bool) -> None:
        """An event that is there but cannot be read: no gap, and compared with nothing."""
        self._database.execute("INSERT INTO journal VALUES (?, NULL, 0, ?)", (sequence, chained))

    def has_journal(self) -> bool:
        """Whether there is any event of the life."""
        return next(self._query("SELECT 1 FROM journal LIMIT 1"), None) is not None

    def journal_sequences(self) -> Iterator[int]:
        """The numbers there are, ascending."""
        return self._sequences(_JOURNAL_HELD)

    def doubled_in_journal(self) -> Iterator[tuple[int, int]]:
        """Numbers that stand there more than once, and how often."""
        yield from self._query(_JOURNAL_DOUBLED)

    # -- the bus, and the two against each other ------------------------------------------------------

    def add_record(self, stem: str, generation: str, sequence: int, digest: bytes, session: str) -> None:
        """An event on the bus; `session` is its id as it can be shown."""
        self._database.execute("INSERT INTO bus VALUES (?, ?, ?, ?, ?)", (stem, generation, sequence, digest, session))

    def bus_sequences(self, stem: str, generation: str) -> Iterator[int]:
        """The numbers of a life that are on the bus, ascending."""
        return self._sequences(_BUS_HELD, stem, generation)

    def doubled_on_bus(self, stem: str, generation: str) -> Iterator[tuple[int, int]]:
        """Numbers that stand there more than once, and how often."""
        yield from self._query(_BUS_DOUBLED, stem, generation)

    def behind(self, stem: str, generation: str) -> Iterator[tuple[int, int]]:
        """Events of the journal past the last one on the bus: number and time."""
        yield from self._query(_BEHIND, stem, generation)

    def surplus(self, stem: str, generation: str) -> Iterator[int]:
        """Numbers that only the bus has."""
        return self._sequences(_SURPLUS, stem, generation)

    def differing(self, stem: str, generation: str) -> Iterator[int]:
        """Numbers under which the bus has another event than the journal."""
        return self._sequences(_DIFFERING, stem, generation)

    def _query(self, sql: str, *arguments: Any) -> Iterator[Any]:
        yield from self._database.execute(sql, arguments)

    def _sequences(self, sql: str, *arguments: Any) -> Iterator[int]:
        for (sequence,) in self._query(sql, *arguments):
            yield sequence


def ranges(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    first = last = None
    for sequence in sequences:
        if first is None or last is None:
            first = sequence
        elif sequence != last + 1:
            yield first, last
            first = sequence
        last = sequence
    if first is not None and last is not None:
        yield first, last


def gaps(sequences: Iterable[int], through: int) -> Iterator[tuple[int, int]]:
    """What ascending numbers leave out, from 0 to the last of them and at least to `through`."""
    expected = 0
    for sequence in sequences:
        if sequence > expected:
            yield expected, sequence - 1
        expected = sequence + 1
    if expected <= through:
        yield expected, through
