"""Seals a session: reads its whole journal, checks everything that was claimed of it, and signs (behaviours F10).

The signer trusts nobody: not the workflow that asks, not the worker that journaled. What it signs it has computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity

from activities.errors import IntegrityError, told_to_temporal
from activities.sealed import Life, SealedEvidence, callers_life
from activities.stores.base import ObjectExists
from affidavit import contract
from affidavit.activity_api import SealRequest, SealResult
from affidavit.evidence.chain import extend, genesis
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import JournalRecord, Metadata, domain_metadata
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer
from affidavit.evidence.layout import metadata_name, receipt_name
from affidavit.evidence.ocsf import validate_event
from affidavit.evidence.receipt import SIGNER_FIELDS, event_chain, issue, parse, to_bytes, unsigned_body, verify
from affidavit.evidence.scalars import sha256_hex
from affidavit.evidence.totals import Totals, final_stop_reason


@dataclass(slots=True)
class _Reading:
    """What the journal proves, as it is read."""

    head: bytes
    count: int
    totals: Totals
    stated: Totals
    identity: dict[str, Any]


class SigningActivity:
    """Around the evidence store and the signer; runs on the signing queue alone."""

    def __init__(self, evidence: SealedEvidence, signer: Signer, keyring: Keyring) -> None:
        """`keyring`: the public keys under which a receipt that stands already may have been signed."""
        self._evidence = evidence
        self._signer = signer
        self._keyring = keyring

    @activity.defn(name=contract.ACTIVITY_SEAL)
    def seal(self, request: SealRequest) -> SealResult:
        """Sign one receipt over a session's event chain, and store it.

        A repeat returns the receipt that stands there. The session is the caller's own, by the activity's info.

        Raises:
            ApplicationError: type IntegrityError, not retryable: the journal is not what was claimed.
        """
        with told_to_temporal():
            life = callers_life(request.generation)
            metadata = self._metadata(life)
            if metadata.mode != "signed":
                raise IntegrityError("an unsigned session gets no receipt at its end")
            reading = self._read(life, metadata)
            _compare(request, reading)
            return self._issue(life, request, reading)

    def _metadata(self, life: Life) -> Metadata:
        name = metadata_name(life.session_id, life.generation)
        payload = self._evidence.read(name, domain_metadata(life.session_id, life.generation), 0)
        try:
            metadata = Metadata.read(payload)
        except EvidenceError as error:
            raise IntegrityError(str(error)) from error
        if (metadata.session_id, metadata.generation) != (life.session_id, life.generation):
            raise IntegrityError("metadata of another session")
        return metadata

    def _read(self, life: Life, metadata: Metadata) -> _Reading:
        reading = _Reading(genesis(life.session_id), 0, Totals(), Totals(), metadata.identity)
        with_captures: list[int] = []
        for first, records in self._evidence.records(life):
            activity.heartbeat(first)
            for record in records:
                _take(reading, life, record)
            if metadata.content != "digest":
                _check_captures(records, self._evidence.captures(life, first))
                with_captures.append(first)
        self._evidence.check_captures_of(life, with_captures)
        return reading

    def _issue(self, life: Life, request: SealRequest, reading: _Reading) -> SealResult:
        body = unsigned_body(
            receipt_id=request.receipt_id,
            session_id=life.session_id,
            issued_at=request.issued_at,
            ai_agent=reading.identity,
            subject=event_chain(reading.head.hex(), reading.count),
            totals=reading.totals,
            stop_reason_id=request.stop_reason_id,
        )
        receipt = issue(body, self._signer)
        data = to_bytes(receipt)
        name = receipt_name(life.session_id, life.generation)
        try:
            self._evidence.store.create(name, data)
        except ObjectExists:
            # An earlier attempt may have signed it with a key that has been rotated out since.
            data = self._evidence.store.read(name)
            receipt = self._adopted(data, body)
        return SealResult(receipt=receipt, receipt_sha256=sha256_hex(data))

    def _adopted(self, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        try:
            standing = verify(parse(data), self._keyring).receipt.document()
        except EvidenceError as error:
            raise IntegrityError(f"receipt.json: {error}") from error
        if {key: value for key, value in standing.items() if key not in SIGNER_FIELDS} != body:
            raise IntegrityError("receipt.json is another receipt")
        return standing


def _take(reading: _Reading, life: Life, record: JournalRecord) -> None:
    event = record.event
    try:
        if event.get("session_uid") != life.session_id:
            raise IntegrityError(f"event {reading.count} is of another session")
        if violations := validate_event(event):
            raise IntegrityError(f"event {reading.count} is no valid event: {violations[0]}")
        opening = (event["payload"].get("action"), event["payload"].get("generation"))
        if reading.count == 0 and opening != ("opened", life.generation):
            raise IntegrityError("the journal does not start with the opening of this generation")
        reading.head = extend(reading.head, event)
        reading.totals = reading.totals.add_event(event)
        reading.stated = reading.stated.add_record(record)
    except EvidenceError as error:
        raise IntegrityError(f"event {reading.count}: {error}") from error
    reading.identity = record.identity
    reading.count += 1


def _check_captures(records: list[JournalRecord], captures: list[bytes]) -> None:
    if len(captures) != len(records):
        raise IntegrityError("a captures segment does not have a line for each event")
    for record, capture in zip(records, captures, strict=True):
        expected = record.event["payload"].get("capture_sha256")
        if (b"{}" if expected is None else expected) != (capture if expected is None else sha256_hex(capture)):
            raise IntegrityError(f"the capture of event {record.event['metadata']['sequence']} is not the one digested")


def _compare(request: SealRequest, reading: _Reading) -> None:
    """That the journal is what the workflow says it is; what differs is named, not shown."""
    if reading.count == 0:
        raise IntegrityError("there is no event to attest")
    if difference := reading.totals.differences(reading.stated):
        raise IntegrityError(f"events and records disagree on {', '.join(difference)}")
    claimed = request.totals
    totals = {**reading.totals.tool_calls(), **reading.totals.cost()}
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
        "event count": reading.count == request.count,
        "chain head": reading.head.hex() == request.head,
        "totals": totals == expected,
        "stop reason": final_stop_reason(reading.totals, idle=request.idle) == request.stop_reason_id,
    }
    if wrong := [name for name, same in checks.items() if not same]:
        raise IntegrityError(f"the journal does not have the claimed {', '.join(wrong)}")
