"""How a session's execution ended, from what Temporal has of it; no worker is needed (P2, P3)."""

from __future__ import annotations

import json
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowFailureError, WorkflowHistoryEventFilterType
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, TerminatedError, TimeoutError

from affidavit import contract
from affidavit.answers import readable, reason_of
from affidavit.contract import SessionOutcome, Totals
from affidavit.errors import SessionFailed, SessionNotOpened
from affidavit.evidence.stops import StopReason, caption
from affidavit.evidence.text import printable
from affidavit.process_api import REASON_CHARS, Abandonment

_WITH_OUTCOME: Final = (contract.FAILED_QUARANTINED, contract.FAILED_ABANDONED)
_SERVER: Final = "Temporal"


async def failed_outcome(
    temporal: Client, session_id: str, run_id: str | None, error: WorkflowFailureError
) -> SessionOutcome:
    """The outcome of an execution that did not complete.

    A quarantined or abandoned session carries its own. One that was terminated, or timed out, reads as abandoned: by
    whom, when and why stands in the last event of its history. What it had counted is not in there: these numbers are
    0, and what is journaled is in the evidence store.

    Args:
        run_id: any run of the life that is meant; None for the newest.

    Raises:
        AnswerUnreadable: its outcome cannot be opened here.
        SessionNotOpened: it could not be opened.
        SessionFailed: it failed in another way.
        RPCError: the history is gone.
    """
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type in _WITH_OUTCOME and cause.details:
        return SessionOutcome.model_validate(
            readable(cause.details[0], f"the outcome of session {printable(session_id)}")
        )
    if isinstance(cause, TerminatedError | TimeoutError):
        return await _abandoned(temporal, session_id, run_id)
    text = reason_of(cause) if isinstance(cause, ApplicationError) else str(cause)
    told = f"session {printable(session_id)} ended without an outcome: {printable(text, 200)}"
    if isinstance(cause, ApplicationError) and cause.type == contract.FAILED_OPEN:
        raise SessionNotOpened(told) from None
    raise SessionFailed(told) from error


async def _abandoned(temporal: Client, session_id: str, run_id: str | None) -> SessionOutcome:
    last_run, closing = await _last_event(temporal, session_id, run_id)
    first = await _first_event(temporal, session_id, last_run)
    started = first.workflow_execution_started_event_attributes
    if closing.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
        terminated = closing.workflow_execution_terminated_event_attributes
        by, why = terminated.identity or _SERVER, terminated.reason or "the execution was terminated"
    else:
        by, why = _SERVER, "the execution timed out"
    why = printable(why, REASON_CHARS)
    return SessionOutcome(
        session_id=session_id,
        generation=started.first_execution_run_id,
        mode=await _mode(temporal, first),
        status="abandoned",
        reason=why,
        abandonment=Abandonment(
            by=printable(by, REASON_CHARS), at=closing.event_time.ToMilliseconds(), why=why, requested_at=None
        ),
        stop_reason_id=StopReason.OTHER,
        stop_reason=caption(StopReason.OTHER),
        totals=Totals(),
        steps=0,
        event_count=0,
        chain_head="",
        published=False,
    )


async def _last_event(temporal: Client, session_id: str, run_id: str | None) -> tuple[str | None, HistoryEvent]:
    """The last run of a life, and the event that closed it."""
    while True:
        handle = temporal.get_workflow_handle(session_id, run_id=run_id)
        closing = [
            event
            async for event in handle.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT)
        ][-1]
        next_run = closing.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        if not next_run:
            return run_id, closing
        run_id = next_run


async def _first_event(temporal: Client, session_id: str, run_id: str | None) -> HistoryEvent:
    async for event in temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history_events(page_size=1):
        return event
    raise SessionFailed(f"session {printable(session_id)} has no history")


async def _mode(temporal: Client, first: HistoryEvent) -> Any:
    """The mode that it was started with; signed, the default, also where its argument cannot be read."""
    payloads = first.workflow_execution_started_event_attributes.input.payloads[:1]
    try:
        (spec,) = await temporal.data_converter.decode(payloads, [RawValue])
        mode = json.loads(spec.payload.data).get("mode")
    except (ValueError, AttributeError):
        mode = None
    return mode if mode in ("signed", "unsigned") else "signed"
