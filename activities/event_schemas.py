"""A JSON Schema validator whose time is bounded, whatever schema and payload it is given (P9).

Patterns are matched by an engine whose time grows with the text alone, references are looked up in a table made
beforehand, and a check gives up after so many looks at a keyword, or so much time: short schemas exist that take an
exponential number of them. Nothing is left of the library's own code that runs a regular expression or follows a
reference.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry

from affidavit.event_patterns import pattern_cost
from affidavit.event_types import Schema, check_event_types, subschemas, targets
from affidavit.evidence.canonical import digest
from affidavit.evidence.capture import normalise_value

LOOKS: Final = 50_000
"""Keywords looked at in one check, at most: about a second."""
SCHEMAS_KEPT: Final = 256
_UNITS_A_LOOK: Final = 1000
"""Characters matched times the cost of their pattern, that take as long as one look."""
_BYTES_A_LOOK: Final = 32
_COMPARE: Final = ("const", "enum")
_EACH: Final = ("additionalProperties", "contains", "items", "propertyNames")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class TooCostly(Exception):
    """A check would take too long."""


@dataclass
class Budget:
    """What one check may use up."""

    seconds: float
    """Of the thread's processor time, so that a busy machine rejects no more than an idle one."""
    looks: int = LOOKS
    targets: dict[str, Schema] = field(default_factory=dict)
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = time.thread_time() + self.seconds

    def spend(self, looks: int) -> None:
        self.looks -= looks
        if self.looks < 0 or time.thread_time() > self.until:
            raise TooCostly


_budget: ContextVar[Budget] = ContextVar("budget")


def first_error(schema: dict[str, Any], payload: Any, budget: Budget) -> ValidationError | None:
    """The first thing about a payload that is off a schema.

    Raises:
        TooCostly: the budget is used up.
        RecursionError: schema and payload are nested too deep.
        ValueError: a schema that no declaration may hold.
    """
    validator, budget.targets = _prepared(json.dumps(schema, sort_keys=True))
    _budget.set(budget)
    error: ValidationError | None = next(validator.iter_errors(payload), None)
    return error


@lru_cache(SCHEMAS_KEPT)
def matcher(pattern: str) -> SchemaValidator:
    """Compiles a pattern; raises `pydantic_core.SchemaError` if it needs backtracking."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


@lru_cache(SCHEMAS_KEPT)
def _prepared(text: str) -> tuple[Any, dict[str, Schema]]:
    schema = json.loads(text)
    # Once more: a session may have been opened when more was taken.
    check_event_types({"t": schema})
    for part in subschemas(schema):
        part.pop("$schema", None)  # for such a part the library would go on with its own validator
    # An empty registry: nothing is ever fetched.
    return _BOUNDED(schema, registry=Registry()), targets(schema)


def _pattern(validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string"):
        _spend(len(instance) * pattern_cost(pattern) // _UNITS_A_LOOK)
        if not matcher(pattern).isinstance_python(instance):
            yield ValidationError("does not match")


def _unique(validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Like the library's, but in linear time: equal values have equal canonical forms."""
    if unique and validator.is_type(instance, "array"):
        _spend(len(instance))
        if len({digest(normalise_value(item)) for item in instance}) != len(instance):
            yield ValidationError("has equal items")


def _multiple(validator: Any, unit: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Exact for the numbers as they are written: 0.3 is a multiple of 0.1."""
    if validator.is_type(instance, "number") and (_exact(instance) / _exact(unit)).denominator != 1:
        yield ValidationError("is no multiple")


def _exact(number: int | float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _reference(validator: Any, reference: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    # Without `$id` there is one resource, so that a dynamic reference is a plain one.
    yield from validator.descend(instance, _budget.get().targets[reference])


def _refused(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[ValidationError]:
    raise TooCostly


def _spend(looks: int) -> None:
    _budget.get().spend(looks)


def _bounded(name: str, keyword: Keyword) -> Keyword:
    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(1 + (len(value) if isinstance(value, list) else 0))
        if name in _COMPARE:
            _spend(len(json.dumps(value)) // _BYTES_A_LOOK)
        if name in _EACH and isinstance(instance, list | dict):
            _spend(len(instance) // 2)  # a schema without a keyword, such as true, has no look of its own
        yield from keyword(validator, value, instance, schema) or ()

    return bounded


_OWN: Final[dict[str, Keyword]] = {
    "$dynamicRef": _reference,
    "$ref": _reference,
    "multipleOf": _multiple,
    "pattern": _pattern,
    "patternProperties": _refused,
    "unevaluatedItems": _refused,
    "unevaluatedProperties": _refused,
    "uniqueItems": _unique,
}
_BOUNDED: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {name: _bounded(name, keyword) for name, keyword in {**Draft202012Validator.VALIDATORS, **_OWN}.items()},
)
