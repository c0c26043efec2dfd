"""What is missing, doubled or out of place in an evidence store and on the embedded bus (behaviours G6).

An audit says whether the evidence is complete; whether a receipt is to be believed is for `verify`. It reads the store
folder by folder, object by object, and the bus once; what has to be compared lies in a SQLite database in a temporary
file, so that memory does not grow with either.

Sessions may be written meanwhile. Which sessions have ended is looked at first, then the bus, then the journals: so
every event on the bus is in a journal by then, and what an ended session published is on the bus. Of a session whose
last event is recent, only the newest events may still be missing on the bus.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from affidavit.buslog import BusLogError, LogRow
from affidavit.evidence.bundle import DirectoryReader, StoreReader
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    JournalRecord,
    Metadata,
    authenticate,
    domain_active,
    domain_erased,
    domain_lifecycle,
    domain_metadata,
    domain_outcome,
    domain_pruned,
    domain_trajectory,
    parse_envelope,
)
from affidavit.evidence.layout import (
    CAPTURES,
    ERASED,
    JOURNAL,
    LIFECYCLE,
    METADATA,
    OUTCOME,
    PAYLOADS,
    PROVENANCE,
    PRUNED,
    RECEIPT,
    TRAJECTORY,
    check_generation,
    is_evidence,
    number_of,
)
from affidavit.evidence.receipt import Receipt, parse
from affidavit.evidence.scalars import (
    MAX_INTEGER,
    BadSessionId,
    BadTime,
    check_session_id,
    is_uuid7,
    iso_ms,
    session_stem,
    sha256_hex,
)
from affidavit.evidence.sources import SEGMENT_LINES, count_lines, lines, optional, read_lifecycle
from affidavit.evidence.strict import read_json
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

SESSIONS: Final = "sessions"
ATTESTED: Final = ("closed", "cancelled")
STATUSES: Final = (*ATTESTED, "quarantined", "abandoned")

_STEM = re.compile(r"[0-9a-f]{32}")
_SCRATCH = """
PRAGMA journal_mode = OFF;
CREATE TABLE lives (stem TEXT, generation TEXT, ended INTEGER, PRIMARY KEY (stem, generation)) WITHOUT ROWID;
CREATE TABLE bus (stem TEXT, generation TEXT, sequence INTEGER, digest BLOB, session TEXT);
CREATE INDEX bus_by_life ON bus (stem, generation, sequence);
CREATE TABLE journal (sequence INTEGER, digest BLOB, time INTEGER, chained INTEGER);
CREATE INDEX journal_by_sequence ON journal (sequence);
BEGIN;
"""
_JOURNAL_DOUBLED = "SELECT sequence, count(*) FROM journal GROUP BY sequence HAVING count(*) > 1 ORDER BY sequence"
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


class AuditedFolder(StoreReader, Protocol):
    """A folder of evidence as an audit looks at it, on a disk or in an object store."""

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """What is right below the folder `prefix`, and whether it is a folder itself; not sorted."""

    def has(self, name: str) -> bool:
        """Whether there is anything under `name`."""

    def sha256(self, name: str) -> str:
        """Digest of an object that need not fit into memory."""

    def below(self, *names: str) -> AuditedFolder:
        """The folder below this one."""


class StoreFolder(DirectoryReader):
    """A directory of evidence, read for an audit: links and pipes are listed too, and refused when they are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._folder = root

    def list(self, prefix: str) -> list[str]:
        """Names of everything but directories below `prefix`, sorted; a hidden file is a crash's scrap, no object."""
        return sorted(self._names(self._folder / prefix, f"{prefix}/" if prefix else ""))

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """What is right below `prefix`, and whether it is a directory; not sorted."""
        with suppress(FileNotFoundError), os.scandir(self._folder / prefix) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name, entry.is_dir(follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether there is anything under `name`."""
        return os.path.lexists(self._folder / name)

    def sha256(self, name: str) -> str:
        """Digest of an object that need not fit into memory."""
        path = self._folder / name
        if path.is_symlink() or not path.is_file():
            raise EvidenceError(f"{printable(name)} is not a regular file")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def below(self, *names: str) -> StoreFolder:
        """The directory below this one."""
        return StoreFolder(self._folder.joinpath(*names))

    def _names(self, folder: Path, prefix: str) -> Iterator[str]:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._names(folder / entry.name, f"{prefix}{entry.name}/")
                else:
                    yield f"{prefix}{entry.name}"


@dataclass(slots=True)
class _Life:
    """One generation, as far as it has been read."""

    store: AuditedFolder
    stem: str
    generation: str
    ended: bool
    """Whether the outcome was there before the bus was read."""
    session_id: str | None = None
    mode: str | None = None
    opened_ms: int | None = None
    outcome: dict[str, Any] | None = None
    receipt: Receipt | None = None
    has_receipt: bool = False
    count: int = 0
    last_ms: int | None = None
    recent: bool = False
    promised: int | None = None
    """The sequence through which the events must be there, lifecycle events included."""
    captures: set[str] = field(default_factory=set)

    def say(self, kind: Kind, what: str) -> Finding:
        return Finding(kind, self.session_id or self.stem, self.generation, what)

    def unreadable(self, name: str, error: Exception) -> Finding:
        reason = _reason(error)
        return self.say("unreadable", reason if name in reason else f"{printable(name)}: {reason}")


class Audit:
    """One audit. Iterate `findings` to its end; then `counts` is complete."""

    def __init__(
        self,
        store: AuditedFolder,
        bus: Iterable[LogRow] | None,
        journal_keys: Sequence[bytes],
        *,
        now_ms: int,
        older_than_ms: int,
    ) -> None:
        """Takes what is to be audited.

        Args:
            store: the root of the evidence store.
            bus: the records of the embedded bus, read when their turn comes; None where there is no bus.
            journal_keys: the keys under which MACs are checked; without one they are not.
            now_ms: what time it is.
            older_than_ms: a session without an outcome whose last event is at most so old is taken to be alive.
        """
        self._store, self._bus, self._keys = store, bus, tuple(journal_keys)
        self._now, self._older_than = now_ms, older_than_ms
        self.counts = Counts()

    def findings(self) -> Findings:
        """Everything there is to say, session by session, in the order of their folders."""
        with closing(sqlite3.connect("", isolation_level=None)) as self._scratch:
            self._scratch.executescript(_SCRATCH)
            for finding in self._all():
                if finding.kind == "open":
                    self.counts.open += 1
                else:
                    self.counts.findings += 1
                yield finding

    def _all(self) -> Findings:
        if self._bus is not None:
            for _ in self._take_lives(seen_before_bus=True):
                pass
            yield from self._take_bus(self._bus)
        yield from self._take_lives(seen_before_bus=False)
        previous = None
        for stem, generation, ended in self._query("SELECT * FROM lives ORDER BY stem, generation"):
            self.counts.generations += 1
            self.counts.sessions += stem != previous
            previous = stem
            yield from self._life(_Life(self._store.below(SESSIONS, stem, generation), stem, generation, bool(ended)))
        yield from self._unknown_lives()

    def _query(self, sql: str, *arguments: Any) -> Iterator[Any]:
        yield from self._scratch.execute(sql, arguments)

    # -- what there is --------------------------------------------------------------------------------

    def _take_lives(self, *, seen_before_bus: bool) -> Findings:
        try:
            for stem, is_folder in self._store.entries(SESSIONS):
                if not is_folder or not _STEM.fullmatch(stem):
                    yield Finding("misplaced", printable(stem), "-", "is no folder of a session")
                    continue
                for generation, is_life in self._store.entries(f"{SESSIONS}/{stem}"):
                    if generation == PAYLOADS and is_life:
                        continue
                    if not is_life or not _is_generation(generation):
                        what = f"{printable(generation)} is no folder of a generation"
                        yield Finding("misplaced", stem, "-", what)
                        continue
                    ended = seen_before_bus and self._store.has(f"{SESSIONS}/{stem}/{generation}/{OUTCOME}")
                    self._scratch.execute("INSERT OR IGNORE INTO lives VALUES (?, ?, ?)", (stem, generation, ended))
        except OSError as error:
            yield Finding("unreadable", "-", "-", f"a folder of the evidence store: {_reason(error)}")

    def _take_bus(self, rows: Iterable[LogRow]) -> Findings:
        self.counts.bus_events = 0
        position, left = 0, iter(rows)
        while True:
            try:
                row = next(left)
            except StopIteration:
                return
            except (BusLogError, ValueError, TypeError) as error:  # headers that are no JSON end the reading too
                why = _reason(error) if isinstance(error, BusLogError) else "damaged"
                yield Finding("unreadable", BUS, "-", f"after record {position}, so it was not compared: {why}")
                self.counts.bus_events = None
                return
            position = row.position
            self.counts.bus_events += 1
            yield from self._take_row(row)

    def _take_row(self, row: LogRow) -> Findings:
        texts = (row.session_id, row.generation)
        where = f"record {row.position}"
        if not all(isinstance(text, str) for text in texts) or not isinstance(row.value, bytes):
            yield Finding("unreadable", BUS, "-", f"{where} has a column of a wrong type")
            return
        session, generation = _shown(row.session_id), printable(row.generation)
        try:
            event = read_json(row.value)
        except EvidenceError as error:
            yield Finding("unreadable", session, generation, f"{where} on the bus: {_reason(error)}")
            return
        sequence = _sequence(event)
        if sequence is None:
            yield Finding("unreadable", session, generation, f"{where} on the bus is no event with a sequence")
            return
        if event.get("session_uid") != row.session_id:
            yield Finding("misplaced", session, generation, f"event {sequence} on the bus is of another session")
        self._scratch.execute(
            "INSERT INTO bus VALUES (?, ?, ?, ?, ?)",
            (session_stem(row.session_id), row.generation, sequence, _digest(row.value), session),
        )

    def _unknown_lives(self) -> Findings:
        if self.counts.bus_events is None:
            return
        unknown = (
            "SELECT session, generation, min(sequence), max(sequence), count(*) FROM bus WHERE NOT EXISTS"
            " (SELECT 1 FROM lives WHERE lives.stem = bus.stem AND lives.generation = bus.generation)"
            " GROUP BY stem, generation ORDER BY session, generation"
        )
        for session, generation, first, last, count in self._query(unknown):
            what = f"{_events(first, last, count)} on the bus, but the store has no such generation"
            yield Finding("not_in_journal", session, printable(generation), what)

    # -- one generation -------------------------------------------------------------------------------

    def _life(self, life: _Life) -> Findings:
        self._scratch.execute("DELETE FROM journal")
        if life.store.has(PRUNED):
            yield from self._pruned(life)
            return
        try:
            life.session_id = self._id_of(life)
            # In this order: an outcome is written last of all, and an event's captures before it.
            yield from self._outcome(life)
            names = life.store.list("")
            segments = [name for name in life.store.list(JOURNAL) if is_evidence(name)]
            yield from self._metadata(life)
            life.captures = {name for name in names if name.startswith(f"{CAPTURES}/") and is_evidence(name)}
            for name in names:
                if not is_evidence(name):
                    yield life.say("misplaced", f"{printable(name)} is no object of a generation")
            for name in segments:
                yield from self._segment(life, name)
            for name in names:
                if name.startswith(f"{LIFECYCLE}/") and is_evidence(name):
                    yield from self._lifecycle(life, name)
            yield from self._receipt(life)
            yield from self._erased(life)
        except OSError as error:
            yield life.say("unreadable", f"a folder of the generation: {_reason(error)}")
            return
        if life.last_ms is None:
            life.last_ms = life.opened_ms
        # A clock that is ahead must not hide a session for ever.
        life.recent = life.last_ms is not None and abs(self._now - life.last_ms) <= self._older_than
        life.promised = self._promise(life)
        yield from self._state(life)
        yield from self._journal(life)
        yield from self._orphans(life)
        if self.counts.bus_events is not None:
            yield from self._compare(life)

    def _pruned(self, life: _Life) -> Findings:
        """What was pruned on purpose is no fault: its events stay on the bus, and its receipt may have been kept."""
        self.counts.pruned += 1
        life.session_id = self._id_of(life)
        data, failed = self._optional(life, PRUNED)
        if failed is not None:
            yield failed
        elif data is not None:
            try:
                self._payload(life, data, PRUNED)
            except EvidenceError as error:
                yield life.unreadable(PRUNED, error)
        if left := [name for name in life.store.list("") if name not in (PRUNED, RECEIPT)]:
            yield life.say("half_pruned", f"{len(left)} objects are left, such as {printable(left[0])}; prune it again")
        yield from self._receipt(life)

    def _id_of(self, life: _Life) -> str | None:
        """The id by which the generation calls itself, if it is the one whose folder this is."""
        for name, path in (
            (METADATA, ("session_id",)),
            (f"{JOURNAL}/{0:012d}.ndjson", ("event", "session_uid")),
            (PRUNED, ("session_id",)),
        ):
            try:
                value = parse_envelope(lines(life.store.read(name))[0]).payload
                for key in path:
                    value = value[key]
                if session_stem(check_session_id(value)) == life.stem:
                    return str(value)
            except (OSError, EvidenceError, LookupError, TypeError):
                continue
        return None

    def _payload(self, life: _Life, data: bytes, kind: str, index: int | None = 0) -> Any:
        """Payload of an envelope; its MAC is checked where there are keys and the session is known."""
        envelope = parse_envelope(data)
        if self._keys and life.session_id is not None:
            domain = _DOMAINS[kind](life.session_id, life.generation)
            authenticate(envelope, keys=self._keys, domain=domain, index=index)
        return envelope.payload

    def _metadata(self, life: _Life) -> Findings:
        data, failed = self._optional(life, METADATA)
        if failed is not None:
            yield failed
        elif data is None:
            yield life.say("missing", "metadata.json")
        else:
            try:
                metadata = Metadata.read(self._payload(life, data, METADATA))
            except EvidenceError as error:
                yield life.unreadable(METADATA, error)
                return
            life.mode = metadata.mode
            if is_uuid7(metadata.trajectory_id):  # the one time in there; counts where no event tells a later one
                life.opened_ms = int(metadata.trajectory_id.replace("-", "")[:12], 16)
            if life.session_id != metadata.session_id or metadata.generation != life.generation:
                yield life.say("misplaced", "metadata.json is of another session or generation")

    def _outcome(self, life: _Life) -> Findings:
        data, failed = self._optional(life, OUTCOME)
        if failed is not None:
            yield failed
        if data is None:
            return
        try:
            outcome = self._payload(life, data, OUTCOME)
        except EvidenceError as error:
            yield life.unreadable(OUTCOME, error)
            return
        count = outcome.get("event_count") if isinstance(outcome, dict) else None
        if type(count) is not int or not 0 <= count < MAX_INTEGER or outcome.get("status") not in STATUSES:
            yield life.say("unreadable", "outcome.json is no outcome")
            return
        if outcome.get("generation") != life.generation or life.session_id not in (None, outcome.get("session_id")):
            yield life.say("misplaced", "outcome.json is of another session or generation")
        life.outcome = outcome

    def _segment(self, life: _Life, name: str) -> Findings:
        first = number_of(name)
        capture_digests: list[tuple[int, str | None]] = []
        faults, fault = 0, ""
        try:
            data = life.store.read(name)
            if not data or count_lines(data) > SEGMENT_LINES:
                raise EvidenceError("empty" if not data else f"more lines than a segment has, {SEGMENT_LINES}")
        except (OSError, EvidenceError) as error:
            yield life.unreadable(name, error)
            return
        for place, line in enumerate(lines(data)):
            index, capture = first + place, None
            try:
                envelope = parse_envelope(line)
                index = envelope.index
                record = JournalRecord.read(self._payload(life, line, JOURNAL, None), index=index)
                if record.event.get("session_uid") != life.session_id and life.session_id is not None:
                    raise EvidenceError("an event of another session")
                self._take_event(life, index, record.event, chained=True)
                payload = record.event.get("payload")
                capture = payload.get("capture_sha256") if isinstance(payload, dict) else None
                capture_digests.append((index, capture))
            except EvidenceError as error:
                faults += 1
                fault = fault or f"line {place + 1}: {_reason(error)}"
                # The line stands there: it is unreadable, but no gap.
                self._scratch.execute("INSERT INTO journal VALUES (?, NULL, 0, 1)", (index,))
                capture_digests.append((-1, None))
            if place == 0 and index != first:
                yield life.say("misplaced", f"{name} starts with event {index}")
        if faults:
            more = f", and {faults - 1} more" if faults > 1 else ""
            yield life.say("unreadable", f"{name} {fault}{more}")
        captures = f"{CAPTURES}/{name.rpartition('/')[2]}"
        if captures in life.captures:
            life.captures.discard(captures)
            yield from self._captures(life, captures, capture_digests)

    def _captures(self, life: _Life, name: str, digests: list[tuple[int, str | None]]) -> Findings:
        try:
            captured = life.store.read(name)
        except (OSError, EvidenceError) as error:
            yield life.unreadable(name, error)
            return
        if count_lines(captured) != len(digests):
            yield life.say("differs", f"{name} has {count_lines(captured)} lines for {len(digests)} events")
            return
        for (sequence, digest), line in zip(digests, lines(captured), strict=True):
            if sequence >= 0 and not (line == b"{}" if digest is None else sha256_hex(line) == digest):
                yield life.say("differs", f"{name}: the capture of event {sequence} is not the one it names")

    def _lifecycle(self, life: _Life, name: str) -> Findings:
        try:
            found = read_lifecycle(life.store, name)
            self._payload(life, life.store.read(name), LIFECYCLE, found.sequence)
            if found.event.get("session_uid") != life.session_id and life.session_id is not None:
                raise EvidenceError("an event of another session")
            self._take_event(life, found.sequence, found.event, chained=False)
        except (OSError, EvidenceError) as error:
            yield life.unreadable(name, error)
            self._scratch.execute("INSERT INTO journal VALUES (?, NULL, 0, 0)", (number_of(name),))

    def _take_event(self, life: _Life, sequence: int, event: dict[str, Any], *, chained: bool) -> None:
        digest, time = _digest(canonicalize(event)), event.get("time")
        if type(time) is not int or not 0 <= time <= MAX_INTEGER:
            raise EvidenceError("an event without a time")
        self._scratch.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (sequence, digest, time, chained))
        self.counts.journal_events += 1
        if chained:
            life.count = max(life.count, sequence + 1)
        life.last_ms = time if life.last_ms is None else max(life.last_ms, time)

    def _erased(self, life: _Life) -> Findings:
        data, failed = self._optional(life, ERASED)
        if failed is not None:
            yield failed
        if data is None:
            return
        try:
            self._payload(life, data, ERASED)
        except EvidenceError as error:
            yield life.unreadable(ERASED, error)

    def _receipt(self, life: _Life) -> Findings:
        life.has_receipt = life.store.has(RECEIPT)
        data, failed = self._optional(life, RECEIPT)
        if failed is not None:
            yield failed
        if data is None:
            return
        try:
            life.receipt = parse(data)
        except EvidenceError as error:
            yield life.unreadable(RECEIPT, error)
            return
        if life.receipt.session_id != life.session_id and life.session_id is not None:
            yield life.say("misplaced", "receipt.json is of another session")

    def _promise(self, life: _Life) -> int | None:
        if life.outcome is None:
            return None
        count = int(life.outcome["event_count"])
        if life.outcome["status"] in ATTESTED:
            if life.outcome.get("mode") == "signed":
                return count + 1
            promoted = life.receipt is not None and self._now - life.receipt.issued_at > self._older_than
            return count + promoted
        return count

    def _state(self, life: _Life) -> Findings:
        """How the session ended, and whether what it left is there."""
        if life.outcome is not None:
            yield from self._named(life, life.outcome)
        elif not life.store.has(OUTCOME):
            lacking = ["no outcome"]
            if life.mode != "unsigned" and not life.has_receipt:
                lacking.insert(0, "no receipt")
            if life.mode == "unsigned" and not life.store.has(TRAJECTORY):
                lacking.insert(0, "no trajectory")
            last = "no event" if life.count == 0 else f"last event {_iso(life.last_ms)}"
            yield life.say("open" if life.recent else "open_or_abandoned", f"{', '.join(lacking)}; {last}")

    def _named(self, life: _Life, outcome: dict[str, Any]) -> Findings:
        if life.count > outcome["event_count"]:
            what = f"the outcome names {outcome['event_count']} events, the journal holds event {life.count - 1}"
            yield life.say("differs", what)
        if outcome["status"] not in ATTESTED:
            return
        if outcome.get("mode") == "signed":
            yield from self._object(life, RECEIPT, outcome.get("receipt_sha256"))
            return
        yield from self._object(life, TRAJECTORY, outcome.get("trajectory_digest"))
        data, failed = self._optional(life, PROVENANCE)
        if failed is not None:
            yield failed
        elif data is None:
            yield life.say("missing", f"{PROVENANCE}, though the outcome is {outcome['status']}")
        else:
            try:
                self._payload(life, data, PROVENANCE, None)
            except EvidenceError as error:
                yield life.unreadable(PROVENANCE, error)

    def _object(self, life: _Life, name: str, digest: object) -> Findings:
        outcome = life.outcome or {}
        if name == TRAJECTORY and not life.store.has(name) and life.store.has(ERASED):
            return
        if not life.store.has(name):
            yield life.say("missing", f"{name}, though the outcome is {outcome['status']}")
            return
        try:
            if digest is not None and life.store.sha256(name) != digest:
                yield life.say("differs", f"{name} is not the one that the outcome names")
        except (OSError, EvidenceError) as error:
            yield life.unreadable(name, error)

    def _orphans(self, life: _Life) -> Findings:
        for name in sorted(life.captures):
            # Captures are written just before their events.
            if life.recent and life.outcome is None and number_of(name) == life.count:
                continue
            yield life.say("orphan_captures", f"{name} goes with no journal segment")

    def _optional(self, life: _Life, name: str) -> tuple[bytes | None, Finding | None]:
        if not life.store.has(name):
            return None, None
        try:
            return optional(life.store, name), None
        except (OSError, EvidenceError) as error:
            return None, life.unreadable(name, error)

    # -- sequences ------------------------------------------------------------------------------------

    def _journal(self, life: _Life) -> Findings:
        yield from self._doubled(life, "in the journal", _JOURNAL_DOUBLED)
        held = self._sequences("SELECT DISTINCT sequence FROM journal ORDER BY sequence")
        chained = None if life.outcome is None else int(life.outcome["event_count"])
        for first, last in _gaps(held, -1 if life.promised is None else life.promised):
            # Numbered after the chain: a receipt, the end.
            if chained is not None and first < chained <= last:
                parts: tuple[tuple[int, int], ...] = ((first, chained - 1), (chained, last))
            else:
                parts = ((first, last),)
            for start, end in parts:
                after = "lifecycle " if chained is not None and start >= chained else ""
                yield life.say("gap", f"{after}{_events(start, end)} missing in the journal")
        nothing = next(self._query("SELECT 1 FROM journal LIMIT 1"), None) is None
        if nothing and life.promised is None and not life.recent:
            yield life.say("missing", "the opening event")

    def _compare(self, life: _Life) -> Findings:
        here = (life.stem, life.generation)
        yield from self._doubled(life, "on the bus", _BUS_DOUBLED, *here)
        for first, last in _gaps(self._sequences(_BUS_HELD, *here), -1):
            yield life.say("gap", f"{_events(first, last)} missing on the bus")
        behind = self._query(_BEHIND, *here)
        for first, last in _ranges(sequence for sequence, time in behind if not self._awaited(life, sequence, time)):
            yield life.say("not_on_bus", f"{_events(first, last)} in the journal and not on the bus")
        for first, last in _ranges(self._sequences(_SURPLUS, *here)):
            yield life.say("not_in_journal", f"{_events(first, last)} on the bus and not in the journal")
        for first, last in _ranges(self._sequences(_DIFFERING, *here)):
            yield life.say("differs", f"{_events(first, last)} on the bus with other content than in the journal")

    def _awaited(self, life: _Life, sequence: int, time: int) -> bool:
        """Whether an event may be on its way to the bus."""
        if abs(self._now - time) > self._older_than:
            return False
        # What comes after a session's end is a promotion's receipt.
        return not life.ended or life.promised is None or sequence > life.promised

    def _doubled(self, life: _Life, where: str, sql: str, *arguments: Any) -> Findings:
        for sequence, count in self._query(sql, *arguments):
            yield life.say("duplicate", f"event {sequence} stands {count} times {where}")

    def _sequences(self, sql: str, *arguments: Any) -> Iterator[int]:
        for (sequence,) in self._query(sql, *arguments):
            yield sequence


_DOMAINS: Final = {
    METADATA: domain_metadata,
    OUTCOME: domain_outcome,
    JOURNAL: domain_active,
    LIFECYCLE: domain_lifecycle,
    PROVENANCE: domain_trajectory,
    PRUNED: domain_pruned,
    ERASED: domain_erased,
}


def _ranges(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
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


def _gaps(sequences: Iterable[int], through: int) -> Iterator[tuple[int, int]]:
    """What ascending numbers leave out, from 0 to the last of them and at least to `through`."""
    expected = 0
    for sequence in sequences:
        if sequence > expected:
            yield expected, sequence - 1
        expected = sequence + 1
    if expected <= through:
        yield expected, through


def _events(first: int, last: int, count: int | None = None) -> str:
    count = last - first + 1 if count is None else count
    if first == last:
        return f"event {first} is" if count == 1 else f"{count} events {first} are"
    return f"events {first}-{last} are" if count == last - first + 1 else f"{count} events of {first}-{last} are"


def _sequence(event: Any) -> int | None:
    metadata = event.get("metadata") if isinstance(event, dict) else None
    sequence = metadata.get("sequence") if isinstance(metadata, dict) else None
    return sequence if type(sequence) is int and 0 <= sequence <= MAX_INTEGER else None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _shown(session_id: str) -> str:
    try:
        return check_session_id(session_id)
    except BadSessionId:
        return printable(session_id)


def _iso(ms: int | None) -> str:
    try:
        return iso_ms(-1 if ms is None else ms)
    except BadTime:
        return "at no known time"


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(text, 200)


def _is_generation(name: str) -> bool:
    try:
        check_generation(name)
    except EvidenceError:
        return False
    return True
