"""What people see of a session: the `view` query, and the page in the Temporal Web UI (pure but for the clock)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio import workflow

from affidavit import contract
from affidavit.attributes import cost
from affidavit.contract import FlushResult, SessionOutcome, SessionView, Stalled, SubmitResult
from affidavit.describing import summary
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
            "queue_limit": registration.spec.limits.queue,
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


def page(registration: Registration, state: SessionState, outcome: SessionOutcome | None) -> str:
    """A session on one screen, as Markdown. The static summary is its title, because only a first run has one."""
    ledger, agent, spec = state.ledger, state.ledger.agent, registration.spec
    stop_reason_id = outcome.stop_reason_id if outcome else ledger.stop_reason_id
    rows = [
        ("state", _headline(state, outcome)),
        ("instance", literal(agent.instance_uid)),
        ("content", spec.content),
        ("run", str(state.runs)),
        ("steps", f"{ledger.steps}, {ledger.rejected} rejected, {state.repeated} repeated"),
        ("events", f"{ledger.count} journaled, {state.published} published"),
        ("tool calls", f"{ledger.totals.tool_allowed} allowed, {ledger.totals.tool_blocked} blocked"),
        ("tokens", f"{ledger.totals.prompt_tokens} prompt, {ledger.totals.completion_tokens} completion"),
        ("cost", f"{cost(ledger.totals.cost_usd_micros)} USD"),
        ("breaker", "tripped" if ledger.breaker.open else "closed"),
        ("stop reason", caption(StopReason(stop_reason_id))),
        ("chain head", f"`{ledger.head}`"),
    ]
    if outcome is not None and outcome.receipt_id is not None:
        rows.append(("receipt", f"`{outcome.receipt_id}`"))
    if outcome is not None and outcome.trajectory_digest is not None:
        rows.append(("trajectory", f"`{outcome.trajectory_digest}`"))
    if state.poisoned is not None:
        rows.append(("capture incomplete", literal(state.poisoned, 200)))
    lines = [f"**{summary(agent, spec.mode)}**", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", "| sequence | time (UTC) | event | status |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {event.sequence} | {_time(event.time)} | {literal(event.action)} | {_ok(event.status_id)} |"
        for event in ledger.tail
    ]
    return "\n".join(lines)


def _headline(state: SessionState, outcome: SessionOutcome | None) -> str:
    if outcome is not None:
        return outcome.status
    if state.poisoned is not None:
        return "capture incomplete"
    if state.closing:
        return "closing"
    return "open" if state.opened else "opening"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%m-%d %H:%M:%S")


def _ok(status_id: int) -> str:
    return "ok" if status_id == 1 else "failed"
