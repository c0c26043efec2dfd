"""Custom events against the JSON Schemas that their session declared (P9).

The schema is the opener's and the payload the reporter's, so neither may hold up a worker, nor fail the activity for
the events beside it. What is told of a fault is where and which keyword, never a value: in a session that keeps digests
alone, values go nowhere.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic_core import SchemaError as PatternError
from temporalio import activity
from temporalio.common import RawValue

from activities.errors import OpeningRefused, told_to_temporal
from activities.event_schemas import Budget, TooCostly, first_error, matcher
from affidavit.contract import ACTIVITY_CHECK_EVENTS
from affidavit.event_types import check_event_types, subschemas
from affidavit.events_api import EventFaults
from affidavit.evidence.text import printable

EVENT_S: Final = 1.0
"""Processor time for one event."""
RECORD_S: Final = 2.0
"""After so much for one record an event gets `HURRIED_S`: the activity has its time limit, and most need less."""
HURRIED_S: Final = 0.02


_Place = tuple[Any, Any]
"""A key, after the place it is in (None at the top)."""


class CustomEventsActivity:
    """Checks events; needs nothing but what it is given."""

    @activity.defn(name=ACTIVITY_CHECK_EVENTS)
    def check(self, schemas: RawValue, record: RawValue) -> EventFaults:
        """What is wrong with the custom events of a `record` message.

        Args:
            schemas: the declared schemas by type; a type that is not among them is undeclared.
            record: the message, read already by the session and so known to be one.
        """
        with told_to_temporal():
            return EventFaults(faults=self._faults(json.loads(schemas.payload.data), json.loads(record.payload.data)))

    def _faults(self, declared: dict[str, Any], record: dict[str, Any]) -> dict[int, str]:
        faults, begun = {}, time.thread_time()
        for place, step in enumerate(record["steps"]):
            if step.get("kind") != "event":
                continue
            seconds = EVENT_S if time.thread_time() - begun < RECORD_S else HURRIED_S
            if (fault := _fault(declared, step, seconds)) is not None:
                faults[place] = fault
        return faults


def check_declaration(types: dict[str, Any]) -> None:
    """That every declared schema is one, and can be used.

    Raises:
        OpeningRefused: the first that is not. Nothing else is raised: an opening that is tried again for what no retry
            mends would neither fail nor end.
    """
    try:
        check_event_types(types)
    except ValueError as error:
        raise OpeningRefused(f"event type {error}") from None
    for name, schema in types.items():
        try:
            Draft202012Validator.check_schema(schema)
            for part in subschemas(schema):
                if "pattern" in part:
                    matcher(part["pattern"])
        except SchemaError as error:
            where = ".".join(str(part) for part in error.absolute_path) or "schema"
            raise OpeningRefused(f"event type {name}: {printable(where)} is no valid {error.validator}") from None
        except PatternError:
            raise OpeningRefused(f"event type {name}: a pattern that cannot be matched in linear time") from None
        except Exception as error:  # noqa: BLE001 - whatever the library stumbles over, it will again
            raise OpeningRefused(f"event type {name}: a schema that cannot be read ({type(error).__name__})") from None


def _fault(declared: Mapping[str, Any], step: Mapping[str, Any], seconds: float) -> str | None:
    type_ = str(step.get("type"))
    if type_ not in declared:
        return f"event type {printable(type_)} is not declared"
    try:
        payload = step.get("payload")
        if (path := _not_finite(payload)) is not None:
            return f"event {type_}: {_where(path)} is not a finite number"
        error = first_error(declared[type_], payload, Budget(seconds))
    except (TooCostly, RecursionError):
        return f"event {type_}: the payload is too costly to check against its schema"
    except Exception as error:  # noqa: BLE001 - it falls alone, the events beside it are judged
        activity.logger.warning("a custom event could not be checked: %s", type(error).__name__)
        return f"event {type_} could not be checked against its schema"
    if error is None:
        return None
    return f"event {type_}: {_where(list(error.absolute_path))} is off its schema ({error.validator})"


def _where(path: list[Any]) -> str:
    return printable(".".join(["payload", *(str(part) for part in path)]), 128)


def _not_finite(payload: Any) -> list[Any] | None:
    """Where a number is infinite or none at all: nothing a schema says of numbers can be told of it."""
    # Each with the way back to the top, which takes no copies.
    pending: list[tuple[_Place | None, Any]] = [(None, payload)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            path = []
            while place is not None:
                place, key = place
                path.append(key)
            return path[::-1]
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        pending.extend(((place, key), member) for key, member in members)
    return None
