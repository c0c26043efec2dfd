"""Session events in the shape of the Open Cybersecurity Schema Framework (formats.md 3.1).

`build_event` writes the envelope, `validate_event` looks for everything that is wrong with one. The validator checks
the shape and so also reads what other products or later versions wrote; the JSON Schema `event` is stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from affidavit.evidence.canonical import MAX_DEPTH, CanonicalError, check_scalar
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import MAX_INTEGER, MAX_TIME_MS, BadSessionId, check_session_id, iso_ms
from affidavit.evidence.stops import CAPTIONS, IN_OWN_WORDS
from affidavit.evidence.text import printable
from affidavit.version import PRODUCT, VENDOR

SCHEMA_VERSION: Final = "1.10.0"
"""`metadata.version`: the OCSF version whose base event this is."""
CATEGORY_UID: Final = 6
ACTIVITY_ID: Final = 1
CHARTER_TYPE_ID: Final = 1


class EventClass(IntEnum):
    """`class_uid` of an event; its `class_name` is the topic it is published on."""

    TOOL_CALL = 9901
    STOP_REASON = 9902
    RECEIPT = 9903
    COMPRESSION = 9904
    IDENTITY = 9905
    SESSION = 9906

    @property
    def class_name(self) -> str:
        """Such as `agent.tool_call`."""
        return f"agent.{self.name.lower()}"

    @property
    def type_uid(self) -> int:
        """`class_uid * 100 + activity_id`."""
        return self.value * 100 + ACTIVITY_ID


CLASSES: Final[Mapping[str, EventClass]] = {one.class_name: one for one in EventClass}
"""Every class by its name."""


class Violation(NamedTuple):
    """One thing that is wrong with an event: where (dotted path, empty for the whole) and what."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path or 'event'}: {self.message}"


class InvalidEvent(EvidenceError):
    """An event is not one; `violations` has all that is wrong, the message the first."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        more = f" (and {len(self.violations) - 1} more)" if len(self.violations) > 1 else ""
        super().__init__(f"{self.violations[0]}{more}")


def build_event(
    *,
    uid: str,
    sequence: int,
    time_ms: int,
    class_name: str,
    session_id: str,
    identity: Mapping[str, Any],
    product_version: str,
    status_id: int,
    severity_id: int,
    payload: Mapping[str, Any],
    metrics: Mapping[str, int],
    stop: tuple[int, str] | None,
) -> dict[str, Any]:
    """An event with all fields that formats.md 3.1 demands.

    Args:
        uid: UUIDv7 made in the workflow.
        sequence: number in the session, from 0.
        time_ms: epoch milliseconds; the mirror `time_iso` is made of it.
        class_name: a key of `CLASSES`.
        identity: `{version, charter: {name, type_id: 1}, instance_uid, ttl_remaining_s?}`.
        product_version: the version that opened the session, whoever writes now.
        status_id: 0 unknown, 1 success, 2 failure.
        severity_id: 1; 4 for a trip or a blocked call; 5 for a quarantine.
        payload: `action` and what formats.md 3.2 has for it.
        metrics: token counts, or empty.
        stop: `(stop_reason_id, stop_reason)`, or None for neither.

    Returns:
        A new dict; the mappings given are shared, not copied deeply. It is not validated.

    Raises:
        KeyError: no such class.
        BadTime: `time_ms` has no mirror.
    """
    event_class = CLASSES[class_name]
    event: dict[str, Any] = {
        "metadata": {
            "version": SCHEMA_VERSION,
            "uid": uid,
            "product": {"name": PRODUCT, "vendor_name": VENDOR, "version": product_version},
            "sequence": sequence,
        },
        "class_name": class_name,
        "class_uid": event_class.value,
        "category_uid": CATEGORY_UID,
        "activity_id": ACTIVITY_ID,
        "type_uid": event_class.type_uid,
        "time": time_ms,
        "time_iso": iso_ms(time_ms),
        "severity_id": severity_id,
        "status_id": status_id,
        "session_uid": session_id,
        "ai_agent": dict(identity),
        "payload": dict(payload),
        "metrics": dict(metrics),
    }
    if stop is not None:
        event["stop_reason_id"], event["stop_reason"] = int(stop[0]), stop[1]
    return event


def read_event(event: Any) -> dict[str, Any]:
    """The event itself, unknown top-level keys included (the chain covers them), if `validate_event` finds no fault.

    Raises:
        InvalidEvent: with every violation.
    """
    if violations := validate_event(event):
        raise InvalidEvent(violations)
    assert isinstance(event, dict)
    return event


def validate_event(event: Any) -> list[Violation]:
    """Everything that is wrong with an event; an empty list means it is one.

    Any JSON value may be given and nothing is raised. Checked are presence, types and ranges, non-empty strings, the
    class formula, the time's mirror, the stop pair, unknown keys below the top level, and that every value down to
    the payload's leaves has a canonical form. A product's name and a payload's keys are not looked at.
    """
    if not isinstance(event, dict):
        return [Violation("", "must be an object")]
    found = [*_object((), event, _EVENT, closed=False), *_class(event), *_mirror(event), *_stop(event)]
    if not _has_form(event):
        places = {violation.path for violation in found}
        found.extend(violation for violation in _canonical(event) if violation.path not in places)
    return found


# A check says what is wrong with a value, or None; an object's fields map to a check or to the fields below.
_Check = Callable[[Any], "str | None"]
_Fields = Mapping[str, Any]


def _between(low: int, high: int) -> _Check:
    def check(value: Any) -> str | None:
        if type(value) is not int:
            return "must be an integer"
        return None if low <= value <= high else f"must be between {low} and {high}"

    return check


def _exactly(expected: int | str) -> _Check:
    def check(value: Any) -> str | None:
        return None if type(value) is type(expected) and value == expected else f"must be {expected}"

    return check


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be a non-empty string"


def _class_name(value: Any) -> str | None:
    return None if isinstance(value, str) and value in CLASSES else "must be the name of a class"


def _session(value: Any) -> str | None:
    try:
        check_session_id(value)
    except BadSessionId as error:
        return str(error)
    return None


def _any_object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


_COUNT: Final = _between(0, MAX_INTEGER)
_OPTIONAL: Final = frozenset({"ttl_remaining_s", "stop_reason_id", "stop_reason"})
_METRICS: Final[_Fields] = {
    "prompt_tokens": _COUNT,
    "completion_tokens": _COUNT,
    "cached_tokens": _COUNT,
    "pruned_tokens": _COUNT,
    "pruning_ratio_millis": _between(0, 1000),
}
_EVENT: Final[_Fields] = {
    "metadata": {
        "version": _exactly(SCHEMA_VERSION),
        "uid": _text,
        "product": {"name": _text, "vendor_name": _text, "version": _text},
        "sequence": _COUNT,
    },
    "class_name": _class_name,
    "class_uid": _between(min(EventClass), max(EventClass)),
    "category_uid": _exactly(CATEGORY_UID),
    "activity_id": _exactly(ACTIVITY_ID),
    "type_uid": _COUNT,
    "time": _between(0, MAX_TIME_MS),
    "time_iso": _text,
    "severity_id": _between(1, 6),
    "status_id": _between(0, 2),
    "session_uid": _session,
    "ai_agent": {
        "version": _text,
        "charter": {"name": _text, "type_id": _exactly(CHARTER_TYPE_ID)},
        "instance_uid": _text,
        "ttl_remaining_s": _COUNT,
    },
    "stop_reason_id": _between(0, 99),
    "stop_reason": _text,
    "payload": _any_object,
    "metrics": _METRICS,
}


def _object(path: tuple[str, ...], value: Any, fields: _Fields, *, closed: bool = True) -> Iterator[Violation]:
    """Violations of one object and of those below it; the recursion is as deep as `_EVENT`.

    A path becomes text only where something is wrong: an auditor reads very many events with which nothing is.
    """
    if not isinstance(value, dict):
        yield Violation(".".join(path), "must be an object")
        return
    for name, check in fields.items():
        if name not in value:
            if name not in _OPTIONAL and fields is not _METRICS:
                yield Violation(".".join((*path, name)), "is missing")
        elif isinstance(check, dict):
            yield from _object((*path, name), value[name], check)
        elif message := check(value[name]):
            yield Violation(".".join((*path, name)), message)
    if closed and not value.keys() <= fields.keys():
        for name in value:
            if name not in fields:
                yield Violation(_join(".".join(path), name), "is not a known field")


def _class(event: dict[str, Any]) -> Iterator[Violation]:
    name, uid, activity = event.get("class_name"), event.get("class_uid"), event.get("activity_id")
    if type(uid) is not int:
        return
    if isinstance(name, str) and name in CLASSES and uid != CLASSES[name]:
        yield Violation("class_uid", f"must be {CLASSES[name].value} for {name}")
    if type(activity) is int and "type_uid" in event and event["type_uid"] != uid * 100 + activity:
        yield Violation("type_uid", "must be class_uid * 100 + activity_id")


def _mirror(event: dict[str, Any]) -> Iterator[Violation]:
    time = event.get("time")
    if type(time) is int and 0 <= time <= MAX_TIME_MS and "time_iso" in event and event["time_iso"] != iso_ms(time):
        yield Violation("time_iso", "must be time as YYYY-MM-DDTHH:MM:SS.mmmZ")


def _stop(event: dict[str, Any]) -> Iterator[Violation]:
    """Both or neither; an unknown id is a later version's reason, but no text may be another reason's caption."""
    has_id, has_text = "stop_reason_id" in event, "stop_reason" in event
    if has_id != has_text:
        yield Violation("stop_reason" if has_id else "stop_reason_id", "stop_reason_id and stop_reason come together")
    reason, text = event.get("stop_reason_id"), event.get("stop_reason")
    if type(reason) is not int or not isinstance(text, str) or not text:
        return
    own = CAPTIONS.get(reason)
    if text != own and text in CAPTIONS.values():
        yield Violation("stop_reason", f"is the caption of another reason than {reason}")
    elif own is not None and reason not in IN_OWN_WORDS and text != own:
        yield Violation("stop_reason", f"must be {own!r} for {reason}")


def _has_form(event: dict[str, Any]) -> bool:
    """Whether `_canonical` finds nothing, without a path built: level by level."""
    level: list[Any] = [event]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for holder in level:
            if isinstance(holder, dict):
                if any(_scalar_fault(name) for name in holder if type(name) is not str or not name.isascii()):
                    return False
                values: Iterable[Any] = holder.values()
            else:
                values = holder
            for value in values:
                if isinstance(value, (dict, list)):
                    below.append(value)
                elif not (type(value) is str and value.isascii()) and _scalar_fault(value):
                    return False
        if not below:
            return True
        level = below
    return False


def _canonical(event: dict[str, Any]) -> Iterator[Violation]:
    """Values without a canonical form, wherever they are: the event could be neither chained nor published."""
    stack: list[tuple[str, int, Any]] = [("", 0, event)]
    while stack:
        path, depth, value = stack.pop()
        if not isinstance(value, (dict, list)):
            if message := _scalar_fault(value):
                yield Violation(path, message)
        elif depth == MAX_DEPTH:
            yield Violation(path, f"nesting over {MAX_DEPTH}")
        elif isinstance(value, dict):
            for name in value:
                if message := _scalar_fault(name):
                    yield Violation(_join(path, name), f"key: {message}")
            stack.extend((_join(path, name), depth + 1, inner) for name, inner in reversed(value.items()))
        else:
            stack.extend((f"{path}.{place}", depth + 1, value[place]) for place in reversed(range(len(value))))


def _scalar_fault(value: Any) -> str | None:
    try:
        check_scalar(value)
    except CanonicalError as error:
        return str(error)
    return None


def _join(path: str, name: object) -> str:
    shown = printable(str(name))
    return f"{path}.{shown}" if path else shown
