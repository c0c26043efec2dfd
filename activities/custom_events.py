"""Custom events against the JSON Schemas that their session declared (P9), within bounded time.

The schema is the opener's and the payload the reporter's, so neither may hold up a worker. Patterns are matched by an
engine whose time grows with the text alone, and a check gives up after so many looks at a keyword: short schemas exist
that take an exponential number of them. What is told of a fault is where and which keyword, never a value: in a session
that keeps digests alone, values go nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012
from temporalio import activity
from temporalio.common import RawValue

from activities.errors import OpeningRefused
from affidavit.contract import ACTIVITY_CHECK_EVENTS
from affidavit.event_types import references, subschemas
from affidavit.events_api import EventFaults
from affidavit.evidence.canonical import digest
from affidavit.evidence.capture import normalise_value
from affidavit.evidence.text import printable

LOOKS: Final = 50_000
"""Keywords looked at in one check, at most: about a second."""
SCHEMAS_KEPT: Final = 256

_left: ContextVar[int] = ContextVar("looks left")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class TooCostly(Exception):
    """A check would take too long."""


class CustomEventsActivity:
    """Checks events; needs nothing but what it is given."""

    @activity.defn(name=ACTIVITY_CHECK_EVENTS)
    def check(self, schemas: RawValue, record: RawValue) -> EventFaults:
        """What is wrong with the custom events of a `record` message.

        Args:
            schemas: the declared schemas by type; a type that is not among them is undeclared.
            record: the message, read already by the session and so known to be one.
        """
        declared: dict[str, Any] = json.loads(schemas.payload.data)
        faults = {}
        for place, step in enumerate(json.loads(record.payload.data)["steps"]):
            if step.get("kind") == "event" and (fault := _fault(declared, step)) is not None:
                faults[place] = fault
        return EventFaults(faults=faults)


def check_declaration(types: Mapping[str, Any]) -> None:
    """That every declared schema is one, and can be used.

    Raises:
        OpeningRefused: the first that is not.
    """
    for name, schema in types.items():
        try:
            Draft202012Validator.check_schema(schema)
            _check_references(schema)
            for part in subschemas(schema):
                if isinstance(pattern := part.get("pattern"), str):
                    _matcher(pattern)
        except SchemaError as error:
            where = ".".join(str(part) for part in error.absolute_path) or "schema"
            raise OpeningRefused(f"event type {name}: {printable(where)} is no valid {error.validator}") from None
        except Unresolvable as error:
            raise OpeningRefused(f"event type {name}: nothing is at {printable(str(error.ref))}") from None
        except PatternError:
            raise OpeningRefused(f"event type {name}: a pattern that cannot be matched in linear time") from None


def _check_references(schema: dict[str, Any]) -> None:
    resource = DRAFT202012.create_resource(schema)
    resolver = Registry().with_resource("", resource).resolver()
    for reference in references(schema):
        resolver.lookup(reference)


def _fault(declared: Mapping[str, Any], step: Mapping[str, Any]) -> str | None:
    type_ = str(step.get("type"))
    if type_ not in declared:
        return f"event type {printable(type_)} is not declared"
    _left.set(LOOKS)
    try:
        error = next(_validator(json.dumps(declared[type_], sort_keys=True)).iter_errors(step.get("payload")), None)
    except (TooCostly, RecursionError):
        return f"event {type_}: the payload is too costly to check against its schema"
    if error is None:
        return None
    where = ".".join(["payload", *(str(part) for part in error.absolute_path)])
    return f"event {type_}: {printable(where, 128)} is off its schema ({error.validator})"


@lru_cache(SCHEMAS_KEPT)
def _validator(schema: str) -> Validator:
    # An empty registry: nothing is ever fetched.
    validator: Validator = _BOUNDED(json.loads(schema), registry=Registry())
    return validator


@lru_cache(SCHEMAS_KEPT)
def _matcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _pattern(validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matcher(pattern).isinstance_python(instance):
        yield ValidationError("does not match")


def _unique(validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Like the library's, but in linear time: equal values have equal canonical forms."""
    if unique and validator.is_type(instance, "array"):
        _spend(len(instance))
        if len({digest(normalise_value(item)) for item in instance}) != len(instance):
            yield ValidationError("has equal items")


def _spend(looks: int) -> None:
    left = _left.get() - looks
    if left < 0:
        raise TooCostly
    _left.set(left)


def _bounded(keyword: Keyword) -> Keyword:
    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(1 + (len(value) if isinstance(value, list) else 0))
        yield from keyword(validator, value, instance, schema) or ()

    return bounded


_BOUNDED: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        name: _bounded(keyword)
        for name, keyword in {**Draft202012Validator.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique}.items()
    },
)
