from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from affidavit.evidence.ocsf import CLASSES, EventClass, InvalidEvent, build_event, read_event, validate_event
from affidavit.evidence.schemas import UnknownSchema, load
from affidavit.evidence.stops import from_provider

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())
GOLDEN: list[dict[str, Any]] = VECTORS["chain"]["ocsf"]["events"]
SCHEMA = jsonschema.Draft202012Validator(load("event"))

UID = "019fe9c7-fc00-7000-8000-000000000001"
SHA = "ab" * 32
HEAD = {"chain_head": SHA, "event_count": 9}
STEP = {"capture_sha256": SHA}
COMMON = {**STEP, "attempt_id": "a-1", "producer": "p", "producer_seq": 3, "claimed_time": "2026-08-10T00:00:00Z"}
RESPONSE = {"tool_calls": 0, "assessed": True, "cost_usd_micros": 120}
RECEIPT = {"receipt_id": UID, "key_id": "ab" * 16, "receipt": {"receipt_version": 1}}
DELTA = 0.12999999523162842
Stop = tuple[int, str]

# name: class, status, severity, stop, payload; one or more of each row of formats.md 3.2
KINDS: dict[str, tuple[str, int, int, Stop | None, dict[str, Any]]] = {
    "opened": (
        "session", 1, 1, None,
        {"action": "opened", "mode": "signed", "content": "store", "generation": UID, "registration_sha256": SHA},
    ),
    "prompt": (
        "compression", 1, 1, None,
        {"action": "model_request", "changed": True, "tokens_before": 100, "tokens_after": 90,
         "roles": ["system", "user"], "model": "m", **COMMON, "skewed": True, "messages": [{"role": "user"}]},
    ),
    "response with finish_reason": (
        "stop_reason", 1, 1, (1, "end_turn"),
        {"action": "model_response", "finish_reason": "end_turn", "model": "m", **RESPONSE, **COMMON},
    ),
    "response, unknown provider stop reason": (
        "stop_reason", 1, 1, (99, "pause_turn"),
        {"action": "model_response", "finish_reason": "pause_turn", **RESPONSE, **STEP},
    ),
    "response without finish_reason": (
        "session", 1, 1, None,
        {"action": "model_response", **RESPONSE, **STEP, "text": "t", "reasoning": "r", "tool_calls_announced": []},
    ),
    "model failure": (
        "stop_reason", 2, 1, (99, "upstream_error"),
        {"action": "model_failure", "reason": "upstream_error", "status": 503, **STEP},
    ),
    "tool call allowed": (
        "tool_call", 1, 1, None,
        {"action": "tool_call", "call_id": "c", "tool": "t", "allowed": True, "arguments_sha256": SHA, **STEP,
         "arguments": {"q": 1}},
    ),
    "tool call denied": (
        "tool_call", 2, 4, (93, "Policy Blocked"),
        {"action": "tool_call", "call_id": "c", "tool": "t", "allowed": False, "arguments_sha256": SHA, **STEP,
         "stage": "policy", "reason": "not on the list"},
    ),
    "tool call over budget": (
        "tool_call", 2, 4, (92, "Budget Exceeded"),
        {"action": "tool_call", "call_id": "c", "tool": "t", "allowed": False, "arguments_sha256": SHA, **STEP,
         "stage": "budget"},
    ),
    "tool result": (
        "session", 1, 1, None,
        {"action": "tool_result", "call_id": "c", "ok": True, "content_sha256": SHA, **STEP, "content": None},
    ),
    "failed tool result": (
        "session", 2, 1, None, {"action": "tool_result", "ok": False, "content_sha256": SHA, **STEP},
    ),
    "event": (
        "session", 1, 1, None, {"action": "event", "type": "x.y", "payload_sha256": SHA, **STEP, "payload": [1.5]},
    ),
    "breaker trip": (
        "stop_reason", 2, 4, (91, "Loop Detected"),
        {"action": "breaker_tripped", "delta": DELTA, "streak": 3, "tokens_consumed": 1600,
         "breaker_action": "reject", "replaced": {"action": "model_response", **RESPONSE}, **COMMON},
    ),
    "refused by the breaker": (
        "stop_reason", 2, 1, (91, "Loop Detected"), {"action": "refused", "reason": "breaker", "count": 1},
    ),
    "refused for identity": (
        "stop_reason", 2, 1, (94, "Identity Rejected"), {"action": "refused", "reason": "identity", "count": 12},
    ),
    "breaker reset": ("session", 1, 1, None, {"action": "breaker_reset", "by": "op", "reason": "looked at it"}),
    "message rejected": (
        "session", 2, 1, None,
        {"action": "message_rejected", "name": "record", "reason": "not JSON", "sha256": SHA, "bytes": 17},
    ),
    "producer conflict": (
        "session", 2, 1, None, {"action": "producer_conflict", "producer": "p", "producer_seq": 4, "sha256": SHA},
    ),
    "producer gap": (
        "session", 1, 1, None, {"action": "producer_gap", "producer": "p", "first_missing": 4, "last_missing": 6},
    ),
    "cancel requested": ("session", 1, 1, None, {"action": "cancel_requested"}),
    "abandon requested": ("session", 1, 1, None, {"action": "abandon_requested", "by": "op", "reason": "r" * 256}),
    "waiting": ("session", 1, 1, None, {"action": "waiting", "kind": "approval", "name": "deploy"}),
    "resumed": ("session", 1, 1, None, {"action": "resumed", "kind": "approval", "name": "deploy"}),
    "wake": ("session", 1, 1, None, {"action": "wake", "wake_id": "w-1", "target": "runtime"}),
    "identity refreshed": ("identity", 1, 1, None, {"action": "identity_refreshed", "ttl_remaining_s": 600}),
    "receipt": (
        "receipt", 1, 1, None,
        {"action": "receipt", **RECEIPT, "subject": {"kind": "event_chain", "chain_head": SHA, "event_count": 9}},
    ),
    "receipt of a promotion": (
        "receipt", 1, 1, None,
        {"action": "receipt", **RECEIPT, "subject": {"kind": "atif_trajectory", "trajectory_digest": SHA,
         "step_count": 2, "retroactive": True}},
    ),
    "close": ("session", 1, 1, None, {"action": "closed", "mode": "signed", "outcome": "closed", **HEAD}),
    "quarantine": ("session", 2, 5, None, {"action": "quarantined", "reason": "overflow", **HEAD}),
    "abandoned": ("session", 2, 1, None, {"action": "abandoned", "reason": "owner is silent", **HEAD}),
}  # fmt: skip


def event_of(kind: str) -> dict[str, Any]:
    class_name, status_id, severity_id, stop, payload = KINDS[kind]
    return build_event(
        uid=UID,
        sequence=0,
        time_ms=1_786_320_000_000,
        class_name=f"agent.{class_name}",
        session_id="session-1",
        identity={"version": "1", "charter": {"name": "test", "type_id": 1}, "instance_uid": "instance-1"},
        product_version="0.1.0",
        status_id=status_id,
        severity_id=severity_id,
        payload=payload,
        metrics={"prompt_tokens": 90, "pruned_tokens": 10, "pruning_ratio_millis": 100} if kind == "prompt" else {},
        stop=stop,
    )


def paths(event: Any) -> list[str]:
    return sorted(violation.path for violation in validate_event(event))


def altered(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field set, or removed where the value is `...`."""
    event = copy.deepcopy(base)
    *parents, last = path.split(".")
    holder: Any = event
    for name in parents:
        holder = holder[name]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return event


# -- building -----------------------------------------------------------------------------------------


def test_case23_class_ids() -> None:
    assert {name: {"class_uid": int(one), "type_uid": one.type_uid} for name, one in CLASSES.items()} == VECTORS[
        "type_uid"
    ]
    assert EventClass(9904).class_name == "agent.compression"


def test_the_shape_of_formats_3_1() -> None:
    assert event_of("tool call denied") == {
        "metadata": {
            "version": "1.10.0",
            "uid": UID,
            "product": {"name": "affidavit", "vendor_name": "Affidavit", "version": "0.1.0"},
            "sequence": 0,
        },
        "class_name": "agent.tool_call",
        "class_uid": 9901,
        "category_uid": 6,
        "activity_id": 1,
        "type_uid": 990101,
        "time": 1786320000000,
        "time_iso": "2026-08-10T00:00:00.000Z",
        "severity_id": 4,
        "status_id": 2,
        "session_uid": "session-1",
        "ai_agent": {"version": "1", "charter": {"name": "test", "type_id": 1}, "instance_uid": "instance-1"},
        "stop_reason_id": 93,
        "stop_reason": "Policy Blocked",
        "payload": {
            "action": "tool_call",
            "call_id": "c",
            "tool": "t",
            "allowed": False,
            "arguments_sha256": "ab" * 32,
            "capture_sha256": "ab" * 32,
            "stage": "policy",
            "reason": "not on the list",
        },
        "metrics": {},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_case23_one_event_of_each_kind(kind: str) -> None:
    event = event_of(kind)
    assert validate_event(event) == []
    assert [error.message for error in SCHEMA.iter_errors(event)] == []
    assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    assert 1 <= event["severity_id"] <= 6
    assert ("stop_reason_id" in event) == ("stop_reason" in event) == (KINDS[kind][3] is not None)


def test_case23_unknown_stop_reason_is_other_in_native_words() -> None:
    reason, text = from_provider("pause_turn")
    assert (reason, text) == (99, "pause_turn")
    event = altered(
        altered(event_of("response with finish_reason"), "stop_reason_id", int(reason)), "stop_reason", text
    )
    assert validate_event(event) == []
    assert SCHEMA.is_valid(event)


# -- the validator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
def test_inherited_events_pass_the_validator_not_the_schema(place: int) -> None:
    assert validate_event(GOLDEN[place]) == []
    assert read_event(GOLDEN[place]) is GOLDEN[place]
    assert not SCHEMA.is_valid(GOLDEN[place])


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("metadata", ..., "metadata"),
        ("metadata", [], "metadata"),
        ("metadata.version", "1.9.0", "metadata.version"),
        ("metadata.uid", "", "metadata.uid"),
        ("metadata.sequence", -1, "metadata.sequence"),
        ("metadata.sequence", True, "metadata.sequence"),
        ("metadata.sequence", 1.0, "metadata.sequence"),
        ("metadata.sequence", 2**53, "metadata.sequence"),
        ("metadata.product.name", ..., "metadata.product.name"),
        ("metadata.product.vendor_name", None, "metadata.product.vendor_name"),
        ("metadata.product.more", 1, "metadata.product.more"),
        ("metadata.more", 1, "metadata.more"),
        ("class_name", "agent.other", "class_name"),
        ("class_uid", 9901, "class_uid+type_uid"),
        ("class_uid", 9907, "class_uid+class_uid+type_uid"),
        ("category_uid", 3, "category_uid"),
        ("activity_id", 2, "activity_id+type_uid"),
        ("type_uid", 990200, "type_uid"),
        ("time", -1, "time"),
        ("time", 253402300800000, "time"),
        ("time", 1786320000000, "time_iso"),
        ("time_iso", "2026-08-10T00:00:00Z", "time_iso"),
        ("severity_id", 0, "severity_id"),
        ("severity_id", 7, "severity_id"),
        ("status_id", 3, "status_id"),
        ("session_uid", "", "session_uid"),
        ("session_uid", "a#b", "session_uid"),
        ("ai_agent.version", "", "ai_agent.version"),
        ("ai_agent.charter", ..., "ai_agent.charter"),
        ("ai_agent.charter.type_id", 2, "ai_agent.charter.type_id"),
        ("ai_agent.charter.type_id", True, "ai_agent.charter.type_id"),
        ("ai_agent.charter.uid", "x", "ai_agent.charter.uid"),
        ("ai_agent.ttl_remaining_s", None, "ai_agent.ttl_remaining_s"),
        ("ai_agent.ttl_remaining_s", -1, "ai_agent.ttl_remaining_s"),
        ("stop_reason_id", ..., "stop_reason_id"),
        ("stop_reason", ..., "stop_reason"),
        ("stop_reason", "", "stop_reason"),
        ("stop_reason", None, "stop_reason"),
        ("stop_reason_id", 100, "stop_reason+stop_reason_id"),
        ("stop_reason", "Policy Blocked", "stop_reason"),
        ("stop_reason", "looping", "stop_reason"),
        ("stop_reason_id", 1, "stop_reason"),
        ("payload", None, "payload"),
        ("payload", "text", "payload"),
        ("payload.streak", 2**53, "payload.streak"),
        ("payload.deep", [{"x": [0, 2**53]}], "payload.deep.0.x.1"),
        ("payload.double", 1e20, "payload.double"),
        ("payload.nan", float("nan"), "payload.nan"),
        ("payload.text", "\ud800", "payload.text"),
        ("payload.\ud800", 1, "payload.\\ud800"),
        ("metrics", ..., "metrics"),
        ("metrics.tokens", 1, "metrics.tokens"),
        ("metrics.prompt_tokens", -1, "metrics.prompt_tokens"),
        ("metrics.prompt_tokens", None, "metrics.prompt_tokens"),
        ("metrics.pruning_ratio_millis", 1001, "metrics.pruning_ratio_millis"),
        ("later", 2**53, "later"),
    ],
)
def test_violations_have_their_path(path: str, value: Any, where: str) -> None:
    event = altered(GOLDEN[1], path, value)
    assert paths(event) == where.split("+")
    with pytest.raises(InvalidEvent) as error:
        read_event(event)
    assert [violation.path for violation in error.value.violations]


def test_all_violations_are_collected() -> None:
    event = altered(altered(altered(GOLDEN[1], "metadata.uid", ""), "status_id", 9), "payload.n", 2**60)
    assert paths(event) == ["metadata.uid", "payload.n", "status_id"]
    assert len(validate_event({})) == 14


def test_unknown_top_level_keys_are_tolerated_when_reading() -> None:
    event = altered(GOLDEN[0], "observables", [{"name": None}])
    assert validate_event(event) == []
    assert read_event(event)["observables"] == [{"name": None}]


def test_a_later_stop_reason_is_tolerated_with_its_own_text() -> None:
    event = altered(altered(GOLDEN[1], "stop_reason_id", 55), "stop_reason", "Solar Flare")
    assert validate_event(event) == []
    assert paths(altered(event, "stop_reason", "Loop Detected")) == ["stop_reason"]


def test_foreign_keys_are_shown_safely() -> None:
    (violation,) = validate_event(altered(GOLDEN[0], "metrics.\x1b[2J" + "k" * 500, 1))
    assert "\x1b" not in str(violation)
    assert len(str(violation)) < 110


def test_a_sound_event_costs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    event = event_of("opened")
    event["payload"] |= {"deep": [{"ä": [1.5, None, "é"]}], "n": 2**53 - 1}
    with monkeypatch.context() as patch:
        patch.delattr("affidavit.evidence.ocsf._join")
        assert validate_event(event) == []
    event["payload"]["deep"][0]["ä"].append("\ud800")
    assert validate_event(event) == [("payload.deep.0.ä.3", "lone surrogate in a string")]


def test_nesting_without_end_is_a_violation() -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    (violation,) = validate_event(altered(GOLDEN[0], "payload", {}) | {"payload": {"deep": deep}})
    assert violation.path.startswith("payload.deep.0.0.")
    assert violation.message == "nesting over 128"
    while isinstance(deep, list):  # taken apart here: the interpreter would recurse
        deep = deep[0]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(
        [*GOLDEN[1], *GOLDEN[1]["metadata"], "charter", "name", "\ud800"]), inner, max_size=6)),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_never_raises_on_any_json_value(value: Any) -> None:
    assert validate_event(value)


@given(st.sampled_from([*GOLDEN[1], "metadata.product", "ai_agent.charter", "ai_agent.version"]), json_values)
def test_never_raises_on_any_field(path: str, value: Any) -> None:
    validate_event(altered(GOLDEN[1], path, value))


# -- the schema ---------------------------------------------------------------------------------------


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(load("event"))
    with pytest.raises(UnknownSchema):
        load("../event")
    with pytest.raises(UnknownSchema):
        load("nothing")


def test_the_schema_has_every_action() -> None:
    actions = set(load("event")["properties"]["payload"]["properties"]["action"]["enum"])
    assert actions == {payload["action"] for *_, payload in KINDS.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_takes_no_unknown_key_at_any_level(kind: str) -> None:
    event = event_of(kind)
    for path in ("", "metadata.", "metadata.product.", "ai_agent.", "ai_agent.charter.", "payload.", "metrics."):
        assert not SCHEMA.is_valid(altered(event, f"{path}unknown", 1))


@pytest.mark.parametrize("kind", KINDS)
def test_case23_the_schema_ties_action_class_status_and_stop(kind: str) -> None:
    event = event_of(kind)
    for one in EventClass:
        other = event | {"class_name": one.class_name, "class_uid": int(one), "type_uid": one.type_uid}
        assert SCHEMA.is_valid(other) == (one.class_name == event["class_name"])
    for status in (0, 1, 2):
        assert SCHEMA.is_valid(event | {"status_id": status}) == (status == event["status_id"])
    if "stop_reason_id" in event:
        assert not SCHEMA.is_valid({key: value for key, value in event.items() if not key.startswith("stop_")})
        assert not SCHEMA.is_valid(altered(event, "stop_reason", ...))
        assert not SCHEMA.is_valid(event | {"stop_reason_id": 4, "stop_reason": "Session Closed"})
        assert not SCHEMA.is_valid(event | {"stop_reason": "Unknown"})
    else:
        assert not SCHEMA.is_valid(event | {"stop_reason_id": 1, "stop_reason": "stop"})


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("opened", "metadata.sequence", 1),
        ("opened", "metadata.uid", UID + "\n"),
        ("opened", "metadata.product.name", "other"),
        ("opened", "session_uid", "a#b"),
        ("opened", "session_uid", "a\n"),
        ("opened", "time_iso", "2026-08-10T00:00:00Z"),
        ("opened", "payload.registration_sha256", "AB" * 32),
        ("opened", "payload.generation", ...),
        ("opened", "payload.capture_sha256", SHA),
        ("prompt", "payload.capture_sha256", ...),
        ("prompt", "payload.skewed", False),
        ("prompt", "payload.arguments", {}),
        ("prompt", "payload.attempt_id", None),
        ("tool call allowed", "severity_id", 4),
        ("tool call denied", "payload.stage", "budget"),
        ("breaker trip", "payload.breaker_action", "stop"),
        ("breaker trip", "payload.replaced.action", "tool_call"),
        ("quarantine", "severity_id", 1),
        ("receipt of a promotion", "payload.subject.retroactive", False),
        ("cancel requested", "payload.reason", "r" * 257),
        ("wake", "metrics.prompt_tokens", -1),
        ("wake", "metrics.pruning_ratio_millis", 1001),
    ],
)
def test_the_schema_refuses(kind: str, path: str, value: Any) -> None:
    event = event_of(kind)
    assert SCHEMA.is_valid(event)
    assert not SCHEMA.is_valid(altered(event, path, value))
