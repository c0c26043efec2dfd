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
        {"t": {"$id": "http://["}},
        {"t": {"$defs": {"a": {"$id": "http://[", "$anchor": "x"}}, "$ref": "#x"}},
        {"t": {"unevaluatedProperties": False}},
        {"t": {"allOf": [{"unevaluatedItems": False}]}},
        {"t": {"allOf": [[{"pattern": "a"}]]}},
        {"t": {"properties": []}},
        {"t": {"items": 5}},
        {"t": {"maximum": float("inf")}},
        {"t": {"$defs": {"a": {"$anchor": "x"}, "b": {"$dynamicAnchor": "x"}}}},
        {"t": {"items": {"$ref": "#/$defs/" + "%41" * 100}, "$defs": {"A" * 100: {}}}},
        {f"t{n}": {"allOf": [{"pattern": "[a-z]{1,2900}"}] * 4} for n in range(10)},
    ],
)
def test_p9_a_declaration_that_cannot_be_one_is_refused_before_anything_starts(types: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_event_types(types)


HIDDEN = {"patternProperties": {"^(a+)+$": {}}, "multipleOf": 0, "type": 5, "required": 3}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/const", "const": HIDDEN},
        {"$dynamicRef": "#/default", "default": HIDDEN},
        {"$ref": "#/enum/0", "enum": [HIDDEN]},
        {"$ref": "#/examples/0", "examples": [HIDDEN]},
        {"$ref": "#/foo", "foo": HIDDEN},
        {"$ref": "#/foo/0/0", "foo": [[HIDDEN]]},
        {"$ref": "#/$defs/a/const", "$defs": {"a": {"const": HIDDEN}}},
        {"$ref": "#/%24defs/a%2Fconst", "$defs": {"a": {"const": HIDDEN}}},
        {"$ref": "#/patternProperties", "const": HIDDEN},
        {"$ref": "#x", "const": {"$anchor": "x", **HIDDEN}},
        {"$ref": "#x", "foo": {"$dynamicAnchor": "x", **HIDDEN}},
        {"$ref": "#/minLength/0", "minLength": 1},
        {"$ref": 5},
        {"$ref": ["#"]},
    ],
)
def test_p9_references_point_only_where_the_check_has_been(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^t: (\$ref|\$dynamicRef) "):
        check_event_types({"t": schema})
    # And from a session that was opened when more was taken, nothing of it is run.
    assert faults({"t": schema}, event({"a" * 60 + "!": 1}), event(1)) == {
        0: "event t could not be checked against its schema",
        1: "event t could not be checked against its schema",
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}},
        {"$ref": "#/definitions/a~1b%3Cc", "definitions": {"a/b<c": {"type": "integer"}}},
        {"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "integer"}}},
        {"$dynamicRef": "#x", "$defs": {"a": {"not": {"$dynamicAnchor": "x", "type": "integer"}}}},
        {"not": {"type": "array", "items": {"$ref": "#"}}, "type": "integer"},
    ],
)
def test_p9_references_within_a_schema_are_followed(schema: dict[str, Any]) -> None:
    assert fault(schema, 1) is None
    assert fault(schema, "x") == "event t: payload is off its schema (type)"


@pytest.mark.parametrize("root", [True, False])
def test_p9_a_dialect_named_in_a_schema_does_not_bring_back_the_librarys_own_patterns(root: bool) -> None:
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a+)+$"}
    schema = {**dialect, "properties": {"a": {"$ref": "#"}}} if root else {"properties": {"a": dialect}}
    assert fault(schema, {"a": "a" * 60 + "!"}) == "event t: payload.a is off its schema (pattern)"


@pytest.mark.parametrize("error", [TypeError, RecursionError, ValueError, KeyError])
def test_p9_whatever_a_library_stumbles_over_refuses_the_opening_for_good(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: object) -> None:
        raise error("a secret value")

    monkeypatch.setattr("activities.custom_events.Draft202012Validator.check_schema", stumble)
    with pytest.raises(OpeningRefused) as refused:
        check_declaration({"t": {}})
    assert str(refused.value) == f"event type t: a schema that cannot be read ({error.__name__})"


def test_p9_a_declaration_that_cannot_be_one_refuses_the_opening_for_good() -> None:
    with pytest.raises(OpeningRefused, match=r"^event type t: \$id is not taken"):
        check_declaration({"t": {"$id": "http://["}})


@pytest.mark.parametrize(
    ("schema", "number", "expected"),
    [
        ({"multipleOf": 0.1}, "0.3", None),
        ({"multipleOf": 0.1}, "0.35", "payload.n is off its schema (multipleOf)"),
        ({"multipleOf": 0.1}, "1" + "0" * 400, None),
        ({"multipleOf": 0.7}, "1" + "0" * 400, "payload.n is off its schema (multipleOf)"),
        ({"multipleOf": 5e-324}, "1e300", None),
        ({"multipleOf": 3}, "9007199254740993", None),
        ({"multipleOf": 0.1}, "1e999", "payload.n is not a finite number"),
        ({"multipleOf": 0.1}, "NaN", "payload.n is not a finite number"),
        ({"minimum": 0, "maximum": 10}, "NaN", "payload.n is not a finite number"),
        ({}, '[1,{"a":-Infinity}]', "payload.n.1.a is not a finite number"),
    ],
)
def test_p9_numbers_are_exact_and_finite(schema: dict[str, Any], number: str, expected: str | None) -> None:
    types = {"t": {"properties": {"n": schema}}}
    check_event_types(types)
    check_declaration(types)
    steps = [f'{{"kind":"event","type":"t","payload":{{"n":{text}}}}}' for text in ("0", number)]
    record = raw_json(f'{{"steps":[{",".join(steps)}]}}'.encode())
    found = CustomEventsActivity().check(raw_json(json.dumps(types).encode()), record).faults
    assert found == ({} if expected is None else {1: f"event t: {expected}"})


COSTLY = "event t: the payload is too costly to check against its schema"


def test_p9_a_costly_event_falls_alone() -> None:
    types = {"t": exponential(), "cheap": {"type": "integer"}}
    steps = [event(1), event(1, "cheap")] * 4
    assert faults(types, *steps) == dict.fromkeys((0, 2, 4, 6), COSTLY)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"pattern": "(a{1,15}){1,90}b"}, "a" * 100_000),
        ({"contains": False}, [1] * 200_000),
        ({"items": {}}, [1] * 200_000),
        ({"items": {"pattern": "[a-z]{1,2000}"}}, ["a" * 9_000] * 10),
        # Each comparison is with 14 KB, and each failure would have the whole payload written down.
        (
            {"$defs": {"x": {"const": [1] * 7_000}}, "anyOf": [{"$ref": "#/$defs/x"}] * 700},
            [*[1] * 6_999, 2],
        ),
    ],
)
def test_p9_long_texts_and_comparisons_are_charged_for(schema: dict[str, Any], payload: Any) -> None:
    begun = time.process_time()
    assert fault(schema, payload) == COSTLY
    assert time.process_time() - begun < 20


def test_p9_names_of_properties_and_plain_data_are_no_keywords() -> None:
    schema = {
        "properties": {"patternProperties": {"type": "object"}, "$ref": {"type": "string"}},
        "const": {"$ref": "http://example.com/"},
    }
    assert check_event_types({"t": schema}) == {"t": schema}
