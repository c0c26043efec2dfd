"""Reads a life of a session back: what its journal proves, computed anew from every record (behaviours F10).

Whoever attests something reads with this: nothing that a workflow or a worker says of a session is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from temporalio import activity

from activities.errors import IntegrityError
from activities.sealed import Life, SealedEvidence
from affidavit.activity_api import Claims
from affidavit.evidence.chain import extend, genesis
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import JournalRecord, Metadata, domain_metadata
from affidavit.evidence.layout import metadata_name
from affidavit.evidence.ocsf import validate_event
from affidavit.evidence.scalars import sha256_hex
from affidavit.evidence.totals import Totals, final_stop_reason


class Segment(NamedTuple):
    """One batch as it stands in the store; `captures` has a line for each record, or none at all."""

    first: int
    records: list[JournalRecord]
    captures: list[bytes]


@dataclass(slots=True)
class Reading:
    """What the records read so far prove: chain head, number of events, sums and latest identity.

    `totals` are summed from the events and `stated` from what the records say of them; `firsts` are the first
    indices of the segments.
    """

    life: Life
    content: str
    identity: dict[str, Any]
    head: bytes
    count: int = 0
    totals: Totals = field(default_factory=Totals)
    stated: Totals = field(default_factory=Totals)
    firsts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, life: Life, metadata: Metadata) -> Reading:
        """A reading of a journal from its beginning."""
        return cls(life, metadata.content, metadata.identity, genesis(life.session_id))

    def segments(self, evidence: SealedEvidence, *, captures: bool) -> Iterator[Segment]:
        """Every segment of the journal in order, taken into this reading; a heartbeat for each.

        Args:
            captures: check the captures too, as far as the session keeps any; without it they may be gone.

        Raises:
            IntegrityError: the journal, or a capture, is not what it must be.
        """
        kept = captures and self.content != "digest"
        for first, records in evidence.records(self.life):
            activity.heartbeat(first)
            for record in records:
                self._take(record)
            lines = evidence.captures(self.life, first) if kept else []
            if kept:
                _check_captures(records, lines)
            self.firsts.append(first)
            yield Segment(first, records, lines)
        if captures:
            evidence.check_captures_of(self.life, self.firsts if kept else [])
        if self.count == 0:
            raise IntegrityError("there is no event to attest")
        if difference := self.totals.differences(self.stated):
            raise IntegrityError(f"events and records disagree on {', '.join(difference)}")

    def compare(self, claims: Claims) -> None:
        """That the journal is what the workflow says it is; what differs is named, not shown.

        Raises:
            IntegrityError: it is not.
        """
        claimed = claims.totals
        expected = {
            "total": claimed.tool_calls,
            "allowed": claimed.tool_allowed,
            "blocked": claimed.tool_blocked,
            "prompt_tokens": claimed.prompt_tokens,
            "completion_tokens": claimed.completion_tokens,
            "cached_tokens": claimed.cached_tokens,
            "cost_usd_micros": claimed.cost_usd_micros,
        }
        checks = {
            "event count": self.count == claims.count,
            "chain head": self.head.hex() == claims.head,
            "totals": {**self.totals.tool_calls(), **self.totals.cost()} == expected,
            "stop reason": final_stop_reason(self.totals, idle=claims.idle) == claims.stop_reason_id,
        }
        if wrong := [name for name, same in checks.items() if not same]:
            raise IntegrityError(f"the journal does not have the claimed {', '.join(wrong)}")

    def _take(self, record: JournalRecord) -> None:
        event, life = record.event, self.life
        try:
            if event.get("session_uid") != life.session_id:
                raise IntegrityError(f"event {self.count} is of another session")
            if violations := validate_event(event):
                raise IntegrityError(f"event {self.count} is no valid event: {violations[0]}")
            opening = (event["payload"].get("action"), event["payload"].get("generation"))
            if self.count == 0 and opening != ("opened", life.generation):
                raise IntegrityError("the journal does not start with the opening of this generation")
            self.head = extend(self.head, event)
            self.totals = self.totals.add_event(event)
            self.stated = self.stated.add_record(record)
        except EvidenceError as error:
            raise IntegrityError(f"event {self.count}: {error}") from error
        self.identity = record.identity
        self.count += 1


def read_metadata(evidence: SealedEvidence, life: Life) -> Metadata:
    """What was fixed when a life was opened.

    Raises:
        IntegrityError: it is missing, altered, or another life's.
    """
    name = metadata_name(life.session_id, life.generation)
    payload = evidence.read(name, domain_metadata(life.session_id, life.generation), 0)
    try:
        metadata = Metadata.read(payload)
    except EvidenceError as error:
        raise IntegrityError(str(error)) from error
    if (metadata.session_id, metadata.generation) != (life.session_id, life.generation):
        raise IntegrityError("metadata of another session")
    return metadata


def _check_captures(records: list[JournalRecord], captures: list[bytes]) -> None:
    if len(captures) != len(records):
        raise IntegrityError("a captures segment does not have a line for each event")
    for record, capture in zip(records, captures, strict=True):
        expected = record.event["payload"].get("capture_sha256")
        if (b"{}" if expected is None else expected) != (capture if expected is None else sha256_hex(capture)):
            raise IntegrityError(f"the capture of event {record.event['metadata']['sequence']} is not the one digested")
