"""Attests the trajectory of an unsigned session afterwards, from what lies in the store alone (behaviours F8)."""

from __future__ import annotations

from typing import Any, NoReturn

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import IntegrityError, told_to_temporal
from activities.heartbeats import beating
from activities.reading import Reading, read_metadata
from activities.receipts import Receipts
from activities.sealed import Life, SealedEvidence
from affidavit import contract
from affidavit.activity_api import PromoteRequest, PromoteResult
from affidavit.contract import SessionOutcome, promotion_id
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import Metadata, domain_lifecycle, domain_outcome, domain_trajectory
from affidavit.evidence.layout import (
    PROVENANCE,
    TRAJECTORY,
    lifecycle_name,
    metadata_name,
    outcome_name,
    provenance_name,
    trajectory_name,
)
from affidavit.evidence.ocsf import EventClass, build_event
from affidavit.evidence.receipt import atif_trajectory, event_chain, unsigned_body
from affidavit.evidence.scalars import sha256_hex
from affidavit.evidence.totals import final_stop_reason
from affidavit.evidence.trajectory import read_trajectory
from affidavit.stores.base import ObjectExists, ObjectMissing

_FIXED_BY_THE_FIRST = frozenset({"receipt_id", "issued_at", "issued_at_iso"})
"""What a promotion of its own decides; all else in a receipt follows from the evidence."""


class PromotionActivity:
    """Around the evidence store and the signer; runs on the signing queue alone."""

    def __init__(self, evidence: SealedEvidence, receipts: Receipts) -> None:
        self._evidence = evidence
        self._receipts = receipts

    @activity.defn(name=contract.ACTIVITY_PROMOTE)
    def promote(self, request: PromoteRequest) -> PromoteResult:
        """Check a trajectory and everything behind it, sign one receipt over it, and write the event that says so.

        A repeat returns the receipt and finds the event that stand there. A signed session gives its own receipt.

        Raises:
            ApplicationError: not retryable; type SessionUnknown, SessionNotEnded or NothingToAttest; or
                IntegrityError: something in the store is missing or not what it must be.
        """
        with told_to_temporal():
            _check_caller(request)
            life = Life(request.session_id, request.generation)
            metadata = self._metadata(life)
            outcome = self._outcome(life)
            if metadata.mode == "signed":
                return self._own_receipt(life, outcome)
            with beating():  # a long one takes longer to check than a heartbeat may stay out
                step_count, digest = self._trajectory(life, metadata)
            reading = Reading.of(life, metadata)
            for _ in reading.segments(self._evidence, captures=False):
                pass
            self._check_provenance(life, reading, step_count, digest)
            closed_ms = self._closed_ms(life, reading)
            body = unsigned_body(
                receipt_id=request.receipt_id,
                session_id=life.session_id,
                issued_at=max(request.issued_at, closed_ms),  # no clock runs backward in a session
                ai_agent=reading.identity,
                subject=atif_trajectory(digest, step_count),
                totals=reading.totals,
                stop_reason_id=_stop_reason(reading, outcome),
            )
            receipt, receipt_sha256 = self._receipts.issue(life, body, free=_FIXED_BY_THE_FIRST)
            sequence = reading.count + 1  # the chain ends at count - 1, and `closed` is count
            stood = self._announce(life, metadata, sequence, receipt, request.event_uid)
            return PromoteResult(
                receipt=receipt,
                receipt_sha256=receipt_sha256,
                event_sequence=sequence,
                event_stood=stood,
                store_id=self._evidence.store.store_id,
            )

    def _metadata(self, life: Life) -> Metadata:
        try:
            self._evidence.store.read(metadata_name(life.session_id, life.generation))
        except ObjectMissing:
            _refuse(contract.REFUSED_UNKNOWN, "the evidence store has no such session, or no such life of it")
        return read_metadata(self._evidence, life)

    def _outcome(self, life: Life) -> SessionOutcome:
        """The sealed outcome: the last thing that a session writes."""
        name, domain = outcome_name(life.session_id, life.generation), domain_outcome(life.session_id, life.generation)
        try:
            self._evidence.store.read(name)
        except ObjectMissing:
            _refuse(contract.REFUSED_NOT_ENDED, "session has not ended")
        outcome = SessionOutcome.model_validate(self._evidence.read(name, domain, 0))
        if outcome.status not in ("closed", "cancelled"):
            why = f": {outcome.reason}" if outcome.reason else ""
            _refuse(contract.REFUSED_NOTHING_TO_ATTEST, f"session ended {outcome.status}{why}")
        return outcome

    def _own_receipt(self, life: Life, outcome: SessionOutcome) -> PromoteResult:
        receipt, receipt_sha256 = self._receipts.standing(life)
        subject = event_chain(outcome.chain_head, outcome.event_count)
        if (receipt["session_id"], receipt["subject"]) != (life.session_id, subject):
            raise IntegrityError("receipt.json is another receipt")
        return PromoteResult(receipt=receipt, receipt_sha256=receipt_sha256, store_id=self._evidence.store.store_id)

    def _trajectory(self, life: Life, metadata: Metadata) -> tuple[int, str]:
        """Steps and digest of the trajectory, which its provenance names and every rule of its format allows."""
        digest = self._provenance(life).get("trajectory_digest")
        try:
            data = self._evidence.store.read(trajectory_name(life.session_id, life.generation))
        except ObjectMissing:
            raise IntegrityError(f"{TRAJECTORY} is not in the evidence store") from None
        if sha256_hex(data) != digest:
            raise IntegrityError(f"{TRAJECTORY} is not the one that its provenance names")
        try:
            document = read_trajectory(data)
        except EvidenceError as error:
            raise IntegrityError(f"{TRAJECTORY}: {error}") from error
        for name in ("session_id", "trajectory_id"):
            if document.get(name) != getattr(metadata, name):
                raise IntegrityError(f"{TRAJECTORY} has another {name}")
        return len(document["steps"]), digest

    def _provenance(self, life: Life) -> dict[str, Any]:
        name = provenance_name(life.session_id, life.generation)
        payload = self._evidence.read(name, domain_trajectory(life.session_id, life.generation), 0)
        return payload if isinstance(payload, dict) else {}

    def _check_provenance(self, life: Life, reading: Reading, step_count: int, digest: str) -> None:
        expected = {
            "trajectory_digest": digest,
            "step_count": step_count,
            "chain_head": reading.head.hex(),
            "event_count": reading.count,
            "generation": life.generation,
        }
        found = self._provenance(life)
        if wrong := [name for name in expected if found.get(name) != expected[name]]:
            raise IntegrityError(f"{PROVENANCE} has another {', '.join(wrong)} than the evidence")

    def _closed_ms(self, life: Life, reading: Reading) -> int:
        """When the session closed, by the event that says so and names the chain."""
        name = lifecycle_name(life.session_id, life.generation, reading.count)
        domain = domain_lifecycle(life.session_id, life.generation)
        event = self._evidence.read(name, domain, reading.count)["event"]
        said = event["payload"]
        if (said.get("action"), said.get("chain_head"), said.get("event_count")) != (
            "closed",
            reading.head.hex(),
            reading.count,
        ):
            raise IntegrityError("the event after the chain does not say that this session closed")
        return int(event["time"])

    def _announce(self, life: Life, metadata: Metadata, sequence: int, receipt: dict[str, Any], uid: str) -> bool:
        """Write the receipt's event; True if it stood there already. Only its uid is not told by the receipt."""
        event = build_event(
            uid=uid,
            sequence=sequence,
            time_ms=receipt["issued_at"],
            class_name=EventClass.RECEIPT.class_name,
            session_id=life.session_id,
            identity=receipt["ai_agent"],
            product_version=metadata.product_version,
            status_id=1,
            severity_id=1,
            payload={
                "action": "receipt",
                **{name: receipt[name] for name in ("receipt_id", "key_id", "subject")},
                "receipt": receipt,
            },
            metrics={},
            stop=None,
        )
        name = lifecycle_name(life.session_id, life.generation, sequence)
        domain = domain_lifecycle(life.session_id, life.generation)
        try:
            return not self._evidence.create(name, domain, sequence, {"event": event})
        except ObjectExists:
            # An earlier promotion, which Temporal has forgotten or somebody ended, gave it another uid.
            standing = self._evidence.read(name, domain, sequence)["event"]
            event["metadata"]["uid"] = standing["metadata"]["uid"]
            if standing != event:
                raise
            return True


def _stop_reason(reading: Reading, outcome: SessionOutcome) -> int:
    """The reason that follows from the events; or an idle close, which the sealed outcome alone can tell."""
    allowed = {final_stop_reason(reading.totals, idle=idle) for idle in (False, True)}
    if outcome.stop_reason_id not in allowed:
        raise IntegrityError("outcome.json has a stop reason that does not follow from the events")
    return outcome.stop_reason_id


def _check_caller(request: PromoteRequest) -> None:
    """That the caller is the one workflow that may ask: there is never more than one of that id at a time."""
    info = activity.info()
    expected = (contract.PROMOTION_WORKFLOW, promotion_id(request.session_id, request.generation))
    if (info.workflow_type, info.workflow_id) != expected:
        raise IntegrityError("only the promotion of a session asks for its receipt")


def _refuse(type_: str, reason: str) -> NoReturn:
    raise ApplicationError(reason, type=type_, non_retryable=True)
