"""Faults that people met elsewhere (cases 1, 11, 17, 18, 19 and 23), tried on a running session."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from temporalio.client import Client, WorkflowExecutionStatus

from affidavit.contract import BreakerConfig
from affidavit.errors import SessionRefused
from tests.support.foreign import SPEC, failure, json_payload, payload, start
from tests.support.oracle import attested, sha256
from tests.support.rig import AGENT, Rig, actions


async def test_case1_no_input_is_lost_in_silence(running: Rig) -> None:
    session = await running.open()
    # Another program, with the SDK's own converter: it lets half a surrogate pair through.
    other = await Client.connect(running.client.temporal.service_client.config.target_host)
    handle = other.get_workflow_handle(session.session_id)
    response = {"kind": "model_response", "text": "first", "producer": "agent", "producer_seq": 1}
    bad = {**response, "producer_seq": "later"}
    await handle.signal("model_response", response)
    await handle.signal("model_response", bad)
    await handle.signal("model_response", {**response, "text": "third", "producer_seq": 3})
    await handle.signal("model_response", {**response, "text": "half \ud83d", "producer_seq": 4})
    outcome = await session.close()

    events = attested(running, outcome)
    names = ["opened", "model_response", "message_rejected", "model_response", "model_response", "producer_gap"]
    assert actions(events) == names
    sent = json.dumps(bad, separators=(",", ":"), sort_keys=True).encode()
    assert events[2]["payload"] == {
        "action": "message_rejected",
        "name": "model_response",
        "reason": "producer_seq: Input should be a valid integer",
        "sha256": sha256(sent),
        "bytes": len(sent),
    }
    assert [event["payload"].get("producer_seq") for event in events[1:]] == [1, None, 3, 4, None]
    # The number that the rejected one should have had never came.
    gap = {"action": "producer_gap", "producer": "agent", "first_missing": 2, "last_missing": 2}
    assert events[5]["payload"] == gap
    last = running.captures(session.session_id)[4]
    assert last["text"] == '"half \\ud83d"'
    assert last["extra"] == {"affidavit": {"encoding": {"text": "lone_surrogate"}}}
    assert [event["payload"].get("json_text") for event in events] == [None, None, None, None, True, None]
    assert (outcome.steps, outcome.rejected, outcome.event_count) == (3, 1, 6)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"breaker": {"min_tokens": ""}}, "breaker.min_tokens: Input should be a valid integer"),
        ({"mode": "shadow"}, "mode: Input should be 'signed' or 'unsigned'"),
        ({"breaker": {"window": -3}}, "breaker.window: Input should be greater than or equal to 1"),
    ],
    ids=["empty string", "unknown mode", "negative window"],
)
async def test_case11_a_bad_start_argument_ends_the_session_within_seconds(
    running: Rig, changed: dict[str, Any], reason: str
) -> None:
    handle = await start(running, f"s-{uuid.uuid4()}", json_payload({**SPEC, **changed}))
    error = await failure(handle)
    assert error.message == f"invalid session spec: {reason}"
    description = await handle.describe()
    assert description.status is WorkflowExecutionStatus.FAILED
    assert description.close_time is not None
    assert (description.close_time - description.start_time).total_seconds() < 5
    assert not (running.data.evidence / "sessions").exists()


async def test_case17_keys_sort_by_utf16_unit(running: Rig) -> None:
    session = await running.open()
    arguments = {"\uff21": 2, "\U00010000": 1}
    await session.record(
        {"kind": "tool_call", "call_id": "c", "tool": "t", "allowed": True, "arguments": arguments},
        {"kind": "tool_result", "call_id": "c", "content": arguments},
    )
    outcome = await session.close()
    _, call, result = attested(running, outcome)
    # By code point U+FF21 would come first; RFC 8785 sorts by UTF-16 unit, and U+10000 begins with D800.
    canonical = '{"\U00010000":1,"\uff21":2}'.encode()
    assert call["payload"]["arguments_sha256"] == result["payload"]["content_sha256"] == sha256(canonical)
    (segment,) = sorted((running.folder(session.session_id) / "captures").iterdir())[1:]
    assert all(canonical in line for line in segment.read_bytes().splitlines())


async def test_case18_half_a_surrogate_pair_is_kept_by_rule_or_rejected(running: Rig) -> None:
    session = await running.open()
    handle = running.client.temporal.get_workflow_handle(session.session_id)
    call = {"kind": "tool_call", "call_id": "c", "tool": "t", "allowed": False, "stage": "policy"}
    steps: list[dict[str, Any]] = [
        {**call, "arguments": {"value": "\ud83d"}},
        {**call, "arguments": {"\ud83d": "key"}},
        {**call, "reason": "x" * 255 + "\ud83d\ude00 and more"},  # two escapes, one character: the cut keeps it whole
        {**call, "reason": "x" * 255 + "\ud83d and more"},
        {**call, "arguments": {"value": "\ud83d\ude00"}},
        {**call, "tool": "\ud83d"},
    ]
    for step in steps:
        await handle.signal("tool_call", payload(json.dumps(step)))
    outcome = await session.close()

    events = attested(running, outcome)
    names = ["opened", "tool_call", "message_rejected", "tool_call", "tool_call", "tool_call", "message_rejected"]
    assert actions(events) == names
    captures = running.captures(session.session_id)
    assert captures[1]["arguments"]["value"] == {
        "encoding": "json-text",
        "text": '"\\ud83d"',
        "sha256": sha256(b'"\\ud83d"'),
        "why": "lone_surrogate",
    }
    assert events[2]["payload"]["reason"] == "a key holds a lone surrogate"
    assert events[3]["payload"]["reason"] == "x" * 255 + "\U0001f600"
    assert "extra" not in captures[3]
    assert [event["payload"].get("json_text") for event in events] == [None, True, None, None, True, None, None]
    # The JSON text with its quote and 255 characters.
    assert events[4]["payload"]["reason"] == '"' + "x" * 255
    assert captures[4]["reason"] == '"' + "x" * 255 + '\\ud83d and more"'
    assert captures[4]["extra"] == {"affidavit": {"encoding": {"reason": "lone_surrogate"}}}
    assert captures[5]["arguments"] == {"value": "\U0001f600"}
    assert events[6]["payload"]["reason"].startswith("tool: ")
    assert (outcome.steps, outcome.rejected) == (4, 2)


async def test_case19_numbers_are_exact_or_refused_and_no_float_is_in_a_receipt(running: Rig) -> None:
    session = await running.open()
    handle = running.client.temporal.get_workflow_handle(session.session_id)
    usages = [
        '{"completion_tokens":9007199254740991,"prompt_tokens":0,"cost_usd":0.30000000000000004}',
        '{"completion_tokens":9007199254740992}',
        '{"completion_tokens":9007199254740993}',
        '{"prompt_tokens":1e21}',
        '{"prompt_tokens":-0.0}',
        '{"prompt_tokens":1.0}',
        '{"prompt_tokens":NaN}',
        '{"prompt_tokens":-1}',
        '{"prompt_tokens":true}',
        '{"prompt_tokens":0,"cost_usd":1e21}',
        '{"prompt_tokens":0,"cost_usd":-0.0}',
    ]
    for usage in usages:
        await handle.signal("model_response", payload('{"kind":"model_response","text":"x","usage":' + usage + "}"))
    values = '{"big":9007199254740993,"long":1000000000000000000000,"double":1e21,"zero":-0.0,"none":NaN}'
    await handle.signal("tool_result", payload('{"kind":"tool_result","content":' + values + "}"))
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events)[1:] == [
        "model_response",
        *["message_rejected"] * 9,
        "model_response",
        "tool_result",
    ]
    content = running.captures(session.session_id)[12]["content"]
    assert (content["double"], content["zero"]) == (1e21, 0)
    kept = {name: (content[name]["text"], content[name]["why"]) for name in ("big", "long", "none")}
    assert kept == {
        "big": ("9007199254740993", "big_integer"),
        "long": ("1000000000000000000000", "big_integer"),
        "none": ("NaN", "non_finite"),
    }

    def no_float(literal: str) -> None:
        raise AssertionError(f"a float in the receipt: {literal}")

    text = (running.folder(session.session_id) / "receipt.json").read_text()
    receipt = json.loads(text, parse_float=no_float, parse_constant=no_float)
    assert receipt["cost"]["completion_tokens"] == 9_007_199_254_740_991
    assert receipt["cost"]["cost_usd_micros"] == 300_000


def rows(events: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for event in events:
        stop = (event["stop_reason_id"], event["stop_reason"]) if "stop_reason_id" in event else None
        yield (
            event["payload"]["action"],
            event["class_name"],
            event["class_uid"],
            event["type_uid"],
            event["severity_id"],
            event["status_id"],
            stop,
        )


async def test_case23_every_kind_of_event_is_in_its_class_with_its_caption(running: Rig) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0, window=1, action="observe"))
    call = {"kind": "tool_call", "call_id": "c", "tool": "t", "allowed": True}
    await session.record(
        {"kind": "model_request", "messages": [{"role": "user", "content": "hello"}], "tokens_before": 8},
        {"kind": "model_response", "text": "one", "finish_reason": "stop"},
        {"kind": "model_response", "text": "two, and quite unlike it", "finish_reason": "max_tokens"},
        {"kind": "model_response", "text": "a third thing, said at length", "finish_reason": "ran_out_of_luck"},
        {"kind": "model_response", "text": "a third thing, said at length", "finish_reason": "stop"},
        {"kind": "model_response", "tool_calls": [{"call_id": "c", "name": "t", "arguments": {}}]},
        {"kind": "model_failure", "reason": "upstream_error", "status": 503},
        call,
        {**call, "allowed": False, "stage": "schema", "reason": "no such field"},
        {**call, "allowed": False, "stage": "budget"},
        {"kind": "tool_result", "call_id": "c", "content": None},
        {"kind": "tool_result", "call_id": "c", "content": "boom", "ok": False},
    )
    numbered = {**call, "producer": "p"}
    await session.submit({**numbered, "producer_seq": 1}, {**numbered, "producer_seq": 3})
    with pytest.raises(SessionRefused, match="another body"):
        await session.submit({**numbered, "producer_seq": 1, "tool": "another"})
    await running.client.temporal.get_workflow_handle(session.session_id).signal("nobody")
    await session.reset_breaker(by="me", reason="seen")
    await session.refresh_identity(AGENT)
    with pytest.raises(SessionRefused):
        await session.refresh_identity(AGENT.model_copy(update={"instance_uid": "another"}))
    outcome = await session.close()

    attested(running, outcome)
    published = running.bus(session.session_id)
    stop = "agent.stop_reason"
    assert list(rows(published)) == [
        ("opened", "agent.session", 9906, 990601, 1, 1, None),
        ("model_request", "agent.compression", 9904, 990401, 1, 1, None),
        ("model_response", stop, 9902, 990201, 1, 1, (1, "stop")),
        ("model_response", stop, 9902, 990201, 1, 1, (2, "max_tokens")),
        ("model_response", stop, 9902, 990201, 1, 1, (99, "ran_out_of_luck")),
        ("breaker_tripped", stop, 9902, 990201, 4, 2, (91, "Loop Detected")),
        ("model_response", "agent.session", 9906, 990601, 1, 1, None),
        ("model_failure", stop, 9902, 990201, 1, 2, (99, "upstream_error")),
        ("tool_call", "agent.tool_call", 9901, 990101, 1, 1, None),
        ("tool_call", "agent.tool_call", 9901, 990101, 4, 2, (93, "Policy Blocked")),
        ("tool_call", "agent.tool_call", 9901, 990101, 4, 2, (92, "Budget Exceeded")),
        ("tool_result", "agent.session", 9906, 990601, 1, 1, None),
        ("tool_result", "agent.session", 9906, 990601, 1, 2, None),
        ("tool_call", "agent.tool_call", 9901, 990101, 1, 1, None),
        ("tool_call", "agent.tool_call", 9901, 990101, 1, 1, None),
        ("producer_conflict", "agent.session", 9906, 990601, 1, 2, None),
        ("message_rejected", "agent.session", 9906, 990601, 1, 2, None),
        ("breaker_reset", "agent.session", 9906, 990601, 1, 1, None),
        ("identity_refreshed", "agent.identity", 9905, 990501, 1, 1, None),
        ("refused", stop, 9902, 990201, 1, 2, (94, "Identity Rejected")),
        ("producer_gap", "agent.session", 9906, 990601, 1, 1, None),
        ("receipt", "agent.receipt", 9903, 990301, 1, 1, None),
        ("closed", "agent.session", 9906, 990601, 1, 1, None),
    ]
    request = published[1]
    assert request["metrics"] == {"prompt_tokens": 2, "pruned_tokens": 6, "pruning_ratio_millis": 750}
    assert request["payload"]["roles"] == ["user"]
    schema = json.loads((files("affidavit.evidence.schemas") / "event.schema.json").read_text())
    validator = Draft202012Validator(schema)
    for event in published:
        assert [error.message for error in validator.iter_errors(event)] == []
        assert event["category_uid"] == 6
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    # The schema can say no.
    assert not validator.is_valid({**published[0], "severity_id": 7})
    assert not validator.is_valid({**published[0], "surprise": 1})
