"""P9: custom events are of a type that was declared at open, and on its schema."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from affidavit.errors import SessionFailed, SessionRefused
from affidavit.evidence.schemas import load
from tests.support.bare import Bare, call, said
from tests.support.oracle import attested
from tests.support.rig import Rig, actions
from tests.support.waiting import eventually

PAID = {
    "type": "object",
    "properties": {"cents": {"type": "integer", "minimum": 1}, "note": {"type": "string", "pattern": "^(a+)+$"}},
    "required": ["cents"],
    "additionalProperties": False,
}
TYPES = {"paid": PAID, "anything": {}}
SECRET = "attack-at-dawn"


def paid(**payload: Any) -> dict[str, Any]:
    return {"kind": "event", "type": "paid", "payload": payload}


async def test_p9_declared_events_are_chained_like_any_step(running: Rig) -> None:
    session = await running.open(session_id="p9", event_types=TYPES, content="full")
    result = await session.submit(call("c1"), paid(cents=7), {"kind": "event", "type": "anything", "payload": None})
    await Bare(running, "p9").step(paid(cents=8, note="aaa"))
    outcome = await session.close()
    assert (result.first_sequence, result.last_sequence, outcome.steps, outcome.rejected) == (1, 3, 4, 0)
    events = attested(running, outcome)
    assert actions(events) == ["opened", "tool_call", "event", "event", "event"]
    digest = hashlib.sha256(b'{"cents":7}').hexdigest()
    assert {**events[2]["payload"], "capture_sha256": "", "producer": "", "producer_seq": 0} == {
        "action": "event",
        "type": "paid",
        "payload": {"cents": 7},
        "payload_sha256": digest,
        "capture_sha256": "",
        "producer": "",
        "producer_seq": 0,
    }
    assert events[2]["class_name"] == "agent.session"
    valid = Draft202012Validator(load("event"))
    assert [error.message for event in events for error in valid.iter_errors(event)] == []


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"kind": "event", "type": "refund", "payload": {}}, "event type refund is not declared"),
        (paid(cents=SECRET), "event paid: payload.cents is off its schema (type)"),
        (paid(), "event paid: payload is off its schema (required)"),
        (paid(cents=1, note="a" * 50_000 + "!"), "event paid: payload.note is off its schema (pattern)"),
    ],
    ids=["undeclared", "type", "required", "pattern that backtracks"],
)
async def test_p9_an_update_is_refused_and_a_signal_rejected(running: Rig, step: dict[str, Any], reason: str) -> None:
    session = await running.open(event_types=TYPES, content="digest")
    bare = Bare(running, session.session_id)
    # Nothing of a submission is taken if one of its events is refused; the handle goes on without a gap.
    with pytest.raises(SessionRefused) as refused:
        await session.submit(call("c0"), step)
    assert (refused.value.type, refused.value.reason) == ("EventRefused", f"steps.1: {reason}")
    assert (await session.submit(call("c1"))).first_sequence == 1
    # Of a record only that step, in its place.
    await bare.record(call("c2"), step, paid(cents=2))
    await bare.update("flush")
    outcome = await session.close()
    events = running.journal(session.session_id)
    assert outcome.receipt is not None
    assert actions(events) == ["opened", "tool_call", "tool_call", "message_rejected", "event"]
    data = json.dumps(step).encode()
    assert events[3]["payload"] == {
        "action": "message_rejected",
        "name": "event",
        "reason": reason,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
    }
    assert (outcome.rejected, SECRET in json.dumps(events)) == (1, False)


async def test_p9_they_are_no_steps_of_a_trajectory(running: Rig) -> None:
    session = await running.open(mode="unsigned", event_types=TYPES)
    await session.submit(said("hello"), paid(cents=7), call("c1"))
    outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 3)
    trajectory = json.loads((running.folder(session.session_id) / "trajectory.json").read_text())
    assert [step["source"] for step in trajectory["steps"]] == ["agent", "agent"]


async def test_p9_without_a_declaration_every_custom_event_is_rejected(running: Rig) -> None:
    session = await running.open()
    with pytest.raises(SessionRefused, match="event type paid is not declared"):
        await session.submit(paid(cents=1))
    await session.record(paid(cents=1))
    assert (await session.close()).rejected == 1


async def test_p9_a_large_submission_is_checked_as_a_small_one(running: Rig) -> None:
    session = await running.open(event_types=TYPES)
    many = [{"kind": "tool_result", "content": "x" * 50_000} for _ in range(3)]
    with pytest.raises(SessionRefused) as refused:
        await session.submit(*many, paid(cents=0))
    assert refused.value.reason == "steps.3: event paid: payload.cents is off its schema (minimum)"
    assert (await session.submit(*many, paid(cents=1))).last_sequence == 4
    assert (await session.close()).rejected == 0


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.com/schema.json"}, "may only point into the schema itself"),
        ({"items": {"$ref": "other.json#/x"}}, "may only point into the schema itself"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "nothing is at /\\$defs/missing"),
        ({"$ref": "#/const", "const": {"patternProperties": {"^(a+)+$": {}}}}, "may only be #, #/"),
        ({"patternProperties": {"^a": {}}}, "patternProperties is not taken"),
        ({"pattern": "(a{1,100}){1,100}b"}, "too many counted repetitions"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "only draft 2020-12"),
        ({"enum": ["x" * 40_000]}, "at most 32768"),
    ],
)
async def test_p9_what_can_be_told_of_a_schema_is_told_by_the_client(
    running: Rig, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SessionRefused, match=reason):
        await running.client.open(
            {"agent": {"version": "1", "charter": "c", "instance_uid": "i"}, "event_types": {"paid": schema}}
        )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "whole number"}, "type is no valid"),
        ({"pattern": "(?=a)b"}, "cannot be matched in linear time"),
    ],
)
async def test_p9_a_schema_that_is_none_opens_nothing(running: Rig, schema: dict[str, Any], reason: str) -> None:
    with pytest.raises((SessionRefused, SessionFailed), match=reason):
        await running.open(session_id=f"p9-{abs(hash(reason))}", event_types={"paid": schema})


async def test_p9_events_are_checked_in_order_with_everything_else_across_a_worker_restart(rig: Rig) -> None:
    async with rig.worker():
        session = await rig.open(event_types=TYPES)
        bare = Bare(rig, session.session_id)
        await bare.record(*(paid(cents=number) for number in (1, 0, 2)))
    await asyncio.gather(*(bare.step(paid(cents=number)) for number in (0, 3)))
    async with rig.worker():
        await eventually(bare.view, lambda view: view["event_count"] == 6)
        outcome = await session.close()
    assert sorted(actions(attested(rig, outcome))[1:]) == ["event"] * 3 + ["message_rejected"] * 2
