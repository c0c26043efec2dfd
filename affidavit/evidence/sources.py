"""Where an auditor's events come from: a generation's folder, a bundle, or a dump; read, not yet believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from affidavit.evidence.bundle import StoreReader
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    Envelope,
    EnvelopeError,
    JournalRecord,
    parse_envelope,
)
from affidavit.evidence.layout import (
    is_evidence,
    number_of,
)
from affidavit.evidence.receipt import (
    VerificationError as VerificationError,
)
from affidavit.evidence.report import (
    AlteredContent,
    LifecycleMismatch,
    UnreadableEvidence,
)
from affidavit.evidence.strict import read_json

LINE_LIMIT: Final = 64 << 20
"""Bytes of one line of a dump that are read at most."""

SEGMENT_LINES: Final = 4096
"""Lines of a journal segment that are read at most; a worker writes one for each step of a batch, 64."""

LIFECYCLE_ACTIONS = frozenset({"receipt", "closed", "quarantined", "abandoned"})


@dataclass(frozen=True, slots=True)
class Found:
    """An event and where it stands; record and envelope only in a journal, generation only in a dump."""

    place: str
    sequence: int
    event: dict[str, Any]
    generation: str | None = None
    envelope: Envelope | None = None
    record: JournalRecord | None = None

    @property
    def payload(self) -> dict[str, Any]:
        payload = self.event.get("payload")
        return payload if isinstance(payload, dict) else {}


def numbered(store: StoreReader, folder: str) -> list[str]:
    return sorted((name for name in store.list(folder) if is_evidence(name)), key=number_of)


def optional(store: StoreReader, name: str) -> bytes | None:
    try:
        return store.read(name)
    except FileNotFoundError:
        return None


def count_lines(data: bytes) -> int:
    """How many `lines` there are, before memory is spent on them."""
    return data.count(b"\n") + (not data.endswith(b"\n")) if data else 0


def lines(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n") if data else []


def read_segment(store: StoreReader, name: str) -> Iterator[Found]:
    data = store.read(name)
    if count_lines(data) > SEGMENT_LINES:
        raise UnreadableEvidence(f"{name} has more lines than a segment, {SEGMENT_LINES}")
    for number, line in enumerate(lines(data), start=1):
        place = f"{name} line {number}"
        try:
            envelope = parse_envelope(line)
            record = JournalRecord.read(envelope.payload, index=envelope.index)
        except EnvelopeError as error:
            raise AlteredContent(f"altered: {place}: {error}") from None
        except EvidenceError as error:
            raise UnreadableEvidence(f"{place}: {error}") from error
        yield Found(place, envelope.index, record.event, envelope=envelope, record=record)


def read_lifecycle(store: StoreReader, name: str) -> Found:
    envelope = parse_envelope(store.read(name))
    payload = envelope.payload
    event = payload.get("event") if isinstance(payload, dict) and payload.keys() == {"event"} else None
    sequence = _sequence(event)
    if not isinstance(event, dict) or sequence is None or not sequence == envelope.index == number_of(name):
        raise LifecycleMismatch(f"{name} does not hold the event that its name states")
    found = Found(name, sequence, event, envelope=envelope)
    if found.payload.get("action") not in LIFECYCLE_ACTIONS:
        raise LifecycleMismatch(f"{name} does not hold a lifecycle event")
    return found


def looks_like_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def read_dump(path: Path) -> Iterator[Found]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE_LIMIT + 1):
            number += 1
            place = f"line {number}"
            try:
                entry = read_json(line, max_bytes=LINE_LIMIT)
            except EvidenceError as error:
                raise UnreadableEvidence(f"{place}: {error}") from error
            if not isinstance(entry, dict) or entry.keys() != {"generation", "event"}:
                raise UnreadableEvidence(f"{place}: not exactly generation and event")
            event, generation, sequence = entry["event"], entry["generation"], _sequence(entry["event"])
            if not isinstance(generation, str) or sequence is None:
                raise UnreadableEvidence(f"{place}: no event with a sequence, or no generation")
            yield Found(place, sequence, event, generation=generation)


def _sequence(event: Any) -> int | None:
    metadata = event.get("metadata") if isinstance(event, dict) else None
    sequence = metadata.get("sequence") if isinstance(metadata, dict) else None
    return sequence if type(sequence) is int and sequence >= 0 else None
