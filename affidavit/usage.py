"""Token usage and cost of a model call, from the shapes in which providers give them (pure).

Each function takes a provider's usage, as an object of its SDK or as the JSON it was made from, and gives the `usage`
of a `model_response` step. What a provider did not say stays away: an absent count is estimated by the session and
marked so, a 0 would be a claim. Prompt tokens include the cached ones, whoever counts them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Usage = dict[str, Any]

MAX_COUNT: Final = 2**53 - 1


def openai_usage(usage: Any) -> Usage | None:
    """Of the chat completions API: `prompt_tokens`, `completion_tokens`, `prompt_tokens_details.cached_tokens`.

    A `cost` in US dollars, which routers in front of several providers add, is taken along.
    """
    return _usage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_count(_of(usage, "prompt_tokens_details"), "cached_tokens"),
        cost_usd=_cost(usage),
    )


def openai_responses_usage(usage: Any) -> Usage | None:
    """Of the responses API: `input_tokens`, `output_tokens`, `input_tokens_details.cached_tokens`."""
    return _usage(
        prompt_tokens=_count(usage, "input_tokens"),
        completion_tokens=_count(usage, "output_tokens"),
        cached_tokens=_count(_of(usage, "input_tokens_details"), "cached_tokens"),
        cost_usd=_cost(usage),
    )


def anthropic_usage(usage: Any) -> Usage | None:
    """Of the messages API, where `input_tokens` leaves out what was read from or written to the cache."""
    uncached = _count(usage, "input_tokens")
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    return _usage(
        prompt_tokens=None if uncached is None else uncached + (read or 0) + (written or 0),
        completion_tokens=_count(usage, "output_tokens"),
        cached_tokens=read,
    )


def gemini_usage(usage: Any) -> Usage | None:
    """Of `usage_metadata` (or `usageMetadata`): prompt and tool prompts; candidates and thoughts; cached content."""
    answered = _count(usage, "candidates_token_count", "candidatesTokenCount")
    thought = _count(usage, "thoughts_token_count", "thoughtsTokenCount")
    asked = _count(usage, "prompt_token_count", "promptTokenCount")
    tools = _count(usage, "tool_use_prompt_token_count", "toolUsePromptTokenCount")
    return _usage(
        prompt_tokens=_sum(asked, tools),
        completion_tokens=_sum(answered, thought),
        cached_tokens=_count(usage, "cached_content_token_count", "cachedContentTokenCount"),
    )


def langchain_usage(usage: Any) -> Usage | None:
    """Of LangChain's `usage_metadata`: `input_tokens`, `output_tokens`, `input_token_details.cache_read`."""
    return _usage(
        prompt_tokens=_count(usage, "input_tokens"),
        completion_tokens=_count(usage, "output_tokens"),
        cached_tokens=_count(_of(usage, "input_token_details"), "cache_read"),
    )


def _usage(**found: Any) -> Usage | None:
    return {name: value for name, value in found.items() if value is not None} or None


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None and second is None else (first or 0) + (second or 0)


def _count(usage: Any, *names: str) -> int | None:
    """The first of these that is a count a session takes; a provider's -1 or 1.5 is none."""
    for name in names:
        value = _of(usage, name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
            return value
    return None


def _cost(usage: Any) -> float | None:
    value = _of(usage, "cost")
    # Not infinite, not NaN, and no more than a session can count in micro-dollars.
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else None


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
