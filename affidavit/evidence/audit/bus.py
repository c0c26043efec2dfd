"""Reading the embedded bus for an audit, once and record by record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from affidavit.buslog import BusLogError, LogRow
from affidavit.evidence.audit.findings import BUS, Counts, Finding, Findings, events_are, reason_of
from affidavit.evidence.audit.scratch import Scratch
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import MAX_INTEGER, BadSessionId, check_session_id, session_stem
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable


def read_bus(rows: Iterable[LogRow], scratch: Scratch, counts: Counts) -> Findings:
    """Take every event on the bus. Where it cannot be read to its end, `counts.bus_events` is None afterwards."""
    counts.bus_events = 0
    position, left = 0, iter(rows)
    while True:
        try:
            row = next(left)
        except StopIteration:
            return
        except (BusLogError, ValueError, TypeError) as error:  # headers that are no JSON end the reading too
            why = reason_of(error) if isinstance(error, BusLogError) else "damaged"
            yield Finding("unreadable", BUS, "-", f"after record {position}, so it was not compared: {why}")
            counts.bus_events = None
            return
        position = row.position
        counts.bus_events += 1
        yield from _read_row(row, scratch)


def unknown_lives(scratch: Scratch) -> Findings:
    """Events of lives that the store does not have."""
    for session, generation, first, last, count in scratch.unknown_lives():
        what = f"{events_are(first, last, count)} on the bus, but the store has no such generation"
        yield Finding("not_in_journal", session, printable(generation), what)


def _read_row(row: LogRow, scratch: Scratch) -> Findings:
    texts = (row.session_id, row.generation)
    where = f"record {row.position}"
    if not all(isinstance(text, str) for text in texts) or not isinstance(row.value, bytes):
        yield Finding("unreadable", BUS, "-", f"{where} has a column of a wrong type")
        return
    session, generation = _shown(row.session_id), printable(row.generation)
    try:
        event = read_json(row.value)
    except EvidenceError as error:
        yield Finding("unreadable", session, generation, f"{where} on the bus: {reason_of(error)}")
        return
    sequence = _sequence(event)
    if sequence is None:
        yield Finding("unreadable", session, generation, f"{where} on the bus is no event with a sequence")
        return
    if event.get("session_uid") != row.session_id:
        yield Finding("misplaced", session, generation, f"event {sequence} on the bus is of another session")
    digest = hashlib.sha256(row.value).digest()
    scratch.add_record(session_stem(row.session_id), row.generation, sequence, digest, session)


def _sequence(event: Any) -> int | None:
    metadata = event.get("metadata") if isinstance(event, dict) else None
    sequence = metadata.get("sequence") if isinstance(metadata, dict) else None
    return sequence if type(sequence) is int and 0 <= sequence <= MAX_INTEGER else None


def _shown(session_id: str) -> str:
    try:
        return check_session_id(session_id)
    except BadSessionId:
        return printable(session_id)
