"""What OpenAI's APIs say, in the form of a session's steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from affidavit.integrations.openai_shapes import (
    ChatStream,
    ResponsesStream,
    chat_answer,
    chat_messages,
    responses_answer,
    responses_messages,
)
from affidavit.steps import Message


def checked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for message in messages:
        Message.model_validate(message)
    return messages


def test_chat_messages_of_every_role() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}
    sent = [
        {"role": "developer", "content": "be brief", "name": "ops"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}]},
        {"role": "function", "name": "old", "content": "1"},
    ]
    assert checked(chat_messages(sent)) == [
        {"role": "developer", "content": "be brief", "name": "ops"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"call_id": "c1", "name": "look", "arguments": '{"q":1}'}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "seen"}], "tool_call_id": "c1"},
        {"role": "tool", "content": "1", "name": "old"},
    ]


def test_a_refusal_is_the_text_and_other_choices_are_kept() -> None:
    other = {"index": 1, "message": {"content": "b"}, "finish_reason": "stop"}
    first = {"index": 0, "message": {"content": None, "refusal": "no"}, "finish_reason": "content_filter"}
    answer = chat_answer({"choices": [first, other], "model": "m"})
    assert (answer["text"], answer["finish_reason"], answer["usage"]) == ("no", "content_filter", None)
    assert answer["extra"] == {"choices": [other]}


def test_a_streamed_answer_without_an_end_is_none() -> None:
    stream = ChatStream()
    stream.add({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]})
    stream.add({"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]})
    assert (stream.answer(), stream.text) == (None, ["a"])
    stream.add({"choices": [{"index": 0, "delta": {"reasoning_content": "r"}, "finish_reason": "length"}]})
    answer = stream.answer()
    assert answer is not None
    assert (answer["text"], answer["reasoning"], answer["finish_reason"]) == ("a", "r", "length")


def test_the_items_of_one_answer_become_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "see"}]},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "think"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
    ]
    calls = [{"call_id": call_id, "name": "look", "arguments": "{}"} for call_id in ("c1", "c2")]
    assert checked(responses_messages("be brief", items)) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "see"}]},
        {"role": "assistant", "content": "I look", "tool_calls": calls, "reasoning": "think"},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": '[{"type": "input_text", "text": "2"}]', "tool_call_id": "c2"},
    ]
    assert responses_messages(None, "hi") == [{"role": "user", "content": "hi"}]


def test_a_response_that_was_cut_and_one_with_a_tool_of_the_providers() -> None:
    search = {"type": "web_search_call", "id": "w1", "status": "completed"}
    cut = responses_answer(
        {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [search],
            "model": "m",
        }
    )
    assert cut["finish_reason"] == "length"
    assert cut["tool_calls"] == [{"call_id": "w1", "name": "web_search_call", "arguments": {"status": "completed"}}]
    failed = ResponsesStream()
    failed.add(SimpleNamespace(type="response.failed", response={"status": "failed"}))
    assert failed.answer() is None
