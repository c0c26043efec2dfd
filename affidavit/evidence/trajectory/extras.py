"""The objects called `extra`: all that is ours in them sits under the one key `affidavit` (formats.md 7)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from affidavit.evidence.trajectory import fields as atif
from affidavit.evidence.trajectory.validate import is_part

Json = dict[str, Any]


def noted(extra: Any, notes: Mapping[str, Any]) -> Json:
    """`{"extra": …}` with what is ours under `affidavit`, or `{}` where there is nothing to say.

    What a reporter had under a key of ours, and differs, moves to `affidavit.reported`.
    """
    if not notes:
        return {} if extra is None else {"extra": extra}
    theirs = extra or {}
    mine = theirs.get("affidavit", {})
    if not isinstance(mine, dict) or any(name in mine and mine[name] != value for name, value in notes.items()):
        mine = {"reported": mine}
    return {"extra": {**theirs, "affidavit": {**mine, **notes}}}


_VALID: Final[Mapping[str, Callable[[Any], bool]]] = {
    "message": lambda value: isinstance(value, list) and all(map(is_part, value)),
    "model_name": lambda value: atif.text(value) is None,
    "llm_call_count": lambda value: atif.count(value) is None,
    "observation": lambda value: value == {"results": []},
}
RESTORED: Final[Mapping[str, Collection[str]]] = {
    "agent": ("message", "model_name", "observation"),
    "system": ("llm_call_count", "observation"),
    "user": ("llm_call_count",),
}
"""What goes back to its place on a step of each source."""


def originals(extra: Any, names: Collection[str]) -> tuple[Json, Any]:
    """The fields of an imported object that can go back, and its extra without those."""
    kept = own_notes(extra).get("original_fields")
    if not isinstance(kept, dict):
        return {}, extra
    given = {name: kept[name] for name in names if name in kept and _VALID[name](kept[name])}
    cleared = without_note(extra, "original_fields")
    left = without(kept, given)
    return given, noted(cleared, {"original_fields": left})["extra"] if left else cleared


def own_notes(extra: Any) -> Json:
    """What stands under `affidavit`, if that is an object."""
    notes = extra.get("affidavit") if isinstance(extra, dict) else None
    return notes if isinstance(notes, dict) else {}


def without_note(extra: Any, name: str) -> Any:
    """An extra without one of our notes, None where nothing is left."""
    notes = own_notes(extra)
    if name not in notes:
        return extra
    left = without(notes, {name})
    return {**extra, "affidavit": left} if left else without(extra, {"affidavit"}) or None


def without(holder: Mapping[str, Any], names: Collection[str]) -> Json:
    """A copy without some members."""
    return {name: value for name, value in holder.items() if name not in names}
