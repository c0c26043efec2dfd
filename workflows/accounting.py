"""From a step to its class, status, stop reason and counters (pure; formats.md 3.2 and 9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

from affidavit.contract import Totals
from affidavit.evidence.ocsf import EventClass
from affidavit.evidence.scalars import MAX_INTEGER
from affidavit.evidence.stops import StopReason, caption, from_provider
from affidavit.evidence.tokens import approx_tokens, approx_tokens_json
from affidavit.steps import (
    AnyStep,
    CustomEvent,
    Message,
    ModelFailure,
    ModelRequest,
    ModelResponse,
    ToolCall,
    Usage,
    Wake,
    Woken,
)

SESSION: Final = EventClass.SESSION.class_name
STOP: Final = EventClass.STOP_REASON.class_name
COMPRESSION: Final = EventClass.COMPRESSION.class_name
TOOL_CALL: Final = EventClass.TOOL_CALL.class_name
IDENTITY: Final = EventClass.IDENTITY.class_name
RECEIPT: Final = EventClass.RECEIPT.class_name

SUCCESS: Final = 1
FAILURE: Final = 2
INFORMATIONAL: Final = 1
HIGH: Final = 4
CRITICAL: Final = 5

Stop = tuple[int, str]


@dataclass(slots=True)
class Row:
    """One row of formats.md 3.2: everything of an event that is decided, not derived from its capture."""

    action: str
    class_name: str
    status_id: int
    severity_id: int = INFORMATIONAL
    stop: Stop | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    terminal: bool = False


class Overflow(Exception):
    """A sum would pass 2^53 - 1; the counter keeps its value and the session is poisoned (B3)."""


def add(totals: Totals, counts: dict[str, int]) -> Totals:
    """New totals with the increments of one step.

    Raises:
        Overflow: naming the counter that would pass the limit.
    """
    summed = {name: getattr(totals, name) + increment for name, increment in counts.items()}
    for name, value in summed.items():
        if value > MAX_INTEGER:
            raise Overflow(name)
    return totals.model_copy(update=summed) if summed else totals


def _caption(reason: StopReason) -> Stop:
    return int(reason), caption(reason)


_OWN_ROWS: Final = {
    "opened": (SESSION, SUCCESS),
    "message_rejected": (SESSION, FAILURE),
    "producer_conflict": (SESSION, FAILURE),
    "producer_gap": (SESSION, SUCCESS),
    "cancel_requested": (SESSION, SUCCESS),
    "abandon_requested": (SESSION, SUCCESS),
    "waiting": (SESSION, SUCCESS),
    "resumed": (SESSION, SUCCESS),
    "breaker_reset": (SESSION, SUCCESS),
    "identity_refreshed": (IDENTITY, SUCCESS),
    "receipt": (RECEIPT, SUCCESS),
    "closed": (SESSION, SUCCESS),
    "abandoned": (SESSION, FAILURE),
}


def own_row(action: str, payload: dict[str, Any]) -> Row:
    """The row of an event that no step stands behind."""
    if action == "quarantined":
        row = Row(action, SESSION, FAILURE, CRITICAL)
    elif action == "refused":
        reason = StopReason.IDENTITY_REJECTED if payload["reason"] == "identity" else StopReason.LOOP_DETECTED
        row = Row(action, STOP, FAILURE, stop=_caption(reason))
    else:
        class_name, status = _OWN_ROWS[action]
        row = Row(action, class_name, status)
    row.payload = dict(payload)
    return row


def estimate_messages(messages: list[Message]) -> int:
    """Token estimate of messages that were not counted before; a copied one was."""
    return sum(_estimate(message) for message in messages if not message.copied)


def _estimate(message: Message) -> int:
    content = message.content
    tokens = approx_tokens(content) if isinstance(content, str) else approx_tokens_json(content)
    if message.reasoning is not None:
        tokens += approx_tokens(message.reasoning)
    for call in message.tool_calls or ():
        tokens += approx_tokens(call.name) + approx_tokens_json(call.arguments)
    return tokens


def cost_micros(usage: Usage) -> int:
    """Cost in micro-USD: as given, else dollars rounded half to even on their decimal text."""
    if usage.cost_usd_micros is not None:
        return usage.cost_usd_micros
    if usage.cost_usd is None:
        return 0
    return int((Decimal(repr(usage.cost_usd)) * 1_000_000).to_integral_value(ROUND_HALF_EVEN))


def account(step: AnyStep, pending_estimate: int) -> Row:
    """The row of a reported step.

    `pending_estimate`: tokens estimated for the messages reported since the last terminal record, which stand
    in for the prompt where the provider gave no number.
    """
    if isinstance(step, ModelRequest):
        return _model_request(step)
    if isinstance(step, ModelResponse):
        return _model_response(step, pending_estimate)
    if isinstance(step, ModelFailure):
        return Row("model_failure", STOP, FAILURE, stop=(int(StopReason.OTHER), step.reason), terminal=True)
    if isinstance(step, ToolCall):
        return _tool_call(step)
    if isinstance(step, Wake | Woken):
        return Row("wake", SESSION, SUCCESS)
    if isinstance(step, CustomEvent):
        return Row("event", SESSION, SUCCESS, payload={"type": step.type})
    return Row("tool_result", SESSION, SUCCESS if step.ok else FAILURE)


def _model_request(step: ModelRequest) -> Row:
    after = step.prompt_tokens if step.prompt_tokens is not None else estimate_messages(step.messages)
    before = step.tokens_before if step.tokens_before is not None else after
    pruned = max(before - after, 0)
    return Row(
        "model_request",
        COMPRESSION,
        SUCCESS,
        payload={"changed": before != after, "tokens_before": before, "tokens_after": after},
        metrics={
            "prompt_tokens": after,
            "pruned_tokens": pruned,
            "pruning_ratio_millis": pruned * 1000 // before if before else 0,
        },
    )


def _model_response(step: ModelResponse, pending_estimate: int) -> Row:
    if step.copied:
        # History sent again: it was counted when it happened, and it ends nothing now.
        return Row("model_response", SESSION, SUCCESS, payload={"cost_usd_micros": 0, "assessed": False})
    usage = step.usage or Usage()
    tokens = {
        "prompt_tokens": usage.prompt_tokens if usage.prompt_tokens is not None else pending_estimate,
        "completion_tokens": usage.completion_tokens or 0,
        "cached_tokens": usage.cached_tokens or 0,
    }
    cost = cost_micros(usage)
    row = Row(
        "model_response",
        SESSION,
        SUCCESS,
        payload={"cost_usd_micros": cost},
        metrics=tokens,
        counts={**tokens, "cost_usd_micros": cost},
        terminal=True,
    )
    if step.finish_reason is not None:
        reason, text = from_provider(step.finish_reason)
        row.class_name = STOP
        row.stop = (int(reason), text)
    return row


def _tool_call(step: ToolCall) -> Row:
    if step.allowed:
        return Row("tool_call", TOOL_CALL, SUCCESS, counts={"tool_calls": 1, "tool_allowed": 1})
    reason = StopReason.BUDGET_EXCEEDED if step.stage == "budget" else StopReason.POLICY_BLOCKED
    return Row(
        "tool_call",
        TOOL_CALL,
        FAILURE,
        HIGH,
        stop=_caption(reason),
        counts={"tool_calls": 1, "tool_blocked": 1},
    )


def tripped(row: Row, *, delta: float, streak: int, tokens: int, action: str) -> Row:
    """The event that replaces a response's own when the breaker trips (D3); it loses no tokens (B4)."""
    return Row(
        "breaker_tripped",
        STOP,
        FAILURE,
        HIGH,
        stop=_caption(StopReason.LOOP_DETECTED),
        payload={
            "delta": delta,
            "streak": streak,
            "tokens_consumed": tokens,
            "breaker_action": action,
            "replaced": {"action": row.action, **row.payload},
        },
        metrics=row.metrics,
        counts=row.counts,
        terminal=row.terminal,
    )
