"""Captures: a step as accepted, in a form that JSON carries exactly (formats.md sections 1 and 2).

What a runtime reports may hold values that canonical JSON refuses: integers beyond 2^53 - 1, NaN, half a
surrogate pair, nesting without end. An event is never lost for it and a number never rounded: the smallest
offending value is replaced by a *wrapper*

    {"encoding": "json-text", "text": <ASCII-escaped JSON text>, "sha256": <of that text>, "why": <reason>}

with `why` one of

* `big_integer`: an integer beyond the limit, or a double with 2^53 <= |x| < 10^21;
* `non_finite`: NaN or an infinity (the text is then NaN, Infinity or -Infinity, as Python reads them);
* `lone_surrogate`: half a surrogate pair in a string;
* `depth`: nesting over `MAX_NESTING`; here the whole value is replaced, not a part;
* `not_object`: tool arguments that are no object, such as argument text that does not parse.

Where a format requires a string (texts, reasoning, parts of a message), the escaped JSON text itself stands,
quotes included, and the step's `extra.affidavit.encoding` maps the field's dotted path to the reason.
`json.loads` of either text gives the value as reported. A clean value is returned as it is, and a normalised
step normalises to itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from operator import is_
from typing import Any, Final, Literal, TypeAlias

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import MAX_INTEGER, sha256_hex
from affidavit.evidence.strict import StrictJsonError, read_json

__all__ = [
    "MAX_NESTING",
    "CaptureError",
    "capture_bytes",
    "capture_sha256",
    "normalise_arguments",
    "normalise_step",
    "normalise_value",
    "read_reported",
]

MAX_NESTING: Final = 96
"""Arrays and objects within each other in one reported value; the step around it needs the rest up to 128."""

Why: TypeAlias = Literal["big_integer", "non_finite", "lone_surrogate", "depth", "not_object"]

_ANY_JSON: Final = frozenset({"content", "payload", "input", "tools", "subagent_trajectory_ref"})
"""Step fields whose value may be anything; a string in any other field must stay a string."""


class CaptureError(EvidenceError):
    """The step should have been rejected before: a key or a type that no JSON text can hold."""


class _Literal(float):
    """A double that is not the number it was read from, with the text it was read from."""

    text: str


def read_reported(data: bytes | str) -> Any:
    """The value of a JSON text, for `normalise_step`: a number that a double would change keeps its text.

    Raises:
        ValueError: no JSON, or an integer longer than Python reads.
    """
    return json.loads(data, parse_float=_read_float)


def _read_float(text: str) -> float:
    number = float(text)
    if math.isfinite(number) and not _inexact(number):
        return number
    kept = _Literal(number)
    kept.text = text
    return kept


def normalise_value(value: Any) -> Any:
    """A reported value with everything wrapped that canonical JSON cannot carry.

    Args:
        value: what `json.loads` returns, nested at most 512 deep.

    Returns:
        `value` itself if it is clean, else a copy that `canonicalize` takes.

    Raises:
        CaptureError: half a surrogate pair in an object key, a key that is no string, a type that JSON
            does not have.
    """
    depth, clean = _survey(value)
    if depth > MAX_NESTING:
        return _wrap(value, "depth")
    return value if clean else _replaced(value)


def normalise_arguments(arguments: Any) -> dict[str, Any]:
    """Tool arguments as the object that is kept: the JSON text of an object is read, anything else wrapped.

    Text is kept whole where reading it would lose something: a duplicate key, a number beyond a double, half
    a surrogate pair in a key. None becomes `{}`; the caller marks that (`normalise_step` does).

    Raises:
        CaptureError: as `normalise_value`, for arguments that are not text.
    """
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        try:
            read = read_json(arguments)
            if isinstance(read, dict) and not _has_inexact_double(read):
                normal: dict[str, Any] = normalise_value(read)
                return normal
        except (StrictJsonError, CaptureError):
            pass
        return _wrap(arguments, "not_object")
    return normalise_value(arguments) if isinstance(arguments, dict) else _wrap(arguments, "not_object")


def normalise_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """The capture of a step that has been validated: its keys, ids, names and counters are already good.

    Raises:
        CaptureError: as `normalise_value`.
    """
    marks: dict[str, Why] = {}
    capture: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    for key, value in step.items():
        if key == "messages":
            capture[key] = [_message(each, f"messages.{i}", marks) for i, each in enumerate(value)]
        elif key == "tool_calls":
            capture[key] = [_announced(call) for call in value]
        elif key == "arguments":
            capture[key] = normalise_arguments(value)
            if value is None:
                notes["arguments"] = "null"
        else:
            capture[key] = _field(key, value, key, marks)
    if marks:
        notes["encoding"] = marks
    return _annotated(capture, notes)


def capture_bytes(capture: Mapping[str, Any]) -> bytes:
    """The canonical bytes of a normalised step: one line of a captures segment, without its newline."""
    return canonicalize(dict(capture))


def capture_sha256(capture: Mapping[str, Any]) -> str:
    """What stands in the step's event: SHA-256 of `capture_bytes`, in hex."""
    return sha256_hex(capture_bytes(capture))


# -- steps --------------------------------------------------------------------------------------------


def _field(key: str, value: Any, path: str, marks: dict[str, Why]) -> Any:
    if isinstance(value, str) and key not in _ANY_JSON:
        return _text(value, path, marks)
    if key in ("extra", "usage") and isinstance(value, Mapping):
        return _members(value)
    return normalise_value(value)


def _message(message: Mapping[str, Any], path: str, marks: dict[str, Why]) -> dict[str, Any]:
    normal: dict[str, Any] = {}
    for key, value in message.items():
        here = f"{path}.{key}"
        if key == "tool_calls":
            normal[key] = [_announced(call) for call in value]
        elif key == "content" and isinstance(value, list):
            normal[key] = [_part(part, f"{here}.{i}", marks) for i, part in enumerate(value)]
        elif isinstance(value, str):
            normal[key] = _text(value, here, marks)
        else:
            normal[key] = _field(key, value, here, marks)
    return normal


def _part(part: Any, path: str, marks: dict[str, Why]) -> Any:
    """A content part: its own strings and those of its source stay strings, for readers of ATIF require them."""
    depth, clean = _survey(part)
    if clean or depth > MAX_NESTING or not isinstance(part, dict):
        return normalise_value(part)
    normal: dict[str, Any] = {}
    for key, value in part.items():
        here = f"{path}.{key}"
        if isinstance(value, str):
            normal[key] = _text(value, here, marks)
        elif key == "source" and isinstance(value, dict):
            normal[key] = _part(value, here, marks)
        else:
            normal[key] = normalise_value(value)
    return normal


def _announced(call: Mapping[str, Any]) -> dict[str, Any]:
    normal = {key: _members(value) if key == "extra" else value for key, value in call.items()}
    normal["arguments"] = normalise_arguments(call.get("arguments"))
    return _annotated(normal, {"arguments": "null"} if call.get("arguments") is None else {})


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    """Each member on its own, so that one bad value does not hide its neighbours."""
    return {_checked_key(key): normalise_value(member) for key, member in value.items()}


def _annotated(holder: dict[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    """Add what is ours to `extra.affidavit`. What the reporter had under a key that we need moves to `reported`."""
    if notes:
        extra = holder.get("extra", {})
        theirs = extra.get("affidavit", {})
        if not isinstance(theirs, dict) or notes.keys() & theirs.keys():
            theirs = {"reported": theirs}
        holder["extra"] = {**extra, "affidavit": {**theirs, **notes}}
    return holder


def _text(text: str, path: str, marks: dict[str, Why]) -> str:
    if _encodable(text):
        return text
    marks[path] = "lone_surrogate"
    return json.dumps(text)


# -- values -------------------------------------------------------------------------------------------


def _survey(value: Any) -> tuple[int, bool]:
    """How deep a value nests (a scalar 0, an array of scalars 1), and whether every key and leaf can stay.

    Level by level, so that depth costs no stack.
    """
    depth, clean = 0, True
    level = [value]
    while True:
        below: list[Any] = []
        nests = False
        for node in level:
            kind = type(node)
            if kind is dict:
                nests = True
                for key in node:
                    _checked_key(key)
                below.extend(node.values())
            elif kind is list:
                nests = True
                below.extend(node)
            elif kind is str:
                clean = clean and (node.isascii() or _encodable(node))
            elif kind is int:
                clean = clean and -MAX_INTEGER <= node <= MAX_INTEGER
            elif _fault(node) is not None:
                clean = False
        if not nests:
            return depth, clean
        depth += 1
        level = below


def _fault(leaf: Any) -> Why | None:
    """Why a leaf cannot stay, or None."""
    if leaf is None or isinstance(leaf, bool):
        return None
    if isinstance(leaf, str):
        return None if _encodable(leaf) else "lone_surrogate"
    if isinstance(leaf, int):
        return None if -MAX_INTEGER <= leaf <= MAX_INTEGER else "big_integer"
    if isinstance(leaf, float):
        if not math.isfinite(leaf):
            return "non_finite"
        return "big_integer" if _inexact(leaf) else None
    raise CaptureError(f"a {type(leaf).__name__} is not a JSON value")


def _inexact(number: float) -> bool:
    """Whether a double would be written like an integer that it may not be."""
    return 2.0**53 <= abs(number) < 1e21


def _has_inexact_double(value: Any) -> bool:
    """Whether reading the text of `value` may already have rounded a number; nesting is at most 128 here."""
    if isinstance(value, float):
        return _inexact(value)
    if isinstance(value, (dict, list)):
        return any(map(_has_inexact_double, value.values() if isinstance(value, dict) else value))
    return False


def _replaced(value: Any) -> Any:
    """The value with every offending leaf wrapped, clean parts shared; deep values never get here, so it recurses."""
    kind = type(value)
    if kind is dict:
        members = {key: _replaced(member) for key, member in value.items()}
        return value if all(map(is_, members.values(), value.values())) else members
    if kind is list:
        items = list(map(_replaced, value))
        return value if all(map(is_, items, value)) else items
    if kind is str and value.isascii():
        return value
    why = _fault(value)
    return value if why is None else _wrap(value, why)


def _wrap(value: Any, why: Why) -> dict[str, Any]:
    try:
        text = value.text if isinstance(value, _Literal) else json.dumps(value, separators=(",", ":"))
    except (RecursionError, ValueError) as error:
        # Thousands of levels or digits, which no parser of ours lets in.
        raise CaptureError("a value has no JSON text") from error
    return {"encoding": "json-text", "text": text, "sha256": sha256_hex(text.encode("ascii")), "why": why}


def _checked_key(key: Any) -> str:
    if not isinstance(key, str):
        raise CaptureError("an object key is not a string")
    if not _encodable(key):
        raise CaptureError("lone surrogate in an object key")
    return key


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
