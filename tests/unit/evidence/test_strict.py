from __future__ import annotations

import json
import math

import pytest

from affidavit.evidence.strict import (
    DuplicateKey,
    NestingTooDeep,
    ParseError,
    StrictJsonError,
    TooLarge,
    TrailingBytes,
    read_json,
)
from affidavit.evidence.text import printable


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"b":2,"a":[1,-2,null,true,false,"x"]}', {"b": 2, "a": [1, -2, None, True, False, "x"]}),
        (" \t\r\n[] \n", []),
        ('"\\ud834\\udd1e"', "\U0001d11e"),
        ('"\\ud800"', "\ud800"),
        ("1.5e3", 1500.0),
        ("5e-324", 5e-324),
        ("1e-999", 0.0),
    ],
)
def test_reads_json(text: str, value: object) -> None:
    assert read_json(text) == value
    assert read_json(text.encode()) == value


@pytest.mark.parametrize("literal", ["9007199254740993", "-18446744073709551616", "1" + "0" * 300])
def test_case19_integer_literals_stay_integers(literal: str) -> None:
    value = read_json(literal)
    assert type(value) is int
    assert str(value) == literal


def test_minus_zero_is_no_integer() -> None:
    value = read_json('{"sequence":-0}')["sequence"]
    assert type(value) is float
    assert math.copysign(1, value) == -1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"   ",
        b"{",
        b"[1,]",
        b'{"a" 1}',
        b"{'a':1}",
        b"nul",
        b"01",
        b"1.",
        b"-01",
        b"nullx",
        b"+1",
        b".5",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e400",
        b"-1e400",
        b"1" * 5000,
        b'"\x01"',
        b'"\\x"',
        b'"\\u12"',
        b'"unterminated',
        b'["unterminated' + b"[" * 200,
        b'"\xff"',
        b'"\xed\xa0\x80"',  # a surrogate in UTF-8
        b"\xc0\x80",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"\xc2\xa0{}",  # white space for Unicode, not for JSON
        b"]" * 300 + b"[" * 300,
    ],
)
def test_parse_errors(data: bytes) -> None:
    with pytest.raises(ParseError) as error:
        read_json(data)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 160


def test_raw_surrogate_and_bom_in_a_str_are_parse_errors() -> None:
    for text in ['"\ud800"', "\ufeff{}"]:
        with pytest.raises(ParseError):
            read_json(text)


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":1}', '{"a":1,"\\u0061":2}', '[{"x":{"y":[{"k":1,"l":2,"k":3}]}}]', '{"":0,"":0}'],
)
def test_duplicate_key_at_any_depth(text: str) -> None:
    with pytest.raises(DuplicateKey):
        read_json(text)


def test_duplicate_key_is_shown_escaped_and_cut() -> None:
    key = "\\u001b[31m\\u202e" + "k" * 5000
    with pytest.raises(DuplicateKey) as error:
        read_json(f'{{"{key}":1,"{key}":2}}')
    message = str(error.value)
    assert "\x1b" not in message
    assert "\u202e" not in message
    assert "x1b" in message
    assert "…" in message
    assert len(message) < 100


def test_same_key_in_different_objects_is_no_duplicate() -> None:
    assert read_json('[{"a":1},{"a":{"a":2}}]') == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize("tail", ["{}", " null", "\n\nx", "\x00", "\u00a0", "]", ","])
def test_trailing_bytes(tail: str) -> None:
    with pytest.raises(TrailingBytes):
        read_json('{"a":1}' + tail)


@pytest.mark.parametrize(("opening", "closing", "most"), [("[", "]", 128), ('{"k":', "}", 128), ('[{"a[[":', "}]", 64)])
def test_nesting_limit_is_128(opening: str, closing: str, most: int) -> None:
    inside = f"{opening * most}1{closing * most}"
    assert read_json(inside) == json.loads(inside)
    with pytest.raises(NestingTooDeep):
        read_json(f"[{inside}]")


def test_nesting_without_end_needs_no_stack() -> None:
    for text in ["[" * 3_000_000, '{"a":' * 1_000_000]:
        with pytest.raises(NestingTooDeep):
            read_json(text)


def test_brackets_in_strings_and_siblings_do_not_nest() -> None:
    text = json.dumps(["[" * 500, '\\"[{' * 500, "\\" * 7, *[[{}]] * 500])
    assert read_json(text) == json.loads(text)


def test_too_large_counts_bytes_of_utf8() -> None:
    assert read_json('"é"', max_bytes=4) == "é"
    assert read_json('"é"'.encode(), max_bytes=4) == "é"
    documents: list[bytes | str] = ['"é"', '"é"'.encode()]
    for data in documents:
        with pytest.raises(TooLarge):
            read_json(data, max_bytes=3)


def test_every_error_is_a_strict_json_error() -> None:
    for kind in (ParseError, DuplicateKey, TrailingBytes, NestingTooDeep, TooLarge):
        assert issubclass(kind, StrictJsonError)
        assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 \U0001f600", "plain é 日本 \U0001f600"),
        ("a\x00\n\x1b\x7f\x85\x9fz", "a\\x00\\x0a\\x1b\\x7f\\x85\\x9fz"),
        ("\u202a\u202e\u2066\u2069\u200e\u200f\u061c", "\\u202a\\u202e\\u2066\\u2069\\u200e\\u200f\\u061c"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800\udfff", "\\ud800\\udfff"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 63 + "…"),
        ("\n" * 17, "\\x0a" * 15 + "…"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert len(printable(text)) <= 64
