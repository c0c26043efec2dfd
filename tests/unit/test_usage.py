"""Usage and stop reasons of the common providers; the shapes are those of their documentation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from affidavit.evidence.stops import from_provider
from affidavit.finish import finish_word
from affidavit.usage import anthropic_usage, gemini_usage, langchain_usage, openai_responses_usage, openai_usage


def test_openai_chat() -> None:
    usage = {
        "prompt_tokens": 1117,
        "completion_tokens": 46,
        "total_tokens": 1163,
        "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    }
    assert openai_usage(usage) == {"prompt_tokens": 1117, "completion_tokens": 46, "cached_tokens": 1024}
    assert openai_usage({"prompt_tokens": 5, "cost": 0.00014}) == {"prompt_tokens": 5, "cost_usd": 0.00014}


def test_openai_responses() -> None:
    usage = {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 87}
    assert openai_responses_usage(usage) == {"prompt_tokens": 36, "completion_tokens": 87, "cached_tokens": 8}


def test_anthropic_counts_the_cache_apart() -> None:
    usage = {
        "input_tokens": 50,
        "cache_read_input_tokens": 100_000,
        "cache_creation_input_tokens": 248,
        "output_tokens": 503,
    }
    assert anthropic_usage(usage) == {"prompt_tokens": 100_298, "completion_tokens": 503, "cached_tokens": 100_000}
    assert anthropic_usage({"output_tokens": 1}) == {"completion_tokens": 1}


@pytest.mark.parametrize("object_", [False, True])
def test_gemini_counts_thoughts_and_tool_prompts_apart(object_: bool) -> None:
    usage: Any = {
        "prompt_token_count": 20,
        "tool_use_prompt_token_count": 5,
        "candidates_token_count": 7,
        "thoughts_token_count": 30,
        "cached_content_token_count": 4,
        "total_token_count": 62,
    }
    given = SimpleNamespace(**usage) if object_ else usage
    assert gemini_usage(given) == {"prompt_tokens": 25, "completion_tokens": 37, "cached_tokens": 4}
    assert gemini_usage({"promptTokenCount": 3, "candidatesTokenCount": 2}) == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
    }


def test_langchain() -> None:
    usage = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11, "input_token_details": {"cache_read": 3}}
    assert langchain_usage(usage) == {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 3}


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -1}, {"prompt_tokens": 1.5}, {"prompt_tokens": True}])
def test_what_is_not_said_stays_away(usage: Any) -> None:
    assert openai_usage(usage) is None


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -0.1, "1"])
def test_a_cost_that_is_none_stays_away(cost: Any) -> None:
    assert openai_usage({"cost": cost}) is None


@pytest.mark.parametrize(
    ("word", "calls", "reason_id", "text"),
    [
        ("stop", False, 1, "stop"),
        ("stop", True, 3, "tool_calls"),
        ("end_turn", False, 1, "end_turn"),
        ("tool_use", True, 3, "tool_use"),
        ("length", False, 2, "length"),
        ("completed", False, 1, "stop"),
        ("completed", True, 3, "tool_calls"),
        ("max_output_tokens", False, 2, "length"),
        ("STOP", False, 1, "stop"),
        ("MAX_TOKENS", False, 2, "max_tokens"),
        ("SAFETY", False, 90, "content_filter"),
        ("refusal", False, 90, "content_filter"),
        ("pause_turn", False, 99, "pause_turn"),
    ],
)
def test_stop_reasons_are_mapped(word: str, calls: bool, reason_id: int, text: str) -> None:
    reported = finish_word(word, calls=calls)
    assert reported is not None
    assert from_provider(reported) == (reason_id, text)


def test_no_word_is_no_reason() -> None:
    assert finish_word(None, calls=True) is None
