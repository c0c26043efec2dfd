"""GenAI spans in the form of a session's steps."""

from __future__ import annotations

import json

from affidavit.integrations.otel import span_answer, span_messages

CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"q": 1}}


def test_messages_are_read_from_json_text_or_objects() -> None:
    instructions = [{"type": "text", "content": "be brief"}]
    sent = [
        {"role": "user", "parts": [{"type": "text", "content": "look"}]},
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, CALL]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"seen": 1}}]},
    ]
    expected = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"call_id": "c1", "name": "look", "arguments": {"q": 1}}],
            "reasoning": "hm",
        },
        {"role": "tool", "content": '{"seen": 1}', "tool_call_id": "c1"},
    ]
    assert span_messages(json.dumps(instructions), json.dumps(sent)) == expected
    assert span_messages(instructions, sent) == expected
    assert span_messages(None, "not JSON") == []


def test_an_answer_takes_what_the_span_tells() -> None:
    output = [{"role": "assistant", "parts": [{"type": "text", "content": "ok"}, CALL], "finish_reason": "tool_call"}]
    about = {
        "gen_ai.output.messages": json.dumps(output),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.response.model": "m",
    }
    assert span_answer(about) == {
        "text": "ok",
        "tool_calls": [{"call_id": "c1", "name": "look", "arguments": {"q": 1}}],
        "reasoning": None,
        "finish_reason": "tool_calls",
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 3},
        "model": "m",
    }


def test_without_content_the_counts_are_an_answer_and_nothing_is_none() -> None:
    counted = span_answer({"gen_ai.usage.output_tokens": 2, "gen_ai.response.finish_reasons": ("length",)})
    assert counted is not None
    assert (counted["text"], counted["finish_reason"], counted["usage"]) == (None, "length", {"completion_tokens": 2})
    assert span_answer({"gen_ai.operation.name": "chat"}) is None
