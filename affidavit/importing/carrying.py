"""What of a run's fields a step can carry, and where the rest is kept beside it (`extra.affidavit`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable
from affidavit.fields import CallId, Count, Name

NAME: Final[TypeAdapter[str]] = TypeAdapter(Name)
CALL_ID: Final[TypeAdapter[str]] = TypeAdapter(CallId)
COUNT: Final[TypeAdapter[int]] = TypeAdapter(Count)
EFFORT: Final[TypeAdapter[str | float]] = TypeAdapter(str | float)
TEXT: Final[TypeAdapter[str]] = TypeAdapter(str)
FLAG: Final[TypeAdapter[bool]] = TypeAdapter(bool)
LIST: Final[TypeAdapter[list[Any]]] = TypeAdapter(list[Any])
OBJECTS: Final[TypeAdapter[list[dict[str, Any]]]] = TypeAdapter(list[dict[str, Any]])
REFERENCE: Final[TypeAdapter[list[Any] | dict[str, Any]]] = TypeAdapter(list[Any] | dict[str, Any])


class NotARun(EvidenceError):
    """The document is no ATIF trajectory; the message is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not an ATIF trajectory: {reason}")


def fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def taken(left: dict[str, Any], key: str, adapter: TypeAdapter[Any]) -> Any:
    """Take a field that a step can carry out of what is left; None where there is none."""
    return left.pop(key) if key in left and fits(adapter, left[key]) else None


def carried_name(value: Any, adapter: TypeAdapter[str], limit: int) -> str:
    """A name or id that can be carried: itself, else a readable stand-in."""
    if fits(adapter, value):
        return str(value)
    return printable(str(value), limit) or "(empty)"


def others(holder: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The fields of an object that are not known; a null says nothing."""
    return {key: value for key, value in holder.items() if key not in known and value is not None}


def step_notes(step: Mapping[str, Any], where: str, left: dict[str, Any]) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    if step.get("timestamp") is not None:
        notes["original_timestamp"] = step["timestamp"]
    if (step_id := step.get("step_id")) is not None and f"steps.{_previous(step_id)}" != where:
        notes["original_step_id"] = step_id
    if left:
        notes["original_fields"] = left
    return notes


def _previous(step_id: Any) -> Any:
    return step_id - 1 if type(step_id) is int else None


def with_extra(made: dict[str, Any], original: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    if extra := noted(original, notes):
        made["extra"] = extra
    elif original.get("extra") == {}:
        made["extra"] = {}
    return made


def noted(original: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    """The original's `extra` and what is ours; what stood under our key and collides moves to `reported`."""
    extra = original.get("extra")
    if extra is not None and not isinstance(extra, dict):
        notes = {**notes, "original_fields": {**notes.get("original_fields", {}), "extra": extra}}
    theirs = extra if isinstance(extra, dict) else {}
    if not notes:
        return dict(theirs)
    mine = theirs.get("affidavit", {})
    if not isinstance(mine, dict) or mine.keys() & notes.keys():
        mine = {"reported": mine}
    return {**theirs, "affidavit": {**mine, **notes}}
