"""What a declaration of custom event types may hold, as far as it can be told without a schema library (pure; P9).

Both sides look at it here: the client before it opens a session, the session before it takes a start. Whether a schema
is one is checked by the worker's validator when the session is opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from affidavit.evidence.text import printable

TYPES: Final = 32
SCHEMA_BYTES: Final = 32 * 1024
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BY_NAME: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are schemas under names that are no keywords."""
_DATA: Final = frozenset({"const", "enum", "default", "examples"})
_REFERENCES: Final = ("$ref", "$dynamicRef")


def check_event_types(types: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration if it can be one.

    Raises:
        ValueError: too many or too large, a bad name, a schema that is no object, of another dialect, with a reference
            to somewhere else, or with `patternProperties`.
    """
    if len(types) > TYPES:
        raise ValueError(f"{len(types)} event types, at most {TYPES}")
    for name, schema in types.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of an event type is 1-64 of A-Z a-z 0-9 _ . -: {printable(name)}")
        if not isinstance(schema, dict):
            raise ValueError(f"{name}: a JSON Schema is an object")
        if (size := len(json.dumps(schema, separators=(",", ":")))) > SCHEMA_BYTES:
            raise ValueError(f"{name}: the schema has {size} bytes, at most {SCHEMA_BYTES}")
        for part in subschemas(schema):
            _check(name, part)
    return types


def subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all schemas inside it."""
    pending = [schema]
    while pending:
        part = pending.pop()
        yield part
        for keyword, value in part.items():
            if keyword in _DATA:
                continue
            members = value.values() if isinstance(value, dict) and keyword in _BY_NAME else (value,)
            for member in members:
                pending.extend(each for each in (member if isinstance(member, list) else (member,)) if _is_schema(each))


def references(schema: dict[str, Any]) -> Iterator[str]:
    """All references in a schema."""
    for part in subschemas(schema):
        yield from (part[keyword] for keyword in _REFERENCES if isinstance(part.get(keyword), str))


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict)


def _check(name: str, part: dict[str, Any]) -> None:
    if part.get("$schema", DIALECT) != DIALECT:
        raise ValueError(f"{name}: only draft 2020-12 is taken ($schema)")
    if "patternProperties" in part:
        # The validator tries these patterns with backtracking, whose time nobody can bound.
        raise ValueError(f"{name}: patternProperties is not taken; use propertyNames with a pattern")
    for keyword in _REFERENCES:
        if isinstance(target := part.get(keyword), str) and not target.startswith("#"):
            raise ValueError(f"{name}: {keyword} may only point into the schema itself: {printable(target)}")
