"""Behaviours B5 and B6: what cannot be read becomes an event, and the session goes on."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.converter import default as default_converter
from temporalio.exceptions import ApplicationError

from affidavit.client import SessionHandle
from affidavit.contract import STORED_MESSAGE_BYTES
from tests.support.foreign import SPEC, json_payload, payload, start
from tests.support.oracle import attested, sha256
from tests.support.rig import Rig, actions

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
RESULT = {"kind": "tool_result", "call_id": "c1", "content": {"found": 3}}
GOOD = json_payload(CALL)
LARGE = '{"kind":"tool_result","content":"' + "x" * STORED_MESSAGE_BYTES + '"}'
DEEP = '{"kind":"tool_result","content":' + "[" * 600 + "]" * 600 + "}"
MANY_DIGITS = '{"kind":"tool_result","content":' + "7" * 5_000 + "}"


def raw(session: SessionHandle, rig: Rig) -> WorkflowHandle[Any, Any]:
    return rig.client.temporal.get_workflow_handle(session.session_id)


def data_of(args: list[Any]) -> bytes:
    """The payload bytes as a worker receives them, arguments concatenated (formats.md 3.2)."""
    parts = []
    for arg in args:
        (encoded,) = (
            [arg.payload] if isinstance(arg, RawValue) else default_converter().payload_converter.to_payloads([arg])
        )
        parts.append(encoded.data)
    return b"".join(parts)


MESSAGES: list[Any] = [
    # what stands around the message
    ("tool_call", [], "0 arguments, expected 1", "no argument"),
    ("tool_call", [GOOD, GOOD], "2 arguments, expected 1", "two arguments"),
    ("record", [GOOD, payload(b"\x01", "x/y"), GOOD], "3 arguments, expected 1", "three arguments"),
    ("tool_call", [GOOD] * 4, "4 arguments, expected 1", "four arguments"),
    ("tool_call", [None], "encoding binary/null is not json/plain", "null"),
    ("tool_call", [b"bytes"], "encoding binary/plain is not json/plain", "bytes"),
    ("tool_call", [payload(b"\x0a\x00", "binary/protobuf")], "encoding binary/protobuf is not json/plain", "protobuf"),
    ("tool_call", [payload(json.dumps(CALL), None)], "encoding unknown is not json/plain", "no encoding"),
    ("tool_call", [payload(b"\x0a\x0b", "affidavit/unavailable")], "payload unavailable", "unavailable"),
    ("tool_call", [payload(b"\xff{}")], "not UTF-8", "not UTF-8"),
    ("tool_result", [payload(LARGE)], "16777251 bytes, over the limit of 16777216", "over 16 MiB"),
    # what is no JSON, or none that two readers read alike
    ("tool_call", [payload("")], "not JSON: Expecting value at 0", "empty"),
    ("tool_call", [payload("{} {}")], "not JSON: Extra data at 3", "trailing text"),
    ("tool_call", [payload('{"kind":"tool_call","kind":"tool_call"}')], "duplicate key in an object", "duplicate key"),
    (
        "tool_result",
        [payload('{"kind":"tool_result","content":[{"a":{"b":1,"\\u0062":2}}]}')],
        "duplicate key in an object",
        "duplicate key inside",
    ),
    ("tool_result", [payload(DEEP)], "nested deeper than 512", "600 deep"),
    ("tool_result", [payload(MANY_DIGITS)], "an integer of more than 4000 digits", "5 000 digits"),
    (
        "tool_result",
        [payload('{"kind":"tool_result","content":{"\\ud83d":1}}')],
        "a key holds a lone surrogate",
        "lone surrogate in a key",
    ),
    # what is no step
    ("tool_call", [json_payload([CALL])], "a step is an object", "a list"),
    ("tool_call", [json_payload("text")], "a step is an object", "a string"),
    ("tool_call", [json_payload({})], "Unable to extract tag using discriminator 'kind'", "no kind"),
    ("tool_call", [json_payload(RESULT)], "a step of kind tool_result in a signal tool_call", "another kind"),
    ("tool_call", [json_payload({**CALL, "allowed": "yes"})], "allowed: Input should be a valid boolean", "wrong type"),
    ("tool_call", [json_payload({**CALL, "colour": 1})], "colour: Extra inputs are not permitted", "unknown field"),
    (
        "tool_call",
        [json_payload({"kind": "tool_call", "call_id": "c", "tool": "t"})],
        "allowed: Field required",
        "missing field",
    ),
    (
        "tool_call",
        [json_payload({**CALL, "producer": "p", "producer_seq": "later"})],
        "producer_seq: Input should be a valid integer",
        "producer_seq is a word",
    ),
    (
        "tool_call",
        [json_payload({**CALL, "producer": "two words", "producer_seq": 1})],
        "producer: String should match pattern '^[\\x21-\\x7e]{1,64}$'",
        "bad producer id",
    ),
    (
        "tool_call",
        [json_payload({**CALL, "claimed_time": "yesterday"})],
        "claimed_time: Value error, Invalid isoformat string: 'yesterday'",
        "bad time",
    ),
    (
        "model_response",
        [json_payload({"kind": "model_response", "text": "x", "usage": {"prompt_tokens": 2**53}})],
        "usage.prompt_tokens: Input should be less than or equal to 9007199254740991",
        "a counter beyond the limit",
    ),
    (
        "model_response",
        [payload('{"kind":"model_response","text":"x","usage":{"cost_usd":NaN}}')],
        "usage.cost_usd: Value error, a cost is finite, not negative and at most 2^53-1 micro-USD",
        "a cost that is no number",
    ),
    # what is no record
    ("record", [json_payload([CALL])], 'a record is {"steps": [...]}', "a record that is a list"),
    ("record", [json_payload({"steps": []})], "a record without steps", "a record without steps"),
    (
        "record",
        [json_payload({"steps": [CALL], "more": 1})],
        'a record is {"steps": [...]}, nothing before or after',
        "a record with another key",
    ),
    ("record", [payload('{"steps":[{},]}')], "not JSON: Expecting value at 13", "a record with a comma too many"),
    # B6: names that nobody knows
    ("toolcall", [GOOD], "unknown signal", "unknown name"),
    ("__temporal_signal", [GOOD], "unknown signal", "a name of Temporal's own"),
    ("close", [], "unknown signal", "the name of an update"),
    ("two\nlines", [GOOD], "unknown signal", "a name with a line break"),
    ("x" * 200, [], "unknown signal", "a long name"),
]
PRINTED = {"two\nlines": "two\\x0alines", "x" * 200: "x" * 63 + "\u2026"}
"""Names as an event shows them (I5)."""

ALONE = {
    "no argument",
    "four arguments",
    "unavailable",
    "no encoding",
    "over 16 MiB",
    "600 deep",
    "5 000 digits",
    "unknown name",
}


def rejection_of(name: str, args: list[Any]) -> dict[str, Any]:
    """The payload of the event that stands for a message, but for its reason."""
    data = data_of(args)
    printed = PRINTED.get(name, name)
    return {"action": "message_rejected", "name": printed, "sha256": sha256(data), "bytes": len(data)}


async def test_b5_b6_each_unreadable_message_is_one_event_between_its_neighbours(running: Rig) -> None:
    session = await running.open()
    handle = raw(session, running)
    for name, args, _, _ in MESSAGES:
        await handle.signal(name, args=args)
        await handle.signal("tool_result", json_payload(RESULT))
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events) == ["opened", *["message_rejected", "tool_result"] * len(MESSAGES)]
    for (name, args, reason, title), event in zip(MESSAGES, events[1::2], strict=True):
        stated = dict(event["payload"])
        # What pydantic says of a bad value may go on after what is pinned here.
        assert (title, stated.pop("reason")[: len(reason)]) == (title, reason)
        assert stated == rejection_of(name, args)
        assert (event["class_name"], event["status_id"], event["severity_id"]) == ("agent.session", 2, 1)
        assert "stop_reason_id" not in event
    assert (outcome.rejected, outcome.steps) == (len(MESSAGES), len(MESSAGES))


@pytest.mark.parametrize(
    ("name", "args", "reason"), [pytest.param(*row[:3], id=row[3]) for row in MESSAGES if row[3] in ALONE]
)
async def test_b5_what_cannot_be_read_is_one_event_and_the_session_goes_on(
    running: Rig, name: str, args: list[Any], reason: str
) -> None:
    session = await running.open()
    await raw(session, running).signal(name, args=args)
    await session.record(RESULT)
    assert (await session.flush()).event_count == 3
    view = await session.view()
    assert (view.state, view.rejected, view.steps, view.poisoned) == ("open", 1, 1, None)
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events) == ["opened", "message_rejected", "tool_result"]
    assert events[1]["payload"] == {**rejection_of(name, args), "reason": reason}
    assert (outcome.rejected, outcome.steps) == (1, 1)


async def test_b5_one_bad_step_of_a_record_is_rejected_alone_in_its_place(running: Rig) -> None:
    session = await running.open()
    steps = [json.dumps(CALL), '{"kind":"tool_call"}', '{"n": 1e2}', json.dumps(RESULT)]
    await raw(session, running).signal("record", payload('{"steps":[' + " , ".join(steps) + "]}"))
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events) == ["opened", "tool_call", "message_rejected", "message_rejected", "tool_result"]
    assert events[2]["payload"] == {
        "action": "message_rejected",
        "name": "record",
        "reason": "steps.1: call_id: Field required",
        "sha256": sha256(b'{"kind":"tool_call"}'),
        "bytes": 20,
    }
    assert events[3]["payload"]["sha256"] == sha256(b'{"n": 1e2}')
    assert (outcome.rejected, outcome.steps) == (2, 2)


async def test_b5_a_hundred_bad_messages_in_a_row_are_a_hundred_events(running: Rig) -> None:
    session = await running.open()
    handle = raw(session, running)
    for number in range(100):
        await handle.signal(f"name-{number}", args=[])
    outcome = await session.close()
    events = attested(running, outcome)
    assert [event["payload"]["name"] for event in events[1:]] == [f"name-{number}" for number in range(100)]


async def test_b5_a_session_with_rejected_messages_can_be_cancelled(running: Rig) -> None:
    session = await running.open()
    await raw(session, running).signal("nobody", args=[])
    await session.cancel()
    outcome = await session.result()
    assert (outcome.status, outcome.rejected) == ("cancelled", 1)
    assert actions(attested(running, outcome)) == ["opened", "message_rejected", "cancel_requested"]


# -- the limits themselves are good ---------------------------------------------------------------------


KEPT: list[tuple[str, str | None]] = [
    ("[" * 96 + "]" * 96, None),
    ("[" * 511 + "]" * 511, "depth"),  # the step around it makes it 512
    ("7" * 4_000, "big_integer"),
    ("-0.0", None),
    ("[NaN]", "non_finite"),
    ('"\\ud83d"', "lone_surrogate"),
    ('"\\ud83d\\ude00"', None),
    ('"' + "x" * 1_499_965 + '"', None),
]


async def test_b5_what_lies_within_the_limits_is_kept(running: Rig) -> None:
    session = await running.open()
    for content, _ in KEPT:
        await raw(session, running).signal("tool_result", payload('{"kind":"tool_result","content":' + content + "}"))
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events) == ["opened", *["tool_result"] * len(KEPT)]
    for (content, why), capture in zip(KEPT, running.captures(session.session_id)[1:], strict=True):
        kept = capture["content"]
        if why is None:
            assert kept == json.loads(content)
            continue
        text = content
        if why == "non_finite":  # the smallest value at fault is replaced, here inside a list
            (kept,) = kept
            text = "NaN"
        assert kept == {"encoding": "json-text", "text": text, "sha256": sha256(text.encode()), "why": why}


# -- updates and queries --------------------------------------------------------------------------------

DEEP_RECORD = '{"steps":[' + DEEP + "]}"
BAD_UPDATES: list[tuple[str, list[Any], str | None, str]] = [
    # A type of None: Temporal's own refusal, whose words are its own.
    ("submit", [], None, "missing 1 required positional argument"),
    ("submit", [payload("{}")] * 2, None, "takes 2 positional arguments but 3 were given"),
    ("submit", [payload("{}")] * 3, None, "takes 2 positional arguments but 4 were given"),
    ("submit", [payload(b"\x00", "x/y")] * 4, None, "arguments cannot be decoded; their encodings: x/y"),
    ("submit", [json_payload({"steps": []})], "BadRequest", "a record without steps"),
    (
        "submit",
        [json_payload({"steps": [CALL, {**CALL, "allowed": 1}]})],
        "BadRequest",
        "steps.1: allowed: Input should be a valid boolean",
    ),
    ("submit", [payload(DEEP_RECORD)], "BadRequest", "nested deeper than 512"),
    ("submit", [payload("{}", "affidavit/unavailable")], "BadRequest", "payload unavailable"),
    ("submit", [payload("{}", None)], "BadRequest", "encoding unknown is not json/plain"),
    ("close", [payload(b"\x00", "x/y")], None, "arguments cannot be decoded; their encodings: x/y"),
    ("attach", [], None, "missing 1 required positional argument"),
    ("attach", [payload("[]")], "BadSpec", "invalid session spec: Input should be a valid dict"),
    ("refresh_identity", [json_payload({"version": "1"})], "BadRequest", "charter: Field required"),
    ("reset_breaker", [json_payload({"by": "me"})], "BadRequest", "reason: Field required"),
    ("reset_breaker", [None], "BadRequest", "encoding binary/null is not json/plain"),
    ("promote", [json_payload(SPEC)], None, "Update handler for 'promote' expected but not found"),
]


async def test_b5_a_bad_update_is_refused_to_its_caller_and_leaves_nothing(running: Rig) -> None:
    session = await running.open()
    for name, args, type_, reason in BAD_UPDATES:
        with pytest.raises(WorkflowUpdateFailedError) as failed:
            await raw(session, running).execute_update(name, args=args)
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert reason in cause.message
        assert type_ in (None, cause.type)
    assert (await session.view()).state == "open"
    outcome = await session.close()
    assert actions(attested(running, outcome)) == ["opened"]


async def test_b5_a_bad_query_fails_for_its_caller_alone(running: Rig) -> None:
    session = await running.open()
    handle = raw(session, running)
    for name, args in [("nothing", []), ("view", [payload(b"\x00", "x/y")]), ("terminal_state", [payload("{}", None)])]:
        with pytest.raises(WorkflowQueryFailedError):
            await handle.query(name, args=args)
    assert actions(attested(running, await session.close())) == ["opened"]


async def test_b5_an_argument_to_what_takes_none_is_ignored(running: Rig) -> None:
    # The SDK drops it; so a later version may give `close` an argument, and this one still closes.
    session = await running.open()
    handle = raw(session, running)
    assert (await handle.query("view", args=[GOOD]))["state"] == "open"
    assert (await handle.execute_update("flush", args=[GOOD, GOOD]))["event_count"] == 1
    await handle.execute_update("close", args=[GOOD])
    assert actions(attested(running, await session.result())) == ["opened"]


async def test_b5_the_product_client_sends_nothing_that_would_be_rejected(running: Rig) -> None:
    session = await running.open()
    cyclic: dict[str, Any] = {"kind": "tool_result", "content": []}
    cyclic["content"].append(cyclic)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"kind": "tool_call"}, "step 1: call_id: Field required"),
        ({**RESULT, "content": {1, 2}}, "step 1: Object of type set is not JSON serializable"),
        (cyclic, "step 1: Circular reference detected"),
    ]
    for step, reason in bad:
        with pytest.raises(ValueError, match=reason):
            await session.record(CALL, step)
    with pytest.raises(ValueError, match=r"the message has 16777\d{3} bytes, the limit is 16777216"):
        await session.record({"kind": "tool_result", "content": "x" * STORED_MESSAGE_BYTES})
    with pytest.raises(ValueError, match="there is no step to report"):
        await session.record()
    outcome = await session.close()
    assert actions(attested(running, outcome)) == ["opened"]


# -- what takes long to read ----------------------------------------------------------------------------

# A workflow task that does not yield within two seconds fails, and is retried for ever: each of these messages
# would have taken longer than that, or would together with a few of its like.
COSTLY = [
    ("record", '{"steps":[' + ",".join(["{}"] * 100_000) + "]}", "more than 1024 steps in a record"),
    (
        "model_request",
        '{"kind":"model_request","messages":[' + ",".join(["{}"] * 400_000) + "]}",
        "messages.0.role: Field required",
    ),
    (
        "tool_result",
        '{"kind":"tool_result","content":[' + ",".join(["1" * 3_999] * 300) + "]",
        "not JSON: Expecting ',' delimiter",
    ),
]


@pytest.mark.parametrize(("name", "text", "reason"), COSTLY, ids=["100 000 steps", "400 000 messages", "long integers"])
async def test_b5_a_message_that_takes_long_to_read_is_rejected_like_any_other(
    running: Rig, name: str, text: str, reason: str
) -> None:
    session = await running.open()
    await raw(session, running).signal(name, payload(text))
    await session.record(RESULT)
    async with asyncio.timeout(15):
        outcome = await session.close()
    events = attested(running, outcome)
    assert actions(events) == ["opened", "message_rejected", "tool_result"]
    assert events[1]["payload"]["reason"].startswith(reason)


async def test_b5_a_backlog_of_costly_messages_is_read_piece_by_piece(rig: Rig) -> None:
    # No worker runs while they arrive, so the first workflow task has all of them.
    handle = await start(rig, f"s-{uuid.uuid4()}", json_payload(SPEC))
    costly = payload('{"kind":"tool_result","content":[' + ",".join(["[]"] * 200_000) + '],"surprise":1}')
    for _ in range(9):
        await handle.signal("tool_result", costly)
    await asyncio.gather(
        *(handle.signal("record", json_payload({"steps": [{**CALL, "call_id": f"{n}"}] * 8})) for n in range(20))
    )
    async with rig.worker(), asyncio.timeout(30):
        outcome = await rig.client.handle(handle.id).close()
    assert actions(attested(rig, outcome)) == ["opened", *["message_rejected"] * 9, *["tool_call"] * 160]


async def test_b5_the_client_submits_no_more_steps_at_once_than_a_session_reads(running: Rig) -> None:
    session = await running.open()
    with pytest.raises(ValueError, match="1025 steps in one message, the limit is 1024"):
        await session.submit(*[RESULT] * 1025)
    assert (await session.submit(*[RESULT] * 1024)).last_sequence == 1024
    assert (await session.close()).steps == 1024
