"""Evidence under a MAC, on top of a store: what journaling writes and signing reads (formats.md 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from temporalio import activity

from activities.errors import EvidenceStoreMismatch, IntegrityError
from affidavit.activity_api import Caller
from affidavit.contract import SESSION_WORKFLOW
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    JournalRecord,
    domain_active,
    domain_outcome,
    domain_pruned,
    open_envelope,
    seal,
    seal_record,
)
from affidavit.evidence.layout import (
    CAPTURES,
    JOURNAL,
    PAYLOADS,
    captures_name,
    journal_name,
    lives_prefix,
    outcome_name,
    pruned_name,
    session_prefix,
)
from affidavit.evidence.scalars import session_stem
from affidavit.stores.base import EvidenceStore, ObjectExists, ObjectMissing, base_name

FirstRunOf: TypeAlias = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a session: whose evidence it is."""

    session_id: str
    generation: str


class SealedEvidence:
    """Writes and reads enveloped objects. The first key seals; any of them opens (rotation)."""

    def __init__(self, store: EvidenceStore, keys: Sequence[bytes], first_run_of: FirstRunOf | None = None) -> None:
        """`first_run_of`: asks Temporal for the first run of the chain that a run belongs to (workflow id, run id);
        without it only sessions in their first run are served."""
        if not keys:
            raise ValueError("at least one journal key is needed")
        self.store = store
        self._keys = tuple(keys)
        self._first_run_of = first_run_of

    def callers_life(self, request: Caller) -> Life:
        """The life of the session that called the running activity: by Temporal's word, whatever it asks for.

        Raises:
            IntegrityError: the caller is no session, was reset, or names a generation that is not its own.
        """
        info = activity.info()
        if info.workflow_id is None or info.workflow_run_id is None or info.workflow_type != SESSION_WORKFLOW:
            raise IntegrityError("only a session reaches its evidence")
        if request.run_id != info.workflow_run_id:
            # A reset makes a new run that takes up the history of an old one; the evidence would fork there.
            raise IntegrityError("the session was reset; its capture cannot be continued")
        if request.generation != info.workflow_run_id and (
            self._first_run_of is None
            or request.generation != self._first_run_of(info.workflow_id, info.workflow_run_id)
        ):
            raise IntegrityError("the generation is not the caller's own")
        if request.store_id is not None and request.store_id != self.store.store_id:
            # Another store, or a mount that went away: what is written there would be lost to the session.
            raise EvidenceStoreMismatch("the session's evidence is in another store than this worker's")
        return Life(info.workflow_id, request.generation)

    def create(self, name: str, domain: str, index: int, payload: Any) -> bool:
        """Create an envelope. True if it is new; False if an equal payload was there, under any key.

        Raises:
            IntegrityError: something else stands under that name.
        """
        try:
            return self.store.create(name, seal(self._keys[0], domain, index, payload))
        except ObjectExists:
            if self.read(name, domain, index) != payload:
                raise
            return False

    def read(self, name: str, domain: str, index: int) -> Any:
        """The payload of a stored envelope.

        Raises:
            IntegrityError: it is missing, altered, or not where it belongs.
        """
        return self._open(self._bytes(name), domain, index, base_name(name))

    def generations(self, session_id: str) -> list[str]:
        """The lives of a session that the store knows of."""
        names = [name.rpartition("/")[2] for name in self.store.folders(lives_prefix(session_stem(session_id)))]
        return [name for name in names if name != PAYLOADS]

    def outcome_status(self, life: Life) -> str:
        """How a life ended, by its sealed outcome or by what pruning has left; "without an outcome" if it has none."""
        for name, domain in (
            (outcome_name(life.session_id, life.generation), domain_outcome(life.session_id, life.generation)),
            (pruned_name(life.session_id, life.generation), domain_pruned(life.session_id, life.generation)),
        ):
            try:
                data = self.store.read(name)
            except ObjectMissing:
                continue
            return str(self._open(data, domain, 0, base_name(name)).get("status"))
        return "without an outcome"

    def create_segment(self, life: Life, first: int, payloads: Sequence[dict[str, Any]]) -> list[bytes]:
        """Create a journal segment, or adopt the one that stands there if it says the same.

        Returns:
            The events as they stand in the store, in canonical form. An adopted segment may have been sealed under
            another key, or written by another version of the product; its numbers, uids and capture digests equal
            the input's.

        Raises:
            IntegrityError: what stands there is something else.
        """
        name = journal_name(life.session_id, life.generation, first)
        domain = domain_active(life.session_id, life.generation)
        sealed = [seal_record(self._keys[0], domain, first + place, payload) for place, payload in enumerate(payloads)]
        try:
            self.store.create(name, b"\n".join(line for line, _ in sealed) + b"\n")
        except ObjectExists as error:
            standing = [record.model_dump() for record in self.segment(life, first)]
            if [_identity(payload) for payload in standing] != [_identity(payload) for payload in payloads]:
                raise error
            return [canonicalize(payload["event"]) for payload in standing]
        return [event for _, event in sealed]

    def create_captures(self, life: Life, first: int, captures: Sequence[bytes]) -> None:
        """Create the captures segment that goes with a journal segment; `{}` where nothing was reported."""
        self.store.create(captures_name(life.session_id, life.generation, first), b"\n".join(captures) + b"\n")

    def records(self, life: Life) -> Iterator[tuple[int, list[JournalRecord]]]:
        """Every segment of a journal, in order and without a gap: its first index and its records.

        Raises:
            IntegrityError: a segment is missing, surplus or altered.
        """
        expected = 0
        for name in self.store.list(f"{session_prefix(life.session_id, life.generation)}/{JOURNAL}"):
            # Compared by name: a foreign file has no number, and is refused like one that stands elsewhere.
            if name != journal_name(life.session_id, life.generation, expected):
                raise IntegrityError(f"journal segment {base_name(name)} where {expected} was expected")
            records = self.segment(life, expected)
            yield expected, records
            expected += len(records)

    def segment(self, life: Life, first: int) -> list[JournalRecord]:
        """The records of the journal segment that starts at an index.

        Raises:
            IntegrityError: it is missing or altered.
        """
        domain = domain_active(life.session_id, life.generation)
        records = []
        for index, line in enumerate(self._lines(journal_name(life.session_id, life.generation, first)), first):
            payload = self._open(line, domain, index, f"journal record {index}")
            try:
                records.append(JournalRecord.read(payload, index=index))
            except EvidenceError as error:
                raise IntegrityError(f"journal record {index}: {error}") from error
        return records

    def captures(self, life: Life, first: int) -> list[bytes]:
        """The lines of one captures segment."""
        return self._lines(captures_name(life.session_id, life.generation, first))

    def check_captures_of(self, life: Life, firsts: Sequence[int]) -> None:
        """That captures segments stand there for these journal segments and for nothing else.

        Raises:
            IntegrityError: one is surplus, or missing.
        """
        standing = self.store.list(f"{session_prefix(life.session_id, life.generation)}/{CAPTURES}")
        expected = {captures_name(life.session_id, life.generation, first) for first in firsts}
        if surplus := sorted(set(standing) - expected):
            raise IntegrityError(f"captures segment {base_name(surplus[0])} goes with no journal segment")
        if missing := sorted(expected - set(standing)):
            raise IntegrityError(f"captures segment {base_name(missing[0])} is not in the evidence store")

    def _lines(self, name: str) -> list[bytes]:
        return self._bytes(name).removesuffix(b"\n").split(b"\n")

    def _bytes(self, name: str) -> bytes:
        try:
            return self.store.read(name)
        except ObjectMissing as error:
            _ = self.store.store_id  # raises if it is the whole store that is away for now
            raise IntegrityError(f"{base_name(name)} is not in the evidence store") from error

    def _open(self, data: bytes, domain: str, index: int, what: str) -> Any:
        try:
            return open_envelope(data, keys=self._keys, domain=domain, index=index)
        except EvidenceError as error:
            raise IntegrityError(f"{what}: {error}") from error


def _identity(payload: dict[str, Any]) -> tuple[int, str, str | None]:
    """What two writings of one event must agree on to be the same event (design.md 2)."""
    event = payload["event"]
    return event["metadata"]["sequence"], event["metadata"]["uid"], event["payload"].get("capture_sha256")
