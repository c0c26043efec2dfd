from __future__ import annotations

import enum
import hashlib
import json
import math
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from affidavit.evidence.canonical import (
    BigInteger,
    CanonicalError,
    InexactDouble,
    LoneSurrogate,
    NonFinite,
    NotJson,
    TooDeep,
    canonicalize,
    check_scalar,
    digest,
)
from affidavit.evidence.strict import read_json

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())
LIMIT = 2**53 - 1


# -- an independent writer, from the text of RFC 8785 and ECMA-262 Number::toString ---------------------


def expected_number(x: float) -> str:
    if x == 0:
        return "0"
    if x < 0:
        return "-" + expected_number(-x)
    mantissa, _, exponent = repr(x).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    n = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    k = len(digits)
    if k <= n <= 21:
        return digits + "0" * (n - k)
    if 0 < n <= 21:
        return f"{digits[:n]}.{digits[n:]}"
    if -6 < n <= 0:
        return "0." + "0" * -n + digits
    return digits[0] + (f".{digits[1:]}" if k > 1 else "") + f"e{'+' if n > 0 else '-'}{abs(n - 1)}"


def utf16_units(key: str) -> list[int]:
    units: list[int] = []
    for code in map(ord, key):
        if code > 0xFFFF:
            units += [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)]
        else:
            units.append(code)
    return units


def expected_string(text: str) -> str:
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
    return '"' + "".join(short.get(ord(c), f"\\u{ord(c):04x}" if ord(c) < 32 else c) for c in text) + '"'


def expected(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return expected_number(value)
    if isinstance(value, str):
        return expected_string(value)
    if isinstance(value, list):
        return "[" + ",".join(map(expected, value)) + "]"
    return "{" + ",".join(f"{expected_string(k)}:{expected(value[k])}" for k in sorted(value, key=utf16_units)) + "}"


numbers = st.one_of(
    st.integers(-LIMIT, LIMIT),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not 2.0**53 <= abs(x) < 1e21),
    st.integers(-(10**6), 10**6).map(float),
    st.decimals(-10, 10, places=9).map(float),
)
# Keys near the places where the two orders part: below, among and above the surrogates.
texts = st.one_of(
    st.text(), st.text(st.sampled_from('ab\x00\x1f"\\/\x7fé\u2028\ud7ff\ue000\uff21\uffff\U00010000\U0010ffff'))
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(texts, inner)),
    max_leaves=30,
)


# -- vectors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS["jcs"]["ok"], ids=lambda row: row["in"])
def test_vectors(row: dict[str, str]) -> None:
    assert canonicalize(read_json(row["in"])) == row["out"].encode()
    assert canonicalize(json.loads(row["in"])) == row["out"].encode()


@pytest.mark.parametrize("text", VECTORS["jcs"]["reject"])
def test_rejected_vectors(text: str) -> None:
    with pytest.raises((BigInteger, InexactDouble)):
        canonicalize(read_json(text))


@pytest.mark.parametrize("place", [0, 1])
def test_event_vectors(place: int) -> None:
    row = VECTORS["chain"]["ocsf"]
    assert canonicalize(row["events"][place]).decode() == row["canonical"][place]


@pytest.mark.parametrize("row", VECTORS["receipts"], ids=lambda row: row["canonical_sha256"][:8])
def test_receipt_digest_vectors(row: dict[str, Any]) -> None:
    body = {key: value for key, value in row["receipt"].items() if key != "signature_b64"}
    assert canonicalize(body).decode() == row["canonical_body"]
    assert digest(body) == row["canonical_sha256"]


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785 appendix B, without the rows that are refused here
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_case19_doubles_of_rfc8785_appendix_b(bits: str, text: str) -> None:
    value = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonicalize(value).decode() == text
    # The other printer, which a key beyond the basic plane calls for, agrees.
    assert canonicalize({"\U00010000": value}).decode() == f'{{"\U00010000":{text}}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.35e-6, "0.00000435"),
        (333333333.33333329, "333333333.3333333"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1e-6, "0.000001"),
        (1e-5, "0.00001"),
        (0.0001, "0.0001"),
        (0.1 + 0.2, "0.30000000000000004"),
        (0.12999999523162842, "0.12999999523162842"),
        (4.5, "4.5"),
        (1e2, "100"),
        (9007199254740991.0, "9007199254740991"),
        (1e100, "1e+100"),
        (-0.0, "0"),
        ([1.0, {"a": -2.0}, (3.0,)], '[1,{"a":-2},[3]]'),
    ],
)
def test_case19_numbers(value: Any, text: str) -> None:
    assert canonicalize(value).decode() == text


# -- key order ----------------------------------------------------------------------------------------


def test_case17_key_order_is_by_utf16_unit() -> None:
    value = {"\uff21": 2, "\U00010000": 1}
    assert list(value) == sorted(value)  # by code point the other way round
    assert canonicalize(value).decode() == '{"\U00010000":1,"\uff21":2}'
    # From the bytes of the line above, written out: F0 90 80 80 and EF BC A1 are the two keys.
    assert digest(value) == hashlib.sha256(bytes.fromhex("7b22f0908080223a312c22efbca1223a327d")).hexdigest()


def test_case17_the_order_of_rfc8785() -> None:
    # RFC 8785 section 3.2.3
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    order = ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonicalize(value))) == order


@given(st.dictionaries(texts, st.integers(0, 9), min_size=2))
@example({"\ue000": 1, "\U00010000": 2, "a": 3})
@example({"a\U00010000": 1, "a\uffff": 2, "a": 3})
def test_case17_keys_sort_as_utf16(value: dict[str, int]) -> None:
    assert list(json.loads(canonicalize(value))) == sorted(value, key=utf16_units)


# -- properties ---------------------------------------------------------------------------------------


@given(values)
@settings(max_examples=400)
def test_agrees_with_an_independent_writer(value: Any) -> None:
    assert canonicalize(value) == expected(value).encode()


@given(values)
def test_both_printers_agree(value: Any) -> None:
    assert canonicalize(value) == rfc8785.dumps(value)


@given(values)
def test_round_trip(value: Any) -> None:
    data = canonicalize(value)
    assert read_json(data) == value
    assert canonicalize(read_json(data)) == data


@given(st.floats())
@example(2.0**53)
@example(math.nextafter(2.0**53, 0))
@example(math.nextafter(1e21, 0))
@example(1e21)
@example(-1e20)
def test_case19_every_double_is_exact_or_refused(x: float) -> None:
    if math.isnan(x) or math.isinf(x):
        with pytest.raises(NonFinite):
            canonicalize(x)
    elif 2.0**53 <= abs(x) < 10.0**21:
        with pytest.raises(InexactDouble):
            canonicalize(x)
    else:
        text = canonicalize(x).decode()
        assert text == expected_number(x)
        assert float(text) == x


@given(st.integers())
@example(2**53 - 1)
@example(2**53)
@example(-(2**53))
@example(10**21)
@example(10**400)
def test_case19_every_integer_is_exact_or_refused(n: int) -> None:
    if abs(n) < 9_007_199_254_740_992:
        assert canonicalize([n]) == b"[%d]" % n
    else:
        with pytest.raises(BigInteger):
            canonicalize([n])


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (9007199254740992, BigInteger),
        (9007199254740993, BigInteger),
        (9007199254740993.0, InexactDouble),
        (float("nan"), NonFinite),
        (float("-inf"), NonFinite),
        ("\ud83d", LoneSurrogate),
        ("cut\ud83d", LoneSurrogate),
        ("\ud83d\ude00"[::-1], LoneSurrogate),
        ({"\udc00": 1}, LoneSurrogate),
        ({1: 2}, NotJson),
        ({None: 2, "a": 1}, NotJson),
        (b"bytes", NotJson),
        ({1, 2}, NotJson),
        (1j, NotJson),
        (object(), NotJson),
    ],
    ids=repr,
)
def test_case18_case19_refusals_at_every_place(bad: Any, error: type[CanonicalError]) -> None:
    # Beside a plain value, an integral double, and a key beyond the basic plane: each printer refuses alike.
    for value in (bad, [bad], {"k": [0, bad]}, [1.0, bad], {"\U00010000": bad}, [{"\U00010000": 1.0}, bad]):
        with pytest.raises(error) as caught:
            canonicalize(value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 100


def test_case18_a_valid_pair_passes() -> None:
    assert canonicalize(json.loads('"\\ud83d\\ude00"')) == b'"\xf0\x9f\x98\x80"'


def test_bool_is_no_integer() -> None:
    assert canonicalize([True, False, 1, 0]) == b"[true,false,1,0]"


def test_enums_are_their_values() -> None:
    class Number(enum.IntEnum):
        ONE = 1

    class Word(enum.StrEnum):
        A = "a"

    assert canonicalize({"n": Number.ONE, Word.A: Word.A}) == b'{"a":"a","n":1}'


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: {"\U00010000": v}, lambda v: (v, 1.0)])
def test_nesting_limit_is_128(wrap: Any) -> None:
    value: Any = []
    for _ in range(127):
        value = wrap(value)
    canonicalize(value)
    with pytest.raises(TooDeep):
        canonicalize(wrap(value))


def test_a_value_that_holds_itself_twice_is_too_deep() -> None:
    parent: dict[str, Any] = {}
    parent |= {"one": {"parent": parent}, "other": {"parent": parent}}
    with pytest.raises(TooDeep):
        canonicalize(parent)


def test_endless_nesting_needs_no_stack() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TooDeep):
        canonicalize(value)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TooDeep):
        canonicalize(deep)
    while deep:  # taken apart here: the interpreter would recurse
        deep = deep[0]


def test_check_scalar_names_the_same_faults() -> None:
    for good in (None, True, 0, LIMIT, -LIMIT, 0.5, 1e21, "\U0001f600"):
        check_scalar(good)
    for bad, error in [(2**53, BigInteger), (1e20, InexactDouble), (math.inf, NonFinite), ("\ud800", LoneSurrogate)]:
        with pytest.raises(error):
            check_scalar(bad)


@pytest.mark.parametrize("leaf", [None, 1.0])
def test_a_large_document_is_quick(leaf: Any) -> None:
    value = [{"id": i, "n": {"a": [i, "t"], "b": leaf}} for i in range(18_000)]
    started = time.process_time()
    assert len(canonicalize(value)) > 600_000
    taken = time.process_time() - started
    json.dumps(value, sort_keys=True)
    reference = time.process_time() - started - taken
    # Three to five times as long as the library's own printing; ten times as much is allowed. Time of the processor, so
    # that a loaded machine fails nothing.
    assert taken < 50 * reference
