"""What a declaration of custom event types may hold, as far as it can be told without a schema library (pure; P9).

Both sides look at it here: the client before it opens a session, the session before it takes a start. Whether a schema
is one is checked by the worker's validator when the session is opened. The validator reads as a schema whatever a
reference points to, so references may only point where this check has been.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from affidavit.event_patterns import PATTERNS_COST, pattern_cost
from affidavit.evidence.text import printable

TYPES: Final = 32
SCHEMA_BYTES: Final = 32 * 1024
REFERENCE_CHARS: Final = 256
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHELVES: Final = ("$defs", "definitions")
_BY_NAME: Final = (*_SHELVES, "properties", "dependentSchemas")
"""Keywords whose members are schemas under names that are no keywords."""
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = (
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
)
_REFERENCES: Final = ("$ref", "$dynamicRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_NOT_TAKEN: Final = {
    "$id": "references are within the schema alone",
    # The validator's own code for these has no bound: it backtracks, or looks for what was evaluated over and over.
    "patternProperties": "use propertyNames with a pattern",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items beside prefixItems",
}

Schema = bool | dict[str, Any]


def check_event_types(types: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration if it can be one.

    Raises:
        ValueError: too many or too large, a bad name, a schema that is no object, of another dialect, with a reference
            to somewhere else, with a keyword that is not taken, or with a pattern that costs too much.
    """
    if len(types) > TYPES:
        raise ValueError(f"{len(types)} event types, at most {TYPES}")
    cost = 0
    for name, schema in types.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of an event type is 1-64 of A-Z a-z 0-9 _ . -: {printable(name)}")
        try:
            cost += _check(schema)
        except RecursionError:
            raise ValueError(f"{name}: the schema is nested too deep") from None
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if cost > PATTERNS_COST:
        raise ValueError("the patterns of the event types cost too much together")
    return types


def subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all schemas inside it that can be reached; those that are true or false are left out.

    Raises:
        ValueError: something else is where a schema stands.
    """
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise ValueError("something that is no schema where one stands")
        yield part
        for keyword in _SINGLE:
            if keyword in part:
                pending.append(part[keyword])
        for keyword in _LISTS:
            pending.extend(_held(part, keyword, list))
        for keyword in _BY_NAME:
            pending.extend(_held(part, keyword, dict).values())


def targets(schema: dict[str, Any]) -> dict[str, Schema]:
    """Where the references of a schema point, each as it is written.

    Raises:
        ValueError: one is no reference to the schema itself, to an entry of its `$defs` or `definitions`, or to an
            anchor in it; or an anchor stands twice.
    """
    anchors: dict[str, Schema] = {}
    for part in subschemas(schema):
        for name in {part[keyword] for keyword in _ANCHORS if isinstance(part.get(keyword), str)}:
            if name in anchors:
                raise ValueError(f"the anchor {printable(name)} stands twice")
            anchors[name] = part
    found: dict[str, Schema] = {}
    for part in subschemas(schema):
        for keyword in _REFERENCES:
            if keyword in part:
                found[part[keyword]] = _target(keyword, part[keyword], schema, anchors)
    return found


def _target(keyword: str, reference: Any, schema: dict[str, Any], anchors: dict[str, Schema]) -> Schema:
    if not isinstance(reference, str) or len(reference) > REFERENCE_CHARS:
        raise ValueError(f"{keyword} is a text of at most {REFERENCE_CHARS} characters")
    if not reference.startswith("#"):
        raise ValueError(f"{keyword} may only point into the schema itself: {printable(reference)}")
    if reference == "#":
        return schema
    fragment = unquote(reference[1:])
    if fragment in anchors:
        return anchors[fragment]
    shelf, _, name = fragment.removeprefix("/").partition("/")
    if not fragment.startswith("/") or shelf not in _SHELVES or "/" in name:
        raise ValueError(f"{keyword} may only be #, #/$defs/NAME or the name of an anchor: {printable(reference)}")
    target = _held(schema, shelf, dict).get(name.replace("~1", "/").replace("~0", "~"))
    if target is None:
        raise ValueError(f"nothing is at {printable(fragment)}")
    return target  # type: ignore[no-any-return]  # it was visited: a schema or a ValueError


def _check(schema: Any) -> int:
    """What the patterns of a schema cost."""
    cost = 0
    if not isinstance(schema, dict):
        raise ValueError("a JSON Schema is an object")
    # Every number in it is compared with or divided by.
    if (size := len(json.dumps(schema, separators=(",", ":"), allow_nan=False))) > SCHEMA_BYTES:
        raise ValueError(f"the schema has {size} bytes, at most {SCHEMA_BYTES}")
    for part in subschemas(schema):
        if part.get("$schema", DIALECT) != DIALECT:
            raise ValueError("only draft 2020-12 is taken ($schema)")
        for keyword, instead in _NOT_TAKEN.items():
            if keyword in part:
                raise ValueError(f"{keyword} is not taken; {instead}")
        if isinstance(pattern := part.get("pattern"), str):
            cost += pattern_cost(pattern)
    targets(schema)
    return cost


def _held(part: dict[str, Any], keyword: str, kind: type[Any]) -> Any:
    held = part.get(keyword, kind())
    if not isinstance(held, kind):
        raise ValueError(f"{keyword} is no valid {'array' if kind is list else 'object'}")
    return held
