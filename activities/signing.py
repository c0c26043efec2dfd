"""Seals a session: reads its whole journal, checks everything that was claimed of it, and signs (behaviours F10).

The signer trusts nobody: not the workflow that asks, not the worker that journaled. What it signs it has computed.
"""

from __future__ import annotations

from temporalio import activity

from activities.errors import IntegrityError, told_to_temporal
from activities.reading import Reading, read_metadata
from activities.receipts import Receipts
from activities.sealed import Life, SealedEvidence
from affidavit import contract
from affidavit.activity_api import SealRequest, SealResult
from affidavit.evidence.receipt import event_chain, unsigned_body


class SigningActivity:
    """Around the evidence store and the signer; runs on the signing queue alone."""

    def __init__(self, evidence: SealedEvidence, receipts: Receipts) -> None:
        self._evidence = evidence
        self._receipts = receipts

    @activity.defn(name=contract.ACTIVITY_SEAL)
    def seal(self, request: SealRequest) -> SealResult:
        """Sign one receipt over a session's event chain, and store it.

        A repeat returns the receipt that stands there. The session is the caller's own, by the activity's info.

        Raises:
            ApplicationError: type IntegrityError, not retryable: the journal is not what was claimed.
        """
        with told_to_temporal():
            life = self._evidence.callers_life(request)
            metadata = read_metadata(self._evidence, life)
            if metadata.mode != "signed":
                raise IntegrityError("an unsigned session gets no receipt at its end")
            reading = Reading.of(life, metadata)
            for _ in reading.segments(self._evidence, captures=True):
                pass
            reading.compare(request)
            return self._issue(life, request, reading)

    def _issue(self, life: Life, request: SealRequest, reading: Reading) -> SealResult:
        body = unsigned_body(
            receipt_id=request.receipt_id,
            session_id=life.session_id,
            issued_at=request.issued_at,
            ai_agent=reading.identity,
            subject=event_chain(reading.head.hex(), reading.count),
            totals=reading.totals,
            stop_reason_id=request.stop_reason_id,
        )
        receipt, receipt_sha256 = self._receipts.issue(life, body)
        return SealResult(receipt=receipt, receipt_sha256=receipt_sha256)
