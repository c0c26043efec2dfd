"""The cursor: of a list that grows, each message once."""

from __future__ import annotations

from typing import Any

from affidavit.cursor import MessageCursor, context_sha256


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, *call_ids: str) -> dict[str, Any]:
    calls = [{"call_id": call_id, "name": "look", "arguments": {}} for call_id in call_ids]
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


SYSTEM = {"role": "system", "content": "be brief"}


def test_only_what_a_list_adds_is_taken() -> None:
    cursor = MessageCursor()
    first, thread = cursor.take([SYSTEM, user("a")])
    assert first == [SYSTEM, user("a")]
    cursor.answered(thread, "yes", [{"call_id": "c1"}])
    second, _ = cursor.take([SYSTEM, user("a"), said("yes", "c1"), result("c1", "seen")])
    assert second == [result("c1", "seen")]
    third, _ = cursor.take([SYSTEM, user("a"), said("yes", "c1"), result("c1", "seen"), user("a")])
    assert third == [user("a")]  # said again, and so news


def test_an_echo_is_known_by_its_calls_or_else_by_its_text() -> None:
    cursor = MessageCursor()
    _, thread = cursor.take([user("a")])
    cursor.answered(thread, "yes ", [])
    assert cursor.take([user("a"), {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}])[0] == []


def test_an_answer_that_nobody_has_reported_is_history() -> None:
    taken, _ = MessageCursor().take([user("a"), said("yes"), user("b")])
    assert taken == [user("a"), said("yes") | {"copied": True}, user("b")]


def test_what_a_shortened_list_sends_again_is_marked() -> None:
    cursor = MessageCursor()
    cursor.take([SYSTEM, user("a"), user("b"), user("c")])
    taken, _ = cursor.take([SYSTEM, user("a and b, in short"), user("c"), user("d")])
    assert taken == [user("a and b, in short"), user("c") | {"copied": True}, user("d")]
    assert cursor.take([SYSTEM, user("a and b, in short"), user("c"), user("d"), user("e")])[0] == [user("e")]


def test_conversations_that_share_a_beginning_are_kept_apart() -> None:
    cursor = MessageCursor()
    _, one = cursor.take([SYSTEM, user("a")])
    other_taken, other = cursor.take([SYSTEM, user("b")])
    assert other_taken == [user("b")]
    assert one != other
    assert cursor.take([SYSTEM, user("a"), user("a2")]) == ([user("a2")], one)
    assert cursor.take([SYSTEM, user("b"), user("b2")]) == ([user("b2")], other)


def test_the_quietest_of_too_many_conversations_is_forgotten() -> None:
    cursor = MessageCursor()
    for number in range(65):
        cursor.take([user(f"{number}")])
    assert cursor.take([user("64"), user("x")])[0] == [user("x")]
    assert cursor.take([user("0"), user("x")])[0] == [user("0"), user("x")]


def test_tools_are_news_when_they_change() -> None:
    cursor = MessageCursor()
    assert cursor.new_tools(None) is None
    assert cursor.new_tools([{"name": "look"}]) == [{"name": "look"}]
    assert cursor.new_tools([{"name": "look"}]) is None
    assert cursor.new_tools([{"name": "find"}]) == [{"name": "find"}]


def test_a_context_is_digested_as_canonical_json() -> None:
    # printf '%s' '[{"content":"a","role":"user"}]' | sha256sum
    assert context_sha256([user("a")]) == "5168bd634e48454dad7ce9e90c521bba8b23340bd1b1b4f735486e46964a996a"
    assert context_sha256([{"n": 2**60}]) is None
