"""Canonical JSON: RFC 8785 (JCS), with a pre-scan that refuses what it could only carry inexactly.

Three printers. `orjson` writes what holds no unusual double and nothing beyond the basic plane, which is nearly
everything; there its text is the canonical one. The rest is scanned. The standard library's C encoder writes the same
bytes as RFC 8785 but for some doubles and for keys beyond the basic plane; where the scan met one of those, `rfc8785`
writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

import orjson
import rfc8785

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import MAX_INTEGER, sha256_hex

MAX_DEPTH: Final = 128
"""The deepest nesting that has a canonical form: 128 arrays or objects within each other."""


class CanonicalError(EvidenceError):
    """The value has no canonical form here; each subclass names one reason."""


class BigInteger(CanonicalError):
    """An integer beyond ±(2^53 - 1)."""


class InexactDouble(CanonicalError):
    """A double with 2^53 <= |x| < 10^21: it would print like an integer that it may not be."""


class NonFinite(CanonicalError):
    """NaN or an infinity."""


class LoneSurrogate(CanonicalError):
    """Half a surrogate pair in a string or a key."""


class TooDeep(CanonicalError):
    """Nesting over `MAX_DEPTH`."""


class NotJson(CanonicalError):
    """A type that JSON has no form for, or a key that is no string."""


def canonicalize(value: Any) -> bytes:
    """The RFC 8785 form of a JSON value, in UTF-8.

    Args:
        value: None, bool, int, float, str, list, tuple and dict with string keys, in any combination.

    Returns:
        The bytes that are digested, chained, signed and published.

    Raises:
        BigInteger, InexactDouble, NonFinite, LoneSurrogate, TooDeep, NotJson: nothing is ever rounded or
            replaced. Where both a surrogate and another fault are present, the other one is named.
    """
    plain = _plainly(value)
    if plain is not None:
        return plain
    hazard = _scan(value)
    try:
        if hazard is _Hazard.LIBRARY:
            return rfc8785.dumps(value)
        return _ENCODER.encode(value if hazard is _Hazard.NONE else _with_integers(value)).encode()
    except UnicodeEncodeError:
        raise LoneSurrogate(_SURROGATE) from None
    except rfc8785.CanonicalizationError as error:
        # After the scan the library can only object to a surrogate (in a key it lets the codec's error out).
        if isinstance(error.__cause__, UnicodeEncodeError):
            raise LoneSurrogate(_SURROGATE) from None
        raise


def digest(value: Any) -> str:
    """SHA-256, in hex, of the canonical form; raises as `canonicalize` does."""
    return sha256_hex(canonicalize(value))


def check_scalar(value: Any) -> None:
    """Refuse a number, string or key that has no canonical form; what `canonicalize` says of that one value.

    Raises:
        BigInteger, InexactDouble, NonFinite, LoneSurrogate, NotJson: as `canonicalize`.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise LoneSurrogate(_SURROGATE) from None
    elif isinstance(value, float):
        _check_double(value)
    elif isinstance(value, int):  # bool too: both its values are in range
        _check_integer(value)
    elif value is not None:
        raise NotJson("not a JSON value")


_SURROGATE: Final = "lone surrogate in a string"
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


_SORTED: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_LEAVES: Final = frozenset({str, int, bool, float, type(None)})
_PLAIN: Final = _LEAVES | {dict, list}
_WIDE: Final = 1_000_000
_LEAST_FRACTION: Final = 1e-4
"""Smaller doubles print with an exponent somewhere."""
_BASIC_PLANE: Final = bytes(range(0xF0))
"""Bytes of UTF-8 that no code point beyond the basic plane begins with."""


def _plainly(value: Any) -> bytes | None:
    """The canonical form of a value without doubts; None says nothing about the value."""
    if not _is_plain(value):
        return None
    try:
        text = orjson.dumps(value, option=_SORTED)
    except TypeError:  # a key that is no string, an integer out of range, half a surrogate pair
        return None
    # It sorts by code points. That a key and not a text leaves the basic plane is not worth finding out.
    return text if text.isascii() or not text.translate(None, _BASIC_PLANE) else None


def _is_plain(value: Any) -> bool:
    """Whether it is an object or array of exact JSON types, its doubles with a fraction, not too deep: level by level.

    The types of a whole object are looked at together, in C: most have nothing but leaves.
    """
    if type(value) is not dict and type(value) is not list:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for holder in level:
            inside = holder.values() if type(holder) is dict else holder
            kinds = set(map(type, inside))
            if float in kinds and not all(_has_fraction(item) for item in inside if type(item) is float):
                return False
            if not kinds <= _LEAVES:
                if not kinds <= _PLAIN:
                    return False
                below += [item for item in inside if type(item) is dict or type(item) is list]
        if not below:
            return True
        if len(below) > _WIDE:  # or a value that holds itself more than once
            return False
        level = below
    return False


def _has_fraction(item: float) -> bool:
    """Whether every printer gives a double as the same digits with a point between them."""
    return _LEAST_FRACTION <= abs(item) < 2.0**53 and not item.is_integer()


class _Hazard(IntEnum):
    """What keeps the C encoder from printing a value as RFC 8785 does."""

    NONE = 0
    INTEGRAL_DOUBLE = 1  # 1.0 must print as 1
    LIBRARY = 2  # exponents, or keys that code point order would sort wrongly


def _scan(value: Any) -> _Hazard:
    """Refuse what has no canonical form; return the worst hazard among the rest.

    Iterative, one iterator per open array or object: depth is the stack's length, a cycle ends as too deep.
    """
    worst = _Hazard.NONE
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            kind = type(item)
            if kind is str or kind is bool or item is None:
                continue  # a surrogate shows when the text is encoded
            if kind is int:
                if not -MAX_INTEGER <= item <= MAX_INTEGER:
                    _check_integer(item)
                continue
            if isinstance(item, dict):
                worst = max(worst, _key_hazard(item))
                inside: Iterator[Any] = iter(item.values())
            elif isinstance(item, (list, tuple)):
                inside = iter(item)
            else:
                check_scalar(item)
                if isinstance(item, float):
                    worst = max(worst, _double_hazard(item))
                continue
            if len(stack) > MAX_DEPTH:
                raise TooDeep(f"nesting over {MAX_DEPTH}")
            stack.append(inside)
            break
        else:
            stack.pop()
    return worst


def _key_hazard(item: dict[Any, Any]) -> _Hazard:
    """Code point order is UTF-16 order unless a key leaves the basic plane."""
    try:
        joined = "".join(item)
    except TypeError:
        raise NotJson("object keys must be strings") from None
    return _Hazard.NONE if joined.isascii() or max(joined) < "\U00010000" else _Hazard.LIBRARY


def _double_hazard(item: float) -> _Hazard:
    """`repr` and ECMAScript agree on a double with a fraction, as long as `repr` needs no exponent."""
    if item.is_integer():
        return _Hazard.INTEGRAL_DOUBLE if abs(item) < 2.0**53 else _Hazard.LIBRARY
    return _Hazard.NONE if abs(item) >= _LEAST_FRACTION else _Hazard.LIBRARY


def _with_integers(value: Any) -> Any:
    """A copy of a scanned value (so depth is bounded) with doubles 1.0, -0.0, … as integers 1, 0, …."""
    if isinstance(value, dict):
        return {key: _with_integers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_integers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_integer(item: int) -> None:
    if not -MAX_INTEGER <= item <= MAX_INTEGER:
        raise BigInteger("integer beyond 2^53 - 1")


def _check_double(item: float) -> None:
    if not math.isfinite(item):
        raise NonFinite("number is not finite")
    if 2.0**53 <= abs(item) < 1e21:
        raise InexactDouble("double of at least 2^53 and less than 10^21")
