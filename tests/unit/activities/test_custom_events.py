"""P9: what a custom event is checked against, and what a hostile schema or payload can cost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from activities.custom_events import CustomEventsActivity, check_declaration
from activities.errors import OpeningRefused
from affidavit.converter import raw_json
from affidavit.event_types import check_event_types


def faults(types: dict[str, Any], *steps: dict[str, Any]) -> dict[int, str]:
    record = raw_json(json.dumps({"steps": list(steps)}).encode())
    return CustomEventsActivity().check(raw_json(json.dumps(types).encode()), record).faults


def event(payload: Any, type_: str = "t") -> dict[str, Any]:
    return {"kind": "event", "type": type_, "payload": payload}


def fault(schema: dict[str, Any], payload: Any) -> str | None:
    check_event_types({"t": schema})
    check_declaration({"t": schema})
    return faults({"t": schema}, event(payload)).get(0)


ORDER = {
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{3}$"}}}},
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "uniqueItems": True}},
    "required": ["lines"],
}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"lines": [{"sku": "ABC"}]}, None),
        ({"lines": [{"sku": "ABC"}, {"sku": "abc"}]}, "event t: payload.lines.1.sku is off its schema (pattern)"),
        ({"lines": [{"n": 1}, {"n": 1.0}]}, "event t: payload.lines is off its schema (uniqueItems)"),
        ({"lines": [{"n": 2**60}, {"n": 2**60 + 1}]}, None),
        ({}, "event t: payload is off its schema (required)"),
        ("text", "event t: payload is off its schema (type)"),
    ],
)
def test_p9_where_and_which_keyword_but_never_a_value(payload: Any, expected: str | None) -> None:
    assert fault(ORDER, payload) == expected


def test_p9_only_custom_events_are_looked_at_and_each_for_itself() -> None:
    steps = ({"kind": "tool_result", "content": "event"}, event(1), event(1, "u"), event("x"))
    assert faults({"t": {"type": "integer"}}, *steps) == {
        2: "event type u is not declared",
        3: "event t: payload is off its schema (type)",
    }


def exponential() -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    return {"$defs": {**defs, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (exponential(), 1),
        ({"$ref": "#"}, 1),
        ({"items": {"$ref": "#"}}, nested(500)),
        ({"items": {"type": "integer"}}, [1] * 60_000),
    ],
    ids=["exponential", "endless", "deep", "long"],
)
def test_p9_what_costs_too_much_is_rejected_in_bounded_time(schema: dict[str, Any], payload: Any) -> None:
    begun = time.process_time()
    assert fault(schema, payload) == "event t: the payload is too costly to check against its schema"
    assert time.process_time() - begun < 20  # unbounded, the first would take years


def test_p9_patterns_do_not_backtrack() -> None:
    begun = time.process_time()
    assert fault({"pattern": "^(a+)+$"}, "a" * 100_000 + "!") == "event t: payload is off its schema (pattern)"
    assert fault({"pattern": "^(a+)+$"}, "a" * 100_000) is None
    assert fault({"pattern": "a"}, "\ud83d") == "event t: payload is off its schema (pattern)"
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "whole"}, "event type t: type is no valid anyOf"),
        ({"properties": {"a": {"minimum": "1"}}}, "event type t: properties.a.minimum is no valid type"),
        ({"$ref": "#/$defs/x"}, "event type t: nothing is at /$defs/x"),
        ({"pattern": "(?<=a)b"}, "event type t: a pattern that cannot be matched in linear time"),
        ({"pattern": "("}, "event type t: pattern is no valid format"),
    ],
)
def test_p9_a_schema_that_is_none_is_named(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(OpeningRefused) as refused:
        check_declaration({"t": schema})
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    "types",
    [
        {"a b": {}},
        {"": {}},
        {"t": True},
        {f"t{n}": {} for n in range(33)},
        {"t": {"allOf": [{"not": {"$ref": "http://example.com/"}}]}},
        {"t": {"properties": {"a": {"$dynamicRef": "x.json"}}}},
        {"t": {"items": {"patternProperties": {}}}},
        {"t": {"$schema": "http://json-schema.org/draft-07/schema#"}},
    ],
)
def test_p9_a_declaration_that_cannot_be_one_is_refused_before_anything_starts(types: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_event_types(types)


def test_p9_names_of_properties_and_plain_data_are_no_keywords() -> None:
    schema = {
        "properties": {"patternProperties": {"type": "object"}, "$ref": {"type": "string"}},
        "const": {"$ref": "http://example.com/"},
    }
    assert check_event_types({"t": schema}) == {"t": schema}
