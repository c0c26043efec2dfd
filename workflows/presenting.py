"""What people see of a session: the `view` query, and the page in the Temporal Web UI (pure but for the clock)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio import workflow

from affidavit.attributes import cost
from affidavit.contract import SessionOutcome, SessionView, Stalled
from affidavit.describing import summary
from affidavit.evidence.stops import StopReason, caption
from affidavit.markdown import literal
from workflows.inbox import Inbox
from workflows.registration import Registration
from workflows.state import SessionState

if TYPE_CHECKING:
    from workflows.consumer import Consumer

STALLED_AFTER_MS = 5_000


def _life(state: SessionState, consumer: Consumer) -> str:
    if consumer.outcome is not None:
        return consumer.outcome.status
    if consumer.sealing:
        return "sealing"
    if state.closing:
        return "closing"
    return "open" if state.opened else "opening"


def _stalled(consumer: Consumer) -> Stalled | None:
    if not consumer.working:
        return None
    # The real clock: workflow time stands still while an activity is retried. A query is never replayed.
    with workflow.unsafe.sandbox_unrestricted():
        now = int(time.time() * 1000)
    stage, since = min(consumer.working.items(), key=lambda entry: entry[1])
    return Stalled(stage=stage, since=since) if now - since >= STALLED_AFTER_MS else None


def view(registration: Registration, state: SessionState, inbox: Inbox, consumer: Consumer) -> SessionView:
    """The answer of the `view` query."""
    ledger = state.ledger
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
        }
    )


def show(registration: Registration, state: SessionState, outcome: SessionOutcome | None) -> None:
    """Set the current details of the Web UI; they cost no history event."""
    workflow.set_current_details(page(registration, state, outcome))


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
