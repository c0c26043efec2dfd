"""Whether two trajectories tell the same run, step for step (formats.md 7, "Round trip").

Compared is everything in the steps but their number and time: source, message, reasoning, model, tool calls,
observations, metrics, flags and extras. Exactly four differences are tolerated:

1. `cached_tokens` that is absent from metrics is 0;
2. `llm_call_count` may be added in the export;
3. keys under `extra.affidavit`, at every level, are not looked at;
4. metrics marked as estimated are absent.

An optional field that is null is absent, as ATIF itself has it; in arguments, extras and unknown fields it is a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from affidavit.evidence.text import printable
from affidavit.evidence.trajectory import fields as atif
from affidavit.evidence.trajectory.fields import Fields
from affidavit.evidence.trajectory.pieces import ESTIMATED


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()
"""Stands for the value on the side that has none."""


class Difference(NamedTuple):
    """A place where two trajectories differ, as a dotted path, and what each has there."""

    path: str
    original: Any
    export: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.original)} became {_shown(self.export)}"


def compare(original: Any, export: Any) -> list[Difference]:
    """Every difference between a run and its export; an empty list means that they are equal.

    Args:
        original: a trajectory of any version, as read; what is no trajectory has no steps.
        export: the one that was made of it. Only the second may have `llm_call_count` added.
    """
    return list(_differences("steps", _steps(original), _steps(export), added=("llm_call_count",)))


def _steps(trajectory: Any) -> Any:
    steps = trajectory.get("steps") if isinstance(trajectory, dict) else None
    return [_step(step) for step in steps] if isinstance(steps, list) else ABSENT


def _step(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    own = _own(step)
    plain = _plain(step, atif.STEP)
    for name in ("step_id", "timestamp"):
        plain.pop(name, None)
    if own.get("usage") == ESTIMATED:
        plain.pop("metrics", None)
    if isinstance(metrics := plain.get("metrics"), dict):
        plain["metrics"] = _metrics(metrics)
    _each(plain, "message", atif.PART)
    _each(plain, "tool_calls", atif.TOOL_CALL)
    if isinstance(observation := plain.get("observation"), dict):
        observation = plain["observation"] = _plain(observation, atif.OBSERVATION)
        _each(observation, "results", atif.RESULT)
        for result in observation["results"] if isinstance(observation.get("results"), list) else ():
            if isinstance(result, dict):
                _each(result, "content", atif.PART)
                _each(result, "subagent_trajectory_ref", atif.REFERENCE)
    return plain


def _metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    estimated = _own(metrics).get(ESTIMATED)
    plain = {"cached_tokens": 0, **_plain(metrics, atif.METRICS)}
    for name in estimated if isinstance(estimated, list) else ():
        plain.pop(name, None)
    return plain


def _each(holder: dict[str, Any], name: str, fields: Fields) -> None:
    if isinstance(items := holder.get(name), list):
        holder[name] = [_plain(item, fields) if isinstance(item, dict) else item for item in items]


def _plain(value: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """A copy without what is null and optional, and without what is ours."""
    plain = {name: each for name, each in value.items() if each is not None or name not in fields}
    if isinstance(extra := plain.get("extra"), dict) and "extra" in fields:
        theirs = {name: each for name, each in extra.items() if name != "affidavit"}
        # An extra that holds nothing but ours, or nothing, is none.
        plain.pop("extra")
        if theirs:
            plain["extra"] = theirs
    return plain


def _own(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = holder.get("extra")
    own = extra.get("affidavit") if isinstance(extra, dict) else None
    return own if isinstance(own, dict) else {}


def _differences(path: str, one: Any, other: Any, added: tuple[str, ...] = ()) -> Iterator[Difference]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            left, right = one.get(name, ABSENT), other.get(name, ABSENT)
            if not (left is ABSENT and path.count(".") == 1 and name in added):
                yield from _differences(f"{path}.{printable(name)}", left, right, added)
    elif isinstance(one, list) and isinstance(other, list):
        for place in range(max(len(one), len(other))):
            left = one[place] if place < len(one) else ABSENT
            right = other[place] if place < len(other) else ABSENT
            yield from _differences(f"{path}.{place}", left, right, added)
    elif not _same(one, other):
        yield Difference(path, one, other)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one JSON value, where at least one is neither of a pair of lists nor of objects."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other  # Python holds true and 1 for equal
    return bool(one == other)


def _shown(value: Any) -> str:
    return printable(repr(value) if not isinstance(value, str) else value)
