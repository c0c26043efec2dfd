"""Totals of a session, summed from its events or from its journal records (formats.md 5, 6, 9).

The two sums are made independently: the sealer and the auditor compare them. Pure; safe in workflow code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import TOKENS, JournalRecord
from affidavit.evidence.ocsf import EventClass
from affidavit.evidence.scalars import MAX_INTEGER
from affidavit.evidence.stops import CAPTIONS, StopReason

_TOOL_CALL: Final = EventClass.TOOL_CALL.class_name
_TERMINAL: Final = frozenset({"model_response", "breaker_tripped"})


class TotalsError(EvidenceError):
    """A sum cannot be made."""


class TotalsOverflow(TotalsError):
    """A sum would pass 2^53-1; the counter is named."""


class InconsistentEvent(TotalsError):
    """An event contradicts itself, or holds a number that is no count."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a receipt says of a session: calls, tokens, micro-USD, and what its stop reason follows from.

    Each ``add_*`` returns new totals; on an error the old ones stand.
    """

    tool_total: int = 0
    tool_allowed: int = 0
    tool_blocked: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd_micros: int = 0
    stop_reason_id: int | None = None
    """The last recorded one; an id that no reason has reads as Unknown (0)."""
    cancel_requested: bool = False
    abort_tripped: bool = False
    """The breaker tripped with action ``abort`` and was not reset since."""

    def add_event(self, event: Mapping[str, Any]) -> Totals:
        """These totals and what one chained event adds.

        Raises:
            InconsistentEvent, TotalsOverflow.
        """
        payload = _object(event.get("payload", {}))
        counts = dict.fromkeys((*TOKENS, "cost_usd_micros", "tool_total", "tool_allowed", "tool_blocked"), 0)
        if event.get("class_name") == _TOOL_CALL:
            counts["tool_total"] = 1
            counts["tool_allowed" if _is_allowed(event, payload) else "tool_blocked"] = 1
        if payload.get("action") in _TERMINAL:
            metrics = _object(event.get("metrics", {}))
            for name in TOKENS:
                counts[name] = _count(metrics, name)
            # A trip replaces the response's event; the cost stands in the payload it replaced.
            tripped = payload["action"] == "breaker_tripped"
            counts["cost_usd_micros"] = _count(
                _object(payload.get("replaced", {})) if tripped else payload, "cost_usd_micros"
            )
        return self._note(event, payload)._plus(counts, event.get("stop_reason_id"))

    def add_record(self, record: JournalRecord) -> Totals:
        """These totals and the increments that one journal record states; `TotalsOverflow` as above."""
        counts = {name: getattr(record, name) for name in (*TOKENS, "cost_usd_micros", "tool_allowed", "tool_blocked")}
        payload = _object(record.event.get("payload", {}))
        return self._note(record.event, payload)._plus(
            {"tool_total": record.tool_calls, **counts}, record.stop_reason_id
        )

    def tool_calls(self) -> dict[str, int]:
        """``tool_calls`` of a receipt."""
        return {"total": self.tool_total, "allowed": self.tool_allowed, "blocked": self.tool_blocked}

    def cost(self) -> dict[str, int]:
        """``cost`` of a receipt."""
        return {**{name: getattr(self, name) for name in TOKENS}, "cost_usd_micros": self.cost_usd_micros}

    def differences(self, other: Totals) -> list[str]:
        """Names of the fields in which two totals differ."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]

    def _note(self, event: Mapping[str, Any], payload: Mapping[str, Any]) -> Totals:
        action = payload.get("action")
        # The event kind `event` carries foreign payloads under its own keys, so `action` is always the product's word.
        if action == "cancel_requested":
            return replace(self, cancel_requested=True)
        if action == "breaker_tripped" and payload.get("breaker_action") == "abort":
            return replace(self, abort_tripped=True)
        if action == "breaker_reset":
            return replace(self, abort_tripped=False)
        return self

    def _plus(self, counts: Mapping[str, int], stop_reason_id: Any) -> Totals:
        sums = {name: getattr(self, name) + count for name, count in counts.items()}
        for name, total in sums.items():
            if total > MAX_INTEGER:
                raise TotalsOverflow(f"{name} would pass 2^53-1")
        return replace(self, **sums, stop_reason_id=_last_stop(self.stop_reason_id, stop_reason_id))


def final_stop_reason(totals: Totals, *, idle: bool = False) -> int:
    """Stop reason id of the receipt (formats.md 6).

    A cancel request makes it 99, a breaker abort 91, an idle close (which no event records, hence the argument) 4; else
    it is the last recorded one, or 4 where that is Unknown or none was recorded.
    """
    if totals.cancel_requested:
        return int(StopReason(99))
    if totals.abort_tripped:
        return int(StopReason(91))
    if idle or not totals.stop_reason_id:
        return int(StopReason(4))
    return totals.stop_reason_id


def _last_stop(last: int | None, recorded: Any) -> int | None:
    if recorded is None:
        return last
    if type(recorded) is not int:
        raise InconsistentEvent("stop_reason_id is not an integer")
    return recorded if recorded in CAPTIONS else 0


def _is_allowed(event: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
    allowed = payload.get("allowed")
    if not isinstance(allowed, bool):
        raise InconsistentEvent("a tool call does not say whether it was allowed")
    if event.get("status_id") != (1 if allowed else 2):
        raise InconsistentEvent("a tool call's status contradicts its verdict")
    return allowed


def _count(holder: Mapping[str, Any], name: str) -> int:
    value = holder.get(name, 0)
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise InconsistentEvent(f"{name} is not a count")
    return value


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InconsistentEvent("payload and metrics are objects")
    return value
