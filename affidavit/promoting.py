"""Starting a promotion, and what its failures are called here."""

from __future__ import annotations

from pydantic import ValidationError
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from affidavit import contract
from affidavit.answers import readable, reason_of
from affidavit.contract import PromotionRequest, PromotionResult
from affidavit.converter import encode_json, raw_json
from affidavit.errors import SessionFailed, SessionRefused
from affidavit.evidence.text import printable
from affidavit.markdown import literal
from affidavit.rpc import persist, translated
from affidavit.validation import first_error


async def promote(
    temporal: Client, task_queue: str, session_id: str, generation: str, retry_timeout: float
) -> PromotionResult:
    """See `SessionClient.promote`."""
    try:
        request = PromotionRequest(session_id=session_id, generation=generation)
    except ValidationError as error:
        raise SessionRefused(contract.REFUSED_BAD_REQUEST, first_error(error)) from None

    async def attempt() -> PromotionResult:
        # Made again after an answer was lost, it joins the one that runs, or finds the receipt that stands.
        promotion = await temporal.start_workflow(
            contract.PROMOTION_WORKFLOW,
            raw_json(encode_json(request.model_dump())),
            id=contract.promotion_id(session_id, generation),
            task_queue=task_queue,
            result_type=PromotionResult,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"promotion of {literal(session_id, 128)}",
        )
        result: PromotionResult = await promotion.result()
        return readable(result, f"the receipt of session {printable(session_id)}")

    async def goes_on() -> bool:
        return False

    with translated(session_id):
        try:
            return await persist(attempt, within=retry_timeout, goes_on=goes_on)
        except WorkflowFailureError as error:
            if isinstance(cause := error.cause, ApplicationError):
                raise SessionRefused(cause.type or "Refused", reason_of(cause)) from None
            raise SessionFailed(f"promotion of session {printable(session_id)}: {error.cause}") from error
