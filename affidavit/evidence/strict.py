"""Strict reading of foreign JSON: receipts, trajectories, journals, keyrings, dumps (formats.md section 1).

Python's own reader takes the last of two equal keys, NaN, a byte order mark in some encodings, and recurses.
Here each of these is refused by name, because a document that two readers read differently is no evidence.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, Final, NoReturn

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable

MAX_DEPTH: Final = 128
"""The deepest nesting that is read: 128 arrays or objects within each other."""


class StrictJsonError(EvidenceError):
    """A foreign document was refused before anybody looked at its meaning."""


class ParseError(StrictJsonError):
    """The bytes are not JSON in UTF-8."""


class DuplicateKey(StrictJsonError):
    """An object, at any depth, has the same key twice (compared after unescaping)."""


class TrailingBytes(StrictJsonError):
    """Something other than white space follows the document."""


class NestingTooDeep(StrictJsonError):
    """Arrays and objects are nested more than `MAX_DEPTH` deep."""


class TooLarge(StrictJsonError):
    """The document is longer than the caller allows."""


def read_json(data: bytes | str, *, max_bytes: int | None = None) -> Any:
    """Read one JSON document, or say why not.

    Args:
        data: the document; bytes are UTF-8 without a byte order mark.
        max_bytes: the greatest length allowed, in bytes of UTF-8.

    Returns:
        dicts, lists, strings, ints, floats, bools, None. An integer literal is an `int` of any size, never a
        double; the literal `-0`, which no integer is, is the double -0.0. An escaped lone surrogate stays in
        its string: `canonical` refuses it where it matters.

    Raises:
        ParseError, DuplicateKey, TrailingBytes, NestingTooDeep, TooLarge: one kind of fault each. Nesting is
            looked at first, so a document with two faults is always refused for the same one.
    """
    if isinstance(data, str):
        try:
            raw = data.encode()
        except UnicodeEncodeError as error:
            raise ParseError(f"not UTF-8: lone surrogate at character {error.start}") from None
    else:
        raw = data
    if max_bytes is not None and len(raw) > max_bytes:
        raise TooLarge(f"document of {len(raw)} bytes, at most {max_bytes} are read")
    try:
        text = data if isinstance(data, str) else raw.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"not UTF-8: byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise ParseError("byte order mark before the document")
    if _depth(raw) > MAX_DEPTH:
        raise NestingTooDeep(f"nesting over {MAX_DEPTH}")
    start = _skip_space(text, 0)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ParseError(f"{printable(error.msg)}, line {error.lineno} column {error.colno}") from None
    rest = _skip_space(text, end)
    if rest == len(text):
        return value
    if rest == end and not isinstance(value, (dict, list, str)):  # such as 01, 1. or nullx: one bad token, not two
        raise ParseError(f"malformed literal, character {end}")
    raise TrailingBytes(f"text after the document, character {rest}")


# A string, to its closing quote or, where it has none, to the end: brackets inside a string do not nest.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_SPACE: Final = re.compile(r"[ \t\n\r]*+")


def _depth(raw: bytes) -> int:
    """The deepest nesting, or a bound on it within the limit: the largest running sum of +1 and -1 a bracket.

    Found without recursion, so that no document can exhaust the stack.
    """
    if (openings := raw.count(b"[") + raw.count(b"{")) <= MAX_DEPTH:
        return openings  # a bound is enough, and most documents are small
    brackets = _STRING.sub(b"", raw).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0)


def _skip_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKey(f"duplicate key {printable(key)!r}")
            seen.add(key)
    return value


def _integer(literal: str) -> int | float:
    if literal == "-0":
        return -0.0
    try:
        return int(literal)
    except ValueError:  # beyond the interpreter's limit of digits: conversion takes quadratic time
        raise ParseError(f"integer literal of {len(literal)} characters") from None


def _double(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise ParseError(f"number out of range: {printable(literal, 32)}")
    return value


def _constant(literal: str) -> NoReturn:
    raise ParseError(f"{literal} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_double, parse_constant=_constant
)
