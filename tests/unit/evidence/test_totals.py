"""Sums over events and records, and the final stop reason: formats.md 6 and 9, behaviours B4, F5."""

from __future__ import annotations

from typing import Any

import pytest

from affidavit.evidence.journal import JournalRecord, record_payload
from affidavit.evidence.totals import InconsistentEvent, Totals, TotalsOverflow, final_stop_reason

LIMIT = 9_007_199_254_740_991


def event(action: str, *, name: str = "agent.session", **parts: Any) -> dict[str, Any]:
    payload = {"action": action, **parts.pop("payload", {})}
    return {"metadata": {"sequence": 0}, "class_name": name, "status_id": 1, "metrics": {}, "payload": payload, **parts}


def response(**cost: int) -> dict[str, Any]:
    metrics = {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 40}
    return event("model_response", payload={"cost_usd_micros": 7, **cost}, metrics=metrics, stop_reason_id=1)


def tool(allowed: bool, status: int, **payload: Any) -> dict[str, Any]:
    return event("tool_call", name="agent.tool_call", status_id=status, payload={"allowed": allowed, **payload})


TRIP = event(
    "breaker_tripped",
    name="agent.stop_reason",
    metrics={"prompt_tokens": 400, "completion_tokens": 3},
    payload={
        "breaker_action": "reject",
        "tokens_consumed": 1600,
        "cost_usd_micros": 999,
        "replaced": {"action": "model_response", "cost_usd_micros": 11},
    },
    stop_reason_id=91,
)


def test_only_terminal_model_records_count_tokens() -> None:
    request = event("model_request", name="agent.compression", metrics={"prompt_tokens": 500, "pruned_tokens": 3})
    totals = Totals().add_event(request).add_event(response()).add_event(request)
    assert totals.cost() == {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "cached_tokens": 40,
        "cost_usd_micros": 7,
    }


def test_b4_a_tripped_step_loses_no_tokens_and_costs_what_it_replaced() -> None:
    totals = Totals().add_event(TRIP)
    assert totals.cost() == {
        "prompt_tokens": 400,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "cost_usd_micros": 11,
    }
    assert totals.stop_reason_id == 91


def test_tool_calls_by_verdict() -> None:
    totals = Totals().add_event(tool(True, 1)).add_event(tool(True, 1)).add_event(tool(False, 2))
    assert totals.tool_calls() == {"total": 3, "allowed": 2, "blocked": 1}


@pytest.mark.parametrize(
    "bad",
    [
        tool(True, 2),
        tool(False, 1),
        event("tool_call", name="agent.tool_call"),
        event("tool_call", name="agent.tool_call", payload={"allowed": 1}),
        event("model_response", metrics={"prompt_tokens": -1}),
        event("model_response", metrics={"prompt_tokens": 1.5}),
        event("model_response", metrics={"prompt_tokens": True}),
        event("model_response", payload={"cost_usd_micros": LIMIT + 1}),
        event("model_response", metrics=[]),
        event("breaker_tripped", payload={"replaced": None}),
        event("opened", stop_reason_id="1"),
    ],
)
def test_events_that_contradict_themselves(bad: dict[str, Any]) -> None:
    with pytest.raises(InconsistentEvent):
        Totals().add_event(bad)


def test_case19_sums_stop_at_the_largest_integer() -> None:
    full = Totals(prompt_tokens=LIMIT - 100)
    assert full.add_event(response()).prompt_tokens == LIMIT
    with pytest.raises(TotalsOverflow, match="prompt_tokens"):
        Totals(prompt_tokens=LIMIT - 99).add_event(response())


def test_records_and_events_give_the_same_totals() -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 40, "cost_usd_micros": 7}
    of_response = record_payload(event=response(), identity={}, counts=counts, stop_reason_id=1, attempt=None)
    of_tool = record_payload(
        event=tool(False, 2),
        identity={},
        counts={"tool_calls": 1, "tool_blocked": 1},
        stop_reason_id=None,
        attempt=None,
    )
    records = Totals()
    for payload in (of_response, of_tool):
        records = records.add_record(JournalRecord.read(payload, index=0))
    events = Totals().add_event(response()).add_event(tool(False, 2))
    assert records == events
    assert records.differences(events) == []
    assert records.differences(Totals(prompt_tokens=101, completion_tokens=20)) == [
        "tool_total",
        "tool_blocked",
        "prompt_tokens",
        "cached_tokens",
        "cost_usd_micros",
        "stop_reason_id",
    ]


@pytest.mark.parametrize(
    ("events", "idle", "expected"),
    [
        ([], False, 4),
        ([event("model_response", stop_reason_id=1)], False, 1),
        ([event("model_response", stop_reason_id=3), event("tool_result")], False, 3),
        ([event("model_response", stop_reason_id=1), event("x", stop_reason_id=0)], False, 4),
        ([event("model_response", stop_reason_id=55)], False, 4),
        ([event("model_response", stop_reason_id=1)], True, 4),
        ([event("cancel_requested"), event("model_response", stop_reason_id=1)], False, 99),
        ([event("cancel_requested")], True, 99),
        ([TRIP, event("model_response", stop_reason_id=1)], False, 1),
        ([event("breaker_tripped", payload={"breaker_action": "abort"}), event("x", stop_reason_id=1)], False, 91),
        (
            [
                event("breaker_tripped", payload={"breaker_action": "abort"}),
                event("breaker_reset"),
                event("x", stop_reason_id=1),
            ],
            False,
            1,
        ),
        ([event("breaker_tripped", payload={"breaker_action": "abort"}), event("cancel_requested")], False, 99),
    ],
)
def test_f5_final_stop_reason(events: list[dict[str, Any]], idle: bool, expected: int) -> None:
    totals = Totals()
    for each in events:
        totals = totals.add_event(each)
    assert final_stop_reason(totals, idle=idle) == expected


def test_f5_a_foreign_event_cannot_claim_a_cancel() -> None:
    foreign = event("event", payload={"type": "x", "payload": {"action": "cancel_requested"}})
    assert final_stop_reason(Totals().add_event(foreign)) == 4
