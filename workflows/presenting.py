"""What people see of a session: the `view` query, and the page in the Temporal Web UI (pure but for the clock)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from temporalio import workflow

from affidavit import contract
from affidavit.contract import FlushResult, SessionOutcome, SessionView, Stalled, SubmitResult
from affidavit.evidence.stops import StopReason, caption
from affidavit.markdown import literal
from affidavit.process_api import EventPage, EventsAfter, RecentEvents
from workflows.inbox import Inbox, Item
from workflows.refusing import refuse
from workflows.registration import Registration
from workflows.state import Ledger, SessionState

if TYPE_CHECKING:
    from workflows.consumer import Consumer

STALLED_AFTER_MS = 5_000


def _life(state: SessionState, consumer: Consumer) -> str:
    if consumer.outcome is not None:
        return consumer.outcome.status
    if consumer.sealing:
        return "sealing"
    if state.closing and not _closes_by_request(state):
        return "closing"
    return "open" if state.opened else "opening"


def _closes_by_request(state: SessionState) -> bool:
    """Whether it closes because of a cancel: until its chain is complete it is as open as its attempts are (P11)."""
    cancel = state.process.cancel
    return cancel is not None and state.closing_since_ms >= cancel.time


def _stalled(consumer: Consumer) -> Stalled | None:
    if not consumer.working:
        return None
    # The real clock: workflow time stands still while an activity is retried. A query is never replayed.
    with workflow.unsafe.sandbox_unrestricted():
        now = int(time.time() * 1000)
    stage, since = min(consumer.working.items(), key=lambda entry: entry[1])
    return Stalled(stage=stage, since=since) if now - since >= STALLED_AFTER_MS else None


def durable(state: SessionState) -> FlushResult:
    """What is on disk, and on the bus."""
    ledger = state.ledger
    return FlushResult(event_count=ledger.count, chain_head=ledger.head, published_through=state.published - 1)


def submitted(items: Sequence[Item], ledger: Ledger) -> SubmitResult:
    """The answer to a submission whose items have been processed."""
    verdicts = [item.verdict for item in items if item.verdict is not None]
    sequences = [item.sequence for item in items if not item.repeat]
    return SubmitResult.model_validate(
        {
            "first_sequence": sequences[0] if sequences else None,
            "last_sequence": sequences[-1] if sequences else None,
            "repeated": len(items) - len(sequences),
            "chain_head": ledger.head,
            "event_count": ledger.count,
            "breaker_open": ledger.breaker.open,
            "verdict": verdicts[-1] if verdicts else None,
        }
    )


def remember(outcome: SessionOutcome) -> None:
    """Leave the outcome in the memo, where Temporal shows it with no worker (P5); the receipt is in the result."""
    workflow.upsert_memo(
        {contract.MEMO_OUTCOME: outcome.model_dump(mode="json", exclude={"receipt"}, exclude_none=True)}
    )


def events_after(request: EventsAfter, state: SessionState, consumer: Consumer) -> EventPage:
    """The answer of the query of that name; refuses a cursor of another life."""
    if request.generation not in (None, state.generation):
        refuse(contract.REFUSED_BAD_REQUEST, "the cursor belongs to another life of the session")
    return state.process.log.after(request, state.generation, ended=consumer.outcome is not None)


def recent_events(request: RecentEvents, state: SessionState, consumer: Consumer) -> EventPage:
    """The answer of the query of that name."""
    return state.process.log.recent(request.count, state.generation, ended=consumer.outcome is not None)


def view(registration: Registration, state: SessionState, inbox: Inbox, consumer: Consumer) -> SessionView:
    """The answer of the `view` query."""
    ledger, process = state.ledger, state.process
    return SessionView.model_validate(
        {
            "session_id": workflow.info().workflow_id,
            "generation": state.generation,
            "mode": registration.spec.mode,
            "state": _life(state, consumer),
            "agent": ledger.agent,
            "steps": ledger.steps,
            "queue_depth": inbox.depth,
            "event_count": ledger.count,
            "chain_head": ledger.head,
            "published_through": state.published - 1,
            "totals": ledger.totals,
            "stop_reason_id": ledger.stop_reason_id,
            "breaker_open": ledger.breaker.open,
            "breaker_streak": ledger.breaker.streak,
            "breaker_tokens": ledger.breaker.tokens,
            "rejected": ledger.rejected,
            "repeated": state.repeated,
            "unverified": state.unverified,
            "open_attempts": len(state.attempts.open),
            "runs": state.runs,
            "late_steps": state.late_steps,
            "unprocessed": state.unprocessed,
            "poisoned": state.poisoned,
            "stalled": _stalled(consumer),
            "recent": ledger.tail,
            "opened_at": process.log.opened_ms,
            "waiting": process.waiting,
            "external_ref": process.external_ref,
            "cancel_requested": process.cancel,
            "abandon_requested": process.abandon,
        }
    )


def show(registration: Registration, state: SessionState, outcome: SessionOutcome | None) -> None:
    """Set the current details of the Web UI; they cost no history event."""
    ledger, agent = state.ledger, state.ledger.agent
    life = outcome.status if outcome else ("poisoned" if state.poisoned else "open")
    stop_reason_id = outcome.stop_reason_id if outcome else ledger.stop_reason_id
    rows = [
        ("state", life),
        ("agent", f"{literal(agent.charter)} {literal(agent.version)} ({literal(agent.instance_uid)})"),
        ("mode", f"{registration.spec.mode}, content {registration.spec.content}"),
        ("events", f"{ledger.count} journaled, {state.published} published"),
        ("tool calls", f"{ledger.totals.tool_allowed} allowed, {ledger.totals.tool_blocked} blocked"),
        ("tokens", f"{ledger.totals.prompt_tokens} prompt, {ledger.totals.completion_tokens} completion"),
        ("rejected", str(ledger.rejected)),
        ("stop reason", caption(StopReason(stop_reason_id))),
        ("chain head", f"`{ledger.head}`"),
    ]
    if outcome is not None and outcome.receipt_id is not None:
        rows.append(("receipt", f"`{outcome.receipt_id}`"))
    if state.poisoned is not None:
        rows.append(("capture incomplete", literal(state.poisoned, 200)))
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    lines += ["", "| sequence | event | status |", "| --- | --- | --- |"]
    lines += [f"| {s.sequence} | {s.action} | {'ok' if s.status_id == 1 else 'failed'} |" for s in ledger.tail]
    workflow.set_current_details("\n".join(lines))
