"""Reading the events of a generation: its journal with the captures, and what comes after the chain."""

from __future__ import annotations

import hashlib
from typing import Any

from affidavit.evidence.audit.findings import Counts, Findings, reason_of
from affidavit.evidence.audit.life import Life
from affidavit.evidence.audit.scratch import Scratch
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import JournalRecord, parse_envelope
from affidavit.evidence.layout import CAPTURES, JOURNAL, LIFECYCLE, number_of
from affidavit.evidence.scalars import MAX_INTEGER, sha256_hex
from affidavit.evidence.sources import SEGMENT_LINES, count_lines, lines, read_lifecycle


class Events:
    """Takes the events of one generation into the scratch database."""

    def __init__(self, life: Life, scratch: Scratch, counts: Counts) -> None:
        self._life = life
        self._scratch = scratch
        self._counts = counts

    def segment(self, name: str) -> Findings:
        """A segment of the journal, and its captures if they are there."""
        life, first = self._life, number_of(name)
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
                record = JournalRecord.read(life.payload(line, JOURNAL, None), index=index)
                self._take(index, record.event, chained=True)
                payload = record.event.get("payload")
                capture = payload.get("capture_sha256") if isinstance(payload, dict) else None
                capture_digests.append((index, capture))
            except EvidenceError as error:
                faults += 1
                fault = fault or f"line {place + 1}: {reason_of(error)}"
                # The line stands there: it is unreadable, but no gap.
                self._scratch.add_unreadable(index, chained=True)
                capture_digests.append((-1, None))
            if place == 0 and index != first:
                yield life.say("misplaced", f"{name} starts with event {index}")
        if faults:
            more = f", and {faults - 1} more" if faults > 1 else ""
            yield life.say("unreadable", f"{name} {fault}{more}")
        captures = f"{CAPTURES}/{name.rpartition('/')[2]}"
        if captures in life.captures:
            life.captures.discard(captures)
            yield from self._captures(captures, capture_digests)

    def lifecycle(self, name: str) -> Findings:
        """An event that is numbered after the chain."""
        life = self._life
        try:
            found = read_lifecycle(life.store, name)
            life.payload(life.store.read(name), LIFECYCLE, found.sequence)
            self._take(found.sequence, found.event, chained=False)
        except (OSError, EvidenceError) as error:
            yield life.unreadable(name, error)
            self._scratch.add_unreadable(number_of(name), chained=False)

    def _captures(self, name: str, digests: list[tuple[int, str | None]]) -> Findings:
        life = self._life
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

    def _take(self, sequence: int, event: dict[str, Any], *, chained: bool) -> None:
        life = self._life
        if event.get("session_uid") != life.session_id and life.session_id is not None:
            raise EvidenceError("an event of another session")
        digest, time = hashlib.sha256(canonicalize(event)).digest(), event.get("time")
        if type(time) is not int or not 0 <= time <= MAX_INTEGER:
            raise EvidenceError("an event without a time")
        self._scratch.add_event(sequence, digest, time, chained=chained)
        self._counts.journal_events += 1
        if chained:
            life.count = max(life.count, sequence + 1)
        life.last_ms = time if life.last_ms is None else max(life.last_ms, time)
