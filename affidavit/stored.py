"""A session as it lies in an evidence store, read without the journal's keys.

Nothing here is authenticated: whoever must know that it is what was written uses `affidavit verify`. Everything blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from affidavit.contract import SessionOutcome
from affidavit.errors import SessionFailed, SessionPruned
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import parse_envelope
from affidavit.evidence.layout import (
    JOURNAL,
    LIFECYCLE,
    PAYLOADS,
    journal_name,
    lives_prefix,
    number_of,
    outcome_name,
    pruned_name,
    session_prefix,
)
from affidavit.evidence.scalars import session_stem
from affidavit.evidence.text import printable
from affidavit.process_api import CUSTOM, EventSummary
from affidavit.pruned import Pruned
from affidavit.stores.base import EvidenceStore, ObjectMissing


class StoredSession:
    """All lives of one session in a store."""

    def __init__(self, store: EvidenceStore, session_id: str) -> None:
        self._store = store
        self._session_id = session_id

    def latest(self) -> str | None:
        """The life that was opened last; None if there is none."""
        names = [name.rpartition("/")[2] for name in self._store.folders(lives_prefix(session_stem(self._session_id)))]
        lives = [(self._opened_at(name), name) for name in names if name != PAYLOADS]
        return max(lives)[1] if lives else None

    def outcome(self, generation: str) -> SessionOutcome | None:
        """The sealed outcome of a life; None while it has none.

        Raises:
            SessionFailed: it is none that can be read.
        """
        try:
            data = self._store.read(outcome_name(self._session_id, generation))
        except ObjectMissing:
            return None
        try:
            return SessionOutcome.model_validate(parse_envelope(data).payload)
        except (EvidenceError, ValidationError) as error:
            raise self._unreadable("its sealed outcome") from error

    def pruned(self, generation: str) -> Pruned | None:
        """What pruning has left of a life; None of one that was not pruned.

        Raises:
            SessionFailed: it cannot be read.
        """
        try:
            data = self._store.read(pruned_name(self._session_id, generation))
        except ObjectMissing:
            return None
        try:
            return Pruned.model_validate(parse_envelope(data).payload)
        except (EvidenceError, ValidationError) as error:
            raise SessionFailed(f"session {printable(self._session_id)}: its pruned.json cannot be read") from error

    def check_kept(self, generation: str) -> None:
        """Raises `SessionPruned` if a life was pruned."""
        if (pruned := self.pruned(generation)) is not None:
            raise SessionPruned(pruned.told(), generation=generation, status=pruned.status, closed_at=pruned.closed_at)

    def last(self, generation: str) -> int:
        """The highest sequence of a life; -1 if it has no event."""
        firsts = self._firsts(generation)
        return max((event.sequence for event in self.after(generation, firsts[-1] - 1)), default=-1) if firsts else -1

    def after(self, generation: str, sequence: int) -> Iterator[EventSummary]:
        """Every event of a life with a higher number, ascending; those after the chain too.

        Raises:
            SessionFailed: something among them is no event.
        """
        firsts = self._firsts(generation)
        for first in firsts[max(bisect_right(firsts, sequence + 1) - 1, 0) :]:
            for line in self._store.read(journal_name(self._session_id, generation, first)).splitlines():
                yield from self._summary(line, sequence)
        for name in self._store.list(f"{session_prefix(self._session_id, generation)}/{LIFECYCLE}"):
            yield from self._summary(self._store.read(name), sequence)

    def _firsts(self, generation: str) -> list[int]:
        prefix = session_prefix(self._session_id, generation)
        try:
            return sorted(number_of(name) for name in self._store.list(f"{prefix}/{JOURNAL}"))
        except EvidenceError as error:
            raise self._unreadable("its journal") from error

    def _summary(self, envelope: bytes, after: int) -> Iterator[EventSummary]:
        try:
            event: dict[str, Any] = parse_envelope(envelope).payload["event"]
            payload, sequence = event["payload"], event["metadata"]["sequence"]
            if sequence > after:
                yield EventSummary(
                    sequence=sequence,
                    time=event["time"],
                    action=payload["action"],
                    status_id=event["status_id"],
                    type=payload["type"] if payload["action"] == CUSTOM else None,
                )
        except (EvidenceError, ValidationError, KeyError, TypeError) as error:
            raise self._unreadable("its journal") from error

    def _unreadable(self, what: str) -> SessionFailed:
        return SessionFailed(f"session {printable(self._session_id)}: {what} cannot be read")

    def _opened_at(self, generation: str) -> int:
        """When a life was opened; of a pruned one when it ended, since lives follow each other. -1 if nothing tells."""
        try:
            (first,) = self._store.read(journal_name(self._session_id, generation, 0)).splitlines()[:1]
            return int(parse_envelope(first).payload["event"]["time"])
        except ObjectMissing:
            pass
        except (EvidenceError, KeyError, TypeError, ValueError):
            return -1
        try:
            pruned = self.pruned(generation)
        except SessionFailed:
            return -1
        return -1 if pruned is None else pruned.closed_at
