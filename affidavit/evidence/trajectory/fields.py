"""The fields of ATIF, object by object: what each may hold, and since which version (formats.md 7).

Source of the facts: the Agent Trajectory Interchange Format, Harbor RFC 0001, v1.0 to v1.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from affidavit.evidence.text import printable

VERSIONS: Final[Mapping[str, int]] = {f"ATIF-v1.{minor}": minor for minor in range(9)}
"""Every version that is read, with its minor number."""
LATEST: Final = 8
WRITTEN: Final = 7
SCHEMA_VERSION: Final = f"ATIF-v1.{WRITTEN}"
"""What an export says of itself."""

AGENT_ONLY: Final = ("reasoning_content", "reasoning_effort", "model_name", "tool_calls", "metrics")
"""Step fields that only an agent step has."""
SYSTEM_OBSERVATION: Final = 2
CONTENT_PARTS: Final = 6
AUDIO: Final = 8
SESSION_OPTIONAL: Final = 7
"""From here on a session id may be absent, on the root and on a reference, and references name a document instead."""

ALWAYS: Final = LATEST + 1

Check = Callable[[Any], "str | None"]
"""What is wrong with a value, or None."""


class Field(NamedTuple):
    """A field: the check of its value, the minor version that brought it, and the one before which it is required."""

    check: Check
    since: int = 0
    required_until: int = 0


def text(value: Any) -> str | None:
    """Any string."""
    return None if isinstance(value, str) else "must be a string"


def non_empty(value: Any) -> str | None:
    """A string of at least one character."""
    return None if isinstance(value, str) and value else "must be a non-empty string"


def an_object(value: Any) -> str | None:
    """An object; its members are looked at elsewhere, if at all."""
    return None if isinstance(value, dict) else "must be an object"


def a_list(value: Any) -> str | None:
    """A list; its items are looked at elsewhere, if at all."""
    return None if isinstance(value, list) else "must be a list"


def flag(value: Any) -> str | None:
    """A boolean."""
    return None if isinstance(value, bool) else "must be true or false"


def integer(value: Any) -> str | None:
    """An integer; `true` is none."""
    return None if type(value) is int else "must be an integer"


def count(value: Any) -> str | None:
    """A number of something: an integer, not negative."""
    return integer(value) or (None if value >= 0 else "must not be negative")


def number(value: Any) -> str | None:
    """A finite number."""
    finite = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    return None if finite else "must be a finite number"


def duration(value: Any) -> str | None:
    """Seconds, not negative."""
    return number(value) or (None if value >= 0 else "must not be negative")


def effort(value: Any) -> str | None:
    """A word or a score."""
    return None if isinstance(value, str) or number(value) is None else "must be a string or a finite number"


def list_of(check: Check, what: str) -> Check:
    """A list whose every item passes `check`."""

    def check_list(value: Any) -> str | None:
        good = isinstance(value, list) and all(check(item) is None for item in value)
        return None if good else f"must be a list of {what}"

    return check_list


def one_of(words: Mapping[str, Any] | tuple[str, ...]) -> Check:
    """One of a few words."""

    def check_word(value: Any) -> str | None:
        if isinstance(value, str) and value in words:
            return None
        shown = f", got {printable(value)!r}" if isinstance(value, str) else ""
        return f"must be one of {', '.join(words)}{shown}"

    return check_word


_TIME: Final = re.compile(r"[0-9W-]+(T[0-9:.,]+(Z|[+-][0-9:]+)?)?")


def timestamp(value: Any) -> str | None:
    """A time that exists, in ISO 8601."""
    # `fromisoformat` alone would take any character between date and time.
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return None
    return "must be an ISO 8601 time"


def text_or_parts(value: Any) -> str | None:
    """A string, or a list whose items are looked at as content parts."""
    return None if isinstance(value, str | list) else "must be a string or a list of content parts"


IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
AUDIO_TYPES: Final = (
    *("audio/wav", "audio/mpeg", "audio/mp4", "audio/aac", "audio/ogg", "audio/flac", "audio/webm", "audio/aiff"),
    # Aliases that readers know.
    *("audio/mp3", "audio/mpga", "audio/x-mpeg", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/x-m4a"),
    *("audio/m4a", "audio/x-aac", "audio/x-flac", "audio/x-aiff"),
)

Fields = Mapping[str, Field]

TRAJECTORY: Final[Fields] = {
    "schema_version": Field(one_of(VERSIONS), required_until=ALWAYS),
    "session_id": Field(text, required_until=SESSION_OPTIONAL),
    "trajectory_id": Field(text, since=7),
    "agent": Field(an_object, required_until=ALWAYS),
    "steps": Field(a_list, required_until=ALWAYS),
    "notes": Field(text),
    "final_metrics": Field(an_object),
    "continued_trajectory_ref": Field(text),
    "extra": Field(an_object, since=1),
    "subagent_trajectories": Field(a_list, since=7),
}
AGENT: Final[Fields] = {
    "name": Field(non_empty, required_until=ALWAYS),
    "version": Field(non_empty, required_until=ALWAYS),
    "model_name": Field(text),
    "tool_definitions": Field(list_of(an_object, "objects"), since=5),
    "extra": Field(an_object),
}
STEP: Final[Fields] = {
    "step_id": Field(integer, required_until=ALWAYS),
    "timestamp": Field(timestamp),
    "source": Field(one_of(("system", "user", "agent")), required_until=ALWAYS),
    "model_name": Field(text),
    "reasoning_effort": Field(effort),
    "message": Field(text_or_parts, required_until=ALWAYS),
    "reasoning_content": Field(text),
    "tool_calls": Field(a_list),
    "observation": Field(an_object),
    "metrics": Field(an_object),
    "extra": Field(an_object),
    "llm_call_count": Field(count, since=7),
    "is_copied_context": Field(flag),
}
TOOL_CALL: Final[Fields] = {
    "tool_call_id": Field(text, required_until=ALWAYS),
    "function_name": Field(text, required_until=ALWAYS),
    "arguments": Field(an_object, required_until=ALWAYS),
    "extra": Field(an_object, since=7),
}
OBSERVATION: Final[Fields] = {"results": Field(a_list, required_until=ALWAYS)}
RESULT: Final[Fields] = {
    "source_call_id": Field(text),
    "content": Field(text_or_parts),
    "subagent_trajectory_ref": Field(a_list),
    "extra": Field(an_object, since=7),
}
REFERENCE: Final[Fields] = {
    "trajectory_id": Field(text, since=7),
    "trajectory_path": Field(text),
    "session_id": Field(text, required_until=SESSION_OPTIONAL),
    "extra": Field(an_object),
}
METRICS: Final[Fields] = {
    "prompt_tokens": Field(count),
    "completion_tokens": Field(count),
    "cached_tokens": Field(count),
    "cost_usd": Field(number),
    "prompt_token_ids": Field(list_of(integer, "integers"), since=4),
    "completion_token_ids": Field(list_of(integer, "integers"), since=3),
    "logprobs": Field(list_of(number, "finite numbers")),
    "extra": Field(an_object),
}
FINAL_METRICS: Final[Fields] = {
    "total_prompt_tokens": Field(count),
    "total_completion_tokens": Field(count),
    "total_cached_tokens": Field(count),
    "total_cost_usd": Field(number),
    "total_steps": Field(count),
    "extra": Field(an_object),
}
PART: Final[Fields] = {
    "type": Field(one_of(("text", "image", "audio")), required_until=ALWAYS),
    "text": Field(text),
    "source": Field(an_object),
}
IMAGE_SOURCE: Final[Fields] = {
    "media_type": Field(one_of(IMAGE_TYPES), required_until=ALWAYS),
    "path": Field(text, required_until=ALWAYS),
}
AUDIO_SOURCE: Final[Fields] = {
    "media_type": Field(one_of(AUDIO_TYPES), required_until=ALWAYS),
    "path": Field(text, required_until=ALWAYS),
    "duration_sec": Field(duration),
}
