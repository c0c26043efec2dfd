"""P18 without Temporal: what a session keeps of wakes is bounded, and takes each once."""

from __future__ import annotations

import json
from typing import Any

from affidavit.activity_api import Entry
from affidavit.steps import WakeSource
from workflows.wakes import Outbox, Wakes

GENERATION = "0198a7c0-0000-7000-8000-00000000000a"


def source(sequence: int, session_id: str = "child") -> WakeSource:
    return WakeSource(session_id=session_id, generation=GENERATION, sequence=sequence)


def step(sequence: int, input: Any, session_id: str = "child") -> dict[str, Any]:
    return {
        "kind": "wake",
        "input": input,
        "wake_id": f"0198a7c0-0000-7000-8000-{sequence:012d}",
        "source": source(sequence, session_id).model_dump(),
    }


def entry(sequence: int, **payload: Any) -> Entry:
    payload = {"wake_id": f"w{sequence}", **payload}
    return Entry(
        action="wake",
        sequence=sequence,
        uid="u",
        time=sequence,
        class_name="agent.session",
        status_id=1,
        severity_id=1,
        payload=payload,
    )


def test_p18_a_wake_is_taken_once_whoever_else_wakes_in_between() -> None:
    wakes = Wakes()
    assert [wakes.take(source(n)) for n in (3, 5, 5, 3, 6)] == [True, True, False, False, True]
    for other in range(127):
        assert wakes.take(source(1, f"other-{other}"))
    assert not wakes.take(source(6))
    assert len(wakes.marks) == 128
    later_life = WakeSource(session_id="child", generation="another-life", sequence=0)
    assert wakes.take(later_life)


def test_p18_what_is_kept_of_wakes_is_under_40_kb() -> None:
    wakes = Wakes(target="t" * 256)
    for number in range(1_000):
        sender = f"{number:\\>128}"
        wakes.take(source(2**53 - 1, sender))
        wakes.came(number, step(number, "\x01" * 60, sender))
    assert (len(wakes.listed), wakes.unlisted, len(wakes.marks)) == (64, 936, 128)
    assert len(wakes.model_dump_json()) < 40_000
    assert [note.input_omitted for note in wakes.listed][:2] == [False, False]
    assert wakes.listed[-1].input_omitted


def test_p18_acknowledged_wakes_are_gone_and_a_repeat_changes_nothing() -> None:
    wakes = Wakes()
    for number in (2, 4, 7):
        wakes.came(number, step(number, {"n": number}))
    assert [note.sequence for note in wakes.after(-1).wakes] == [2, 4, 7]
    assert [(note.sequence, note.input) for note in wakes.after(4).wakes] == [(7, {"n": 7})]
    for _ in range(2):
        wakes.acknowledge(4)
        assert [note.sequence for note in wakes.after(-1).wakes] == [7]
    wakes.acknowledge(2)
    assert [note.sequence for note in wakes.after(-1).wakes] == [7]


def test_p18_a_large_input_is_named_and_left_in_its_capture() -> None:
    wakes = Wakes()
    wakes.came(1, step(1, "x" * 5_000))
    wakes.came(2, step(2, None))
    large, small = wakes.after(-1).wakes
    assert (large.input, large.input_omitted, small.input, small.input_omitted) == (None, True, None, False)


def test_p18_an_input_that_no_other_json_holds_can_be_handed_on() -> None:
    """Half a surrogate pair, no number, deep nesting: another client may have sent it."""
    wakes = Wakes()
    wakes.came(1, step(1, ["\ud800", float("nan"), 10**30]))
    wakes.came(2, step(2, json.loads("[" * 500 + "]" * 500)))
    again = Wakes.model_validate_json(wakes.model_dump_json())
    assert again.listed[0].input[0] == "\ud800"
    assert again.listed[0].input[2] == 10**30
    assert again == wakes


def test_p18_a_wake_without_a_target_goes_nowhere_and_a_full_outbox_says_so() -> None:
    outbox = Outbox([])
    outbox.put(entry(1), "{}")
    assert (outbox.wakes, outbox.has_room) == ([], True)
    for number in range(64):
        outbox.put(entry(number, target="t"), "{}")
    assert not outbox.has_room
    outbox.settle({"w3"})
    assert outbox.has_room
    outbox.put(entry(99, target="t"), "x" * 256 * 1024)
    assert not outbox.has_room
