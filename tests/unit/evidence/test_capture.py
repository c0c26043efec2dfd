"""Captures: what JSON cannot carry is wrapped, nothing is lost, and clean steps stay as they are (cases 17-19)."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.capture import (
    CaptureError,
    capture_bytes,
    capture_sha256,
    normalise_arguments,
    normalise_step,
    normalise_value,
    read_reported,
)


def wrapped(text: str, why: str) -> dict[str, str]:
    return {
        "encoding": "json-text",
        "text": text,
        "sha256": hashlib.sha256(text.encode("ascii")).hexdigest(),
        "why": why,
    }


def nested(depth: int) -> Any:
    value: Any = "leaf"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


@pytest.mark.parametrize(
    ("value", "text", "why"),
    [
        (9007199254740992, "9007199254740992", "big_integer"),
        (-9007199254740993, "-9007199254740993", "big_integer"),
        (10**21, "1000000000000000000000", "big_integer"),
        (9007199254740992.0, "9007199254740992.0", "big_integer"),
        (-9.999e20, "-9.999e+20", "big_integer"),
        (math.nan, "NaN", "non_finite"),
        (math.inf, "Infinity", "non_finite"),
        (-math.inf, "-Infinity", "non_finite"),
        ("half \ud83d", '"half \\ud83d"', "lone_surrogate"),
        ('\udc00é"', '"\\udc00\\u00e9\\""', "lone_surrogate"),
    ],
)
def test_case19_values_that_json_cannot_carry_are_wrapped_at_the_leaf(value: Any, text: str, why: str) -> None:
    assert normalise_value(value) == wrapped(text, why)
    outer = {"good": [1, "x", None, True], "bad": [{"deep": value}]}
    assert normalise_value(outer) == {"good": [1, "x", None, True], "bad": [{"deep": wrapped(text, why)}]}


@pytest.mark.parametrize(
    "value",
    [
        9007199254740991,
        -9007199254740991,
        9007199254740990.0,
        1e21,
        -0.0,
        0.1 + 0.2,
        5e-324,
        True,
        None,
        "😀",
        "",
        [],
        {},
    ],
)
def test_case19_values_that_json_can_carry_are_returned_untouched(value: Any) -> None:
    assert normalise_value(value) is value
    whole = {"v": [value]}
    assert normalise_value(whole) is whole


def test_golden_wrapper() -> None:
    # sha256 of the 16 characters 9007199254740993, from an independent tool.
    assert normalise_value(9007199254740993) == {
        "encoding": "json-text",
        "text": "9007199254740993",
        "sha256": "a1c367c29158357e62a3ff5d3e800fb7698a22396439dbc0a9d4929322afd35d",
        "why": "big_integer",
    }


def test_nesting_up_to_96_stays_and_beyond_is_wrapped_whole() -> None:
    assert normalise_value(nested(96)) == nested(96)
    result = normalise_value(nested(97))
    assert result["why"] == "depth"
    assert json.loads(result["text"]) == nested(97)
    assert result["text"].startswith('{"k":[')


def test_the_deepest_message_is_wrapped_without_a_recursion_error() -> None:
    value = nested(512)
    result = normalise_value({"v": [value, 2**60, "\ud83d"]})
    assert result["why"] == "depth"
    assert json.loads(result["text"]) == {"v": [value, 2**60, "\ud83d"]}


def test_a_value_without_any_json_text_is_a_named_error() -> None:
    for value in (object(), {"a": {1, 2}}, [b"x"], {1: 2}, nested(100_000)):
        with pytest.raises(CaptureError):
            normalise_value(value)


@pytest.mark.parametrize("value", [{"\ud83d": 1}, [{"a": {"\udc00": 1}}], {"k": [{"\ud83d": 2**60}]}])
def test_case18_half_a_pair_in_a_key_is_a_named_error(value: Any) -> None:
    with pytest.raises(CaptureError, match="lone surrogate in an object key"):
        normalise_value(value)
    with pytest.raises(CaptureError, match="lone surrogate in an object key"):
        normalise_step(
            {"kind": "tool_result", "content": "x", "extra": value if isinstance(value, dict) else {"v": value}}
        )


def test_case18_texts_stay_strings_and_are_flagged() -> None:
    step = {
        "kind": "model_response",
        "text": "cut at half \ud83d",
        "reasoning": "a valid pair 😀",
        "extra": {"mine": 1},
        "tool_calls": [{"call_id": "c", "name": "n", "arguments": {"bytes": "\udcff"}}],
    }
    assert normalise_step(step) == {
        "kind": "model_response",
        "text": '"cut at half \\ud83d"',
        "reasoning": "a valid pair 😀",
        "extra": {"mine": 1, "affidavit": {"encoding": {"text": "lone_surrogate"}}},
        "tool_calls": [{"call_id": "c", "name": "n", "arguments": {"bytes": wrapped('"\\udcff"', "lone_surrogate")}}],
    }


def test_case18_each_text_field_of_each_kind() -> None:
    half, escaped = "\ud83d", '"\\ud83d"'
    request = {
        "kind": "model_request",
        "messages": [
            {"role": "user", "content": half},
            {"role": "assistant", "content": "fine", "reasoning": half},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "fine"},
                    {"type": "text", "text": half},
                    {"type": "image", "source": {"media_type": "image/png", "path": half}, "size": 2**53},
                ],
            },
        ],
    }
    capture = normalise_step(request)
    assert capture["messages"] == [
        {"role": "user", "content": escaped},
        {"role": "assistant", "content": "fine", "reasoning": escaped},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "fine"},
                {"type": "text", "text": escaped},
                {
                    "type": "image",
                    "source": {"media_type": "image/png", "path": escaped},
                    "size": wrapped("9007199254740992", "big_integer"),
                },
            ],
        },
    ]
    assert capture["extra"]["affidavit"]["encoding"] == {
        "messages.0.content": "lone_surrogate",
        "messages.1.reasoning": "lone_surrogate",
        "messages.2.content.1.text": "lone_surrogate",
        "messages.2.content.2.source.path": "lone_surrogate",
    }
    for step, field in (
        ({"kind": "model_failure", "reason": "timeout", "message": half}, "message"),
        ({"kind": "tool_call", "call_id": "c", "tool": "t", "allowed": False, "reason": half}, "reason"),
        ({"kind": "model_response", "reasoning": half}, "reasoning"),
    ):
        assert normalise_step(step) == {
            **step,
            field: escaped,
            "extra": {"affidavit": {"encoding": {field: "lone_surrogate"}}},
        }


@pytest.mark.parametrize(
    ("kind", "field"), [("tool_result", "content"), ("event", "payload"), ("wake", "input"), ("tool_call", "arguments")]
)
def test_values_of_each_kind_are_wrapped_in_place(kind: str, field: str) -> None:
    capture = normalise_step({"kind": kind, field: {"n": math.nan, "s": "\ud83d"}})
    assert capture == {
        "kind": kind,
        field: {"n": wrapped("NaN", "non_finite"), "s": wrapped('"\\ud83d"', "lone_surrogate")},
    }


def test_a_string_result_is_a_value_not_a_text() -> None:
    capture = normalise_step({"kind": "tool_result", "content": "\ud83d"})
    assert capture == {"kind": "tool_result", "content": wrapped('"\\ud83d"', "lone_surrogate")}


def test_usage_and_extra_keep_their_shape() -> None:
    usage = {"prompt_tokens": 9007199254740991, "cost_usd": 0.25, "logprobs": [-0.5, -math.inf], "extra": nested(97)}
    capture = normalise_step(
        {"kind": "model_response", "text": "x", "usage": usage, "extra": {"a": nested(97), "b": 1}}
    )
    assert capture["usage"]["prompt_tokens"] == 9007199254740991
    assert capture["usage"]["logprobs"] == [-0.5, wrapped("-Infinity", "non_finite")]
    assert capture["usage"]["extra"]["why"] == capture["extra"]["a"]["why"] == "depth"
    assert capture["extra"]["b"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1, "b": {"c": [null, 1.5]}}', {"a": 1, "b": {"c": [None, 1.5]}}),
        (' {} ', {}),
        ('{"s":"\\ud83d","n":9007199254740993}', {
            "s": wrapped('"\\ud83d"', "lone_surrogate"),
            "n": wrapped("9007199254740993", "big_integer"),
        }),
        (None, {}),
        ("not json é", wrapped('"not json \\u00e9"', "not_object")),
        ("", wrapped('""', "not_object")),
        ("null", wrapped('"null"', "not_object")),
        ("[1]", wrapped('"[1]"', "not_object")),
        ('{"a":1}{', wrapped('"{\\"a\\":1}{"', "not_object")),
        ('{"a":1,"a":2}', wrapped('"{\\"a\\":1,\\"a\\":2}"', "not_object")),
        ('{"a":NaN}', wrapped('"{\\"a\\":NaN}"', "not_object")),
        ('{"a":1e400}', wrapped('"{\\"a\\":1e400}"', "not_object")),
        # Reading it would round it to …992.
        ('{"a":9007199254740993.0}', wrapped('"{\\"a\\":9007199254740993.0}"', "not_object")),
        ('{"\\ud83d":1}', wrapped('"{\\"\\\\ud83d\\":1}"', "not_object")),
        ("{\"a\":\"\ud83d\"}", wrapped('"{\\"a\\":\\"\\ud83d\\"}"', "not_object")),
        ([1, "a"], wrapped('[1,"a"]', "not_object")),
        (7, wrapped("7", "not_object")),
        (False, wrapped("false", "not_object")),
    ],
)  # fmt: skip
def test_arguments(arguments: Any, expected: dict[str, Any]) -> None:
    assert normalise_arguments(arguments) == expected
    announced = normalise_step(
        {"kind": "model_response", "tool_calls": [{"call_id": "c", "name": "n", "arguments": arguments}]}
    )
    in_message = normalise_step(
        {
            "kind": "model_request",
            "messages": [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"call_id": "c", "name": "n", "arguments": arguments}],
                }
            ],
        }
    )
    assert announced["tool_calls"][0]["arguments"] == expected
    assert in_message["messages"][0]["tool_calls"] == announced["tool_calls"]


def test_null_arguments_are_marked() -> None:
    call = {"call_id": "c", "name": "n", "arguments": None, "extra": {"index": 0}}
    capture = normalise_step({"kind": "model_response", "tool_calls": [call]})
    assert capture["tool_calls"] == [
        {"call_id": "c", "name": "n", "arguments": {}, "extra": {"index": 0, "affidavit": {"arguments": "null"}}}
    ]
    step = {"kind": "tool_call", "call_id": "c", "tool": "t", "allowed": True}
    assert normalise_step(step) == step
    assert normalise_step({**step, "arguments": None}) == {
        **step,
        "arguments": {},
        "extra": {"affidavit": {"arguments": "null"}},
    }


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        ({"original_timestamp": "t"}, {"original_timestamp": "t"}),
        ({"encoding": "utf-16"}, {"reported": {"encoding": "utf-16"}}),
        ("a word", {"reported": "a word"}),
        (None, {"reported": None}),
    ],
)
def test_what_the_reporter_put_under_our_key_is_kept(theirs: Any, kept: dict[str, Any]) -> None:
    clean = {"kind": "model_response", "text": "x", "extra": {"affidavit": theirs}}
    assert normalise_step(clean) == clean
    capture = normalise_step({**clean, "text": "\ud83d"})
    assert capture["extra"] == {"affidavit": {**kept, "encoding": {"text": "lone_surrogate"}}}


def test_case17_keys_are_ordered_by_utf16_unit() -> None:
    step: dict[str, Any] = {
        "kind": "tool_call",
        "call_id": "c",
        "tool": "t",
        "allowed": True,
        "arguments": {"\uff21": 1, "\U00010000": 2},
    }
    expected = '{"allowed":true,"arguments":{"\U00010000":2,"\uff21":1},"call_id":"c","kind":"tool_call","tool":"t"}'
    capture = normalise_step(step)
    assert capture_bytes(capture) == expected.encode() == rfc8785.dumps(step)
    assert capture_sha256(capture) == hashlib.sha256(expected.encode()).hexdigest()


def test_the_step_as_reported_is_not_changed() -> None:
    step = {
        "kind": "model_response",
        "text": "\ud83d",
        "extra": {"affidavit": {"x": 1}},
        "usage": {"extra": {"n": 2**60}},
    }
    before = copy.deepcopy(step)
    normalise_step(step)
    assert step == before


_NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.sampled_from([2**53 - 1, 2**53, float(2**53), 1e20, 1e21, "\ud83d"]),
)
_VALUE = st.recursive(_NASTY, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=3), v, max_size=4))


def restored(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("encoding") == "json-text":
            return json.loads(value["text"])
        return {key: restored(member) for key, member in value.items()}
    return [restored(member) for member in value] if isinstance(value, list) else value


@given(_VALUE)
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost_and_everything_has_a_canonical_form(value: Any) -> None:
    normal = normalise_value(value)
    canonicalize(normal)
    assert normalise_value(normal) is normal
    assert repr(restored(normal)) == repr(value)


@given(_VALUE, st.text(st.characters(exclude_categories=())), _VALUE)
@settings(max_examples=200, deadline=None)
def test_every_step_has_capture_bytes_and_normalises_to_itself(value: Any, text: str, arguments: Any) -> None:
    call = {"call_id": "c", "name": "n", "arguments": arguments}
    for step in (
        {"kind": "model_response", "text": text, "tool_calls": [call], "extra": {"v": value}},
        {"kind": "tool_result", "content": value},
        {"kind": "model_request", "messages": [{"role": "user", "content": text, "tool_calls": [call]}]},
    ):
        capture = normalise_step(step)
        capture_bytes(capture)
        assert normalise_step(capture) == capture


def test_the_deepest_capture_stays_within_canonical_nesting() -> None:
    call = {"call_id": "c", "name": "n", "arguments": nested(96), "extra": {"x": nested(96)}}
    part = {"type": "image", "source": nested(95)}
    messages = [{"role": "assistant", "content": [part], "tool_calls": [call]}]
    capture_bytes(normalise_step({"kind": "model_request", "messages": messages}))


def test_case19_a_number_that_a_double_would_change_keeps_its_text() -> None:
    step = read_reported('{"kind":"tool_result","content":[9007199254740993.0,1e400,-1e20,0.5,9007199254740992]}')

    content = normalise_step(step)["content"]

    assert [value["text"] for value in content if isinstance(value, dict)] == [
        "9007199254740993.0",
        "1e400",
        "-1e20",
        "9007199254740992",
    ]
    assert [value["why"] for value in content if isinstance(value, dict)] == [
        "big_integer",
        "non_finite",
        "big_integer",
        "big_integer",
    ]
    assert content[3] == 0.5
