"""What `admit` answers (pure; behaviours C1, D4)."""

from __future__ import annotations

from typing import Final

from affidavit import contract
from affidavit.contract import AdmitRequest, AdmitResult, Refusal, SessionSpec
from workflows.state import SessionState

IDENTITY: Final = "identity"
LOOP: Final = "loop detected"
"""Reasons as the `refused` event gives them."""

ANOTHER_IDENTITY: Final = Refusal(
    type=contract.REFUSED_IDENTITY, reason="session is bound to a different agent identity"
)

CORRECTION: Final = (
    "You are repeating yourself: your last answers bring nothing new. Stop, say what you have tried and what you "
    "know, and take another way or ask for help."
)


def enforced(request: AdmitRequest, spec: SessionSpec, state: SessionState) -> Refusal | None:
    """Why an admission is refused by a rule that leaves an event; None if none applies."""
    if request.agent is not None and request.agent.triple() != state.ledger.agent.triple():
        return Refusal(type=contract.REFUSED_IDENTITY, reason=IDENTITY)
    if state.ledger.breaker.open and spec.breaker.action == "reject":
        return Refusal(type=contract.REFUSED_LOOP, reason=LOOP)
    return None


def accepted(attempt_id: str, spec: SessionSpec, state: SessionState) -> AdmitResult:
    """The answer to an admission that nothing stands against; under `inject` the breaker is to be reset."""
    if not state.ledger.breaker.open:
        return AdmitResult(accepted=True, attempt_id=attempt_id)
    if spec.breaker.action == "inject":
        return AdmitResult(accepted=True, attempt_id=attempt_id, message=CORRECTION)
    return AdmitResult(accepted=True, attempt_id=attempt_id, flagged=True)
