"""A trajectory rebuilt from a session's evidence, as it lies in a store (formats.md 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from affidavit.evidence.bundle import StoreReader
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    JournalRecord,
    Metadata,
    authenticate,
    domain_active,
    domain_metadata,
    parse_envelope,
)
from affidavit.evidence.layout import (
    JOURNAL,
    captures_name,
    journal_name,
    metadata_name,
    number_of,
    session_prefix,
)
from affidavit.evidence.trajectory.build import Written, write_trajectory
from affidavit.evidence.trajectory.printing import Sink
from affidavit.evidence.trajectory.segments import CaptureMismatch, Pair, SegmentedPairs, pair


class JournalIncomplete(EvidenceError):
    """An event of the journal is missing."""


def rebuild_trajectory(
    store: StoreReader, session_id: str, generation: str, sink: Sink, *, journal_keys: Sequence[bytes] = ()
) -> Written:
    """Write the trajectory of one life of a session from its metadata, events and captures; it streams.

    Args:
        store: the evidence store.
        session_id, generation: which life of which session.
        sink: takes the bytes; after an error what it got is no trajectory.
        journal_keys: with them every MAC is checked; without them the events are believed, and vouch for the captures.

    Raises:
        FileNotFoundError: there is no metadata, or no segment that the journal lists.
        CaptureMismatch: a capture is missing or another one.
        NoSteps, EvidenceError: as `write_trajectory`; or the evidence is not what it must be.
    """
    evidence = _Evidence(store, session_id, generation, tuple(journal_keys))
    pairs = SegmentedPairs(evidence.firsts(), evidence.segment)
    return write_trajectory(dict(evidence.metadata()), _unbroken(pairs), pairs.at, sink)


class _Evidence:
    def __init__(self, store: StoreReader, session_id: str, generation: str, keys: tuple[bytes, ...]) -> None:
        self._store = store
        self._life = session_id, generation
        self._keys = keys

    def metadata(self) -> Metadata:
        return Metadata.read(self._payload(self._store.read(metadata_name(*self._life)), domain_metadata, 0))

    def firsts(self) -> list[int]:
        return sorted(number_of(name) for name in self._store.list(f"{session_prefix(*self._life)}/{JOURNAL}"))

    def segment(self, first: int) -> list[Pair]:
        records = _lines(self._store.read(journal_name(*self._life, first)))
        try:
            captures = _lines(self._store.read(captures_name(*self._life, first)))
        except FileNotFoundError:
            raise CaptureMismatch(f"the captures from event {first} on are not there any more") from None
        if len(captures) != len(records):
            raise CaptureMismatch(f"the captures from event {first} on are not one for each event")
        return [
            pair(JournalRecord.read(self._payload(record, domain_active, index), index=index).event, capture)
            for index, (record, capture) in enumerate(zip(records, captures, strict=True), first)
        ]

    def _payload(self, data: bytes, domain: Callable[[str, str], str], index: int) -> Any:
        envelope = parse_envelope(data)
        if self._keys:
            authenticate(envelope, keys=self._keys, domain=domain(*self._life), index=index)
        return envelope.payload


def _unbroken(pairs: SegmentedPairs) -> Iterator[Pair]:
    for expected, (event, capture) in enumerate(pairs):
        if event["metadata"]["sequence"] != expected:
            raise JournalIncomplete(f"event {expected} is missing from the journal")
        yield event, capture


def _lines(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n")
