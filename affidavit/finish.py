"""Why a model stopped, in the words that a session maps to stop reasons (formats.md 3.1; pure).

A session knows the words of the common chat APIs. Other APIs say the same with others; they are translated here, so
that a receipt tells `Length` and not `Other`. What nobody knows goes through as it is and reads as `Other`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_TRANSLATED: Final[Mapping[str, str]] = MappingProxyType(
    {
        # OpenAI responses: `status`, and `incomplete_details.reason`
        "completed": "stop",
        "max_output_tokens": "length",
        # Anthropic messages
        "refusal": "content_filter",
        "model_context_window_exceeded": "length",
        # Gemini, in capitals
        "safety": "content_filter",
        "recitation": "content_filter",
        "blocklist": "content_filter",
        "prohibited_content": "content_filter",
        "spii": "content_filter",
        "image_safety": "content_filter",
        # OpenTelemetry's semantic conventions
        "tool_call": "tool_calls",
    }
)
_KNOWN: Final = frozenset(
    {
        "stop",
        "stop_sequence",
        "end_turn",
        "length",
        "max_tokens",
        "tool_calls",
        "function_call",
        "tool_use",
        "content_filter",
    }
)


def finish_word(word: str | None, *, calls: bool = False) -> str | None:
    """The word to report as `finish_reason`.

    Args:
        word: the provider's own; None where it gave none, in a stream that was cut off say.
        calls: the answer holds tool calls. Gemini and the responses API then still say that they simply stopped.
    """
    if not word:
        return None
    lower = word.lower()
    found = lower if lower in _KNOWN else _TRANSLATED.get(lower, word)
    return "tool_calls" if calls and found == "stop" else found
