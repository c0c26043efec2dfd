"""Field types that the wire models share: what a name, an id, a counter and a text may be.

Two rules stand behind them. A *name, id or counter* that JSON cannot carry exactly is an error of the
message. A *reported value* (text, reasoning, arguments, results, extras) is never refused for its content,
so it is typed as a bare ``str`` or ``Any``: a constrained ``str`` would refuse a lone surrogate.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from affidavit.evidence.scalars import MAX_INTEGER

T = TypeVar("T")


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null is not a value here; leave the key out")
    return value


def _claimed_time(value: str | int) -> str | int:
    if isinstance(value, str):
        parsed = datetime.fromisoformat(value)
        if parsed.tzinfo is None:
            raise ValueError("a time needs its offset (RFC 3339)")
    return value


def _cost(value: float) -> float:
    # MAX_INTEGER micro-USD is what a counter can hold; beyond it the number cannot be accounted.
    if not math.isfinite(value) or value < 0 or value * 1_000_000 > MAX_INTEGER:
        raise ValueError("a cost is finite, not negative and at most 2^53-1 micro-USD")
    return value


Maybe = Annotated[T | None, BeforeValidator(_not_null)]
"""An optional key: absent is absent, and null is refused (formats.md 3.1)."""

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
"""A counter: 0 to 2^53 - 1."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""A tool, model, charter or version name."""

CallId = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
"""A tool call id as the provider made it; some providers pack a signature into it."""

EventType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""The name of a custom event type."""

AttemptId = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ProducerId = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")]
ClaimedTime = Annotated[str | Annotated[int, Field(ge=0, le=253_402_300_799_999)], AfterValidator(_claimed_time)]
Cost = Annotated[float, AfterValidator(_cost)]


class Strict(BaseModel):
    """A model of something foreign: unknown keys and coerced types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_serializer(mode="wrap")
    def _absent_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class WireSchema(GenerateJsonSchema):
    """JSON Schema as the wire has it: an optional key may be absent but never null."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        result = super().default_schema(schema)
        if result.get("default", ...) is None:
            del result["default"]
        return result
