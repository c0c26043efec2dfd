"""Why a response, a step or a session stopped: ids, captions, the providers' words (formats.md 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class StopReason(IntEnum):
    """`stop_reason_id` of an event and a receipt."""

    UNKNOWN = 0
    STOP = 1
    LENGTH = 2
    TOOL_USE = 3
    SESSION_CLOSED = 4
    CONTENT_FILTER = 90
    LOOP_DETECTED = 91
    BUDGET_EXCEEDED = 92
    POLICY_BLOCKED = 93
    IDENTITY_REJECTED = 94
    OTHER = 99


CAPTIONS: Final[Mapping[int, str]] = MappingProxyType(
    {reason.value: reason.name.replace("_", " ").title() for reason in StopReason}
)
"""The caption of each id, such as `Tool Use`: what a receipt says, and an event where no provider spoke."""

IN_OWN_WORDS: Final[frozenset[int]] = frozenset({1, 2, 3, 90, 99})
"""The reasons a provider can give: an event records its word. The others are ours and carry the caption."""

_WORDS: Final[Mapping[str, StopReason]] = MappingProxyType(
    {
        "stop": StopReason.STOP,
        "stop_sequence": StopReason.STOP,
        "end_turn": StopReason.STOP,
        "length": StopReason.LENGTH,
        "max_tokens": StopReason.LENGTH,
        "tool_calls": StopReason.TOOL_USE,
        "function_call": StopReason.TOOL_USE,
        "tool_use": StopReason.TOOL_USE,
        "content_filter": StopReason.CONTENT_FILTER,
    }
)
_IDS: Final[Mapping[str, StopReason]] = MappingProxyType({CAPTIONS[reason]: reason for reason in StopReason})


def from_provider(word: str) -> tuple[StopReason, str]:
    """What to record for a provider's finish reason.

    Args:
        word: the reason in the provider's own spelling, such as `end_turn`.

    Returns:
        The id and the text beside it: the word itself. A word nobody knows is `OTHER`. One that reads like a
        caption means that reason if a provider can give it; if not (`Loop Detected`, or an empty word), it is
        `OTHER` with `OTHER`'s caption, because a runtime cannot claim what only the product establishes.
    """
    reason = _WORDS.get(word) or from_caption(word)
    if word and reason in IN_OWN_WORDS:
        return reason, word
    return StopReason.OTHER, CAPTIONS[StopReason.OTHER]


def from_caption(name: str) -> StopReason:
    """The reason with that caption; an unknown name reads as `OTHER`."""
    return _IDS.get(name, StopReason.OTHER)


def caption(reason_id: int) -> str:
    """The caption of an id; an unknown id reads as `Unknown`."""
    return CAPTIONS.get(reason_id, CAPTIONS[StopReason.UNKNOWN])
