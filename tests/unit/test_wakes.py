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
    assert [wakes.take(source(n), f"w{n}") for n in (3, 5, 5, 3, 6)] == [True, True, False, False, True]
    for other in range(127):
        assert wakes.take(source(1, f"other-{other}"), "w1")
    assert not wakes.take(source(6), "w6")
    assert len(wakes.taken) == 128
    later_life = WakeSource(session_id="child", generation="another-life", sequence=0)
    assert wakes.take(later_life, "w6")


def test_p18_a_forged_wake_silences_none_of_the_sender() -> None:
    wakes = Wakes()
    assert wakes.take(source(2**53 - 1), "forged")
    assert [wakes.take(source(n), f"w{n}") for n in (1, 2, 2, 3)] == [True, True, False, True]


def test_p18_of_each_sender_two_rounds_of_delivery_are_remembered() -> None:
    wakes = Wakes()
    for number in range(100):
        assert wakes.take(source(number), f"w{number}")
    assert not any(wakes.take(source(number), f"w{number}") for number in range(68, 100))
    assert [len(known) for known in wakes.taken.values()] == [32]


def test_p18_what_an_earlier_version_handed_on_still_tells_a_repeat() -> None:
    handed_on = '{"target":null,"listed":[],"unlisted":0,"marks":{"%s":5},"undelivered":0}'
    sender = "644198385fbde810"  # the start of SHA-256 of "child#" and the generation
    wakes = Wakes.model_validate_json(handed_on % sender)
    assert [wakes.take(source(n), f"w{n}") for n in (5, 6, 6)] == [False, True, False]


def test_p18_what_is_kept_of_wakes_is_under_40_kb() -> None:
    wakes = Wakes(target="t" * 256)
    for number in range(1_000):
        sender = f"{number:\\>128}"
        for each in range(40):
            wakes.take(source(2**53 - 1, sender), f"{number}-{each}")
        wakes.came(number, step(number, "\x01" * 60, sender))
    assert (len(wakes.listed), wakes.unlisted) == (64, 936)
    assert sum(map(len, wakes.taken.values())) == 512
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
