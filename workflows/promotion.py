"""`TrajectoryPromotion`: a receipt for an unsigned session, afterwards and from the evidence store alone (F8)."""

from __future__ import annotations

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit.activity_api import PromoteRequest, PromoteResult
    from affidavit.contract import PromotionRequest, PromotionResult, promotion_id
    from affidavit.metrics import RECEIPTS
    from affidavit.publishing_api import PublishRequest
    from workflows import metrics, stages
    from workflows.clock import new_id, now_ms
    from workflows.messages import Unreadable, read_model

_NOTHING = RawValue(Payload())


# Whatever goes wrong ends it: a promotion keeps nothing that would be lost, and the next one finds what stands. So
# arguments that no definition can decode, or one too many, end it too instead of failing its first task for ever.
@workflow.defn(name=contract.PROMOTION_WORKFLOW, failure_exception_types=[Exception])
class TrajectoryPromotion:
    """One promotion; the workflow id is `contract.promotion_id`, so there is one of a life at a time."""

    @workflow.run
    async def run(self, raw: RawValue = _NOTHING) -> PromotionResult:
        request = _read(raw)
        # Fixed here, so that whoever goes on after a crash goes on with the same receipt and the same event.
        promote = PromoteRequest(
            session_id=request.session_id,
            generation=request.generation,
            receipt_id=new_id(),
            issued_at=now_ms(),
            event_uid=new_id(),
        )
        try:
            promoted = await stages.promote(promote)
        except ActivityError as error:
            if isinstance(cause := error.cause, ApplicationError):
                raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from None
            raise
        metrics.add(RECEIPTS, kind="promotion")
        workflow.set_current_details(f"receipt `{promoted.receipt['receipt_id']}`")
        return PromotionResult(
            session_id=request.session_id,
            generation=request.generation,
            receipt=promoted.receipt,
            receipt_sha256=promoted.receipt_sha256,
            published=await _publish(request, promoted),
        )


def _read(raw: RawValue) -> PromotionRequest:
    try:
        request = read_model(raw.payload, PromotionRequest)
    except Unreadable as error:
        raise _bad(f"invalid promotion: {error}") from None
    if workflow.info().workflow_id != promotion_id(request.session_id, request.generation):
        raise _bad("the workflow id is not the one of this promotion")
    return request


async def _publish(request: PromotionRequest, promoted: PromoteResult) -> bool:
    """Publish the receipt's event; False if the bus refuses it for good (E4)."""
    sequence = promoted.event_sequence
    if sequence is None:
        return True  # a signed session has done it itself
    try:
        await stages.publish(
            PublishRequest(
                session_id=request.session_id,
                generation=request.generation,
                first=sequence,
                last=sequence,
                lifecycle=True,
                look_up_through=sequence if promoted.event_stood else -1,
                store_id=promoted.store_id,
            )
        )
    except ActivityError as error:
        if not isinstance(error.cause, ApplicationError):
            raise
        workflow.logger.error("the receipt's event: %s", stages.reason_of(error))
        return False
    return True


def _bad(reason: str) -> ApplicationError:
    return ApplicationError(reason, type=contract.REFUSED_BAD_REQUEST, non_retryable=True)
