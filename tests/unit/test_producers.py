"""B7 as functions: what each producer has sent, by its own numbers."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.producers import Arrival, Producers, Unacceptable, body_digest

T = 1_786_320_000_000
NEW, LATE, REPEAT = Arrival.NEW, Arrival.LATE, Arrival.REPEAT
UNVERIFIED, CONFLICT = Arrival.UNVERIFIED, Arrival.CONFLICT


def body(number: int, **more: Any) -> str:
    return body_digest({"kind": "tool_call", "call_id": f"c{number}", **more})


def sent(*numbers: int) -> Producers:
    """Producer `p` after it has sent these numbers."""
    producers = Producers()
    for number in numbers:
        producers.arrive("p", number, body(number), T)
    return producers


def gaps(producers: Producers) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in producers.known["p"].gaps]


def again(producers: Producers) -> Producers:
    """As the next run has it."""
    return Producers.model_validate_json(producers.model_dump_json())


# -- what a number is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "number", "arrival", "missing"),
    [
        ((), 0, NEW, []),
        ((), 9_007_199_254_740_991, NEW, []),
        ((1,), 2, NEW, []),
        ((1,), 4, NEW, [(2, 3)]),
        ((1, 4), 2, LATE, [(3, 3)]),
        ((1, 4), 3, LATE, [(2, 2)]),
        ((1, 5), 3, LATE, [(2, 2), (4, 4)]),
        ((1, 3), 2, LATE, []),
        ((1, 2, 3), 2, REPEAT, []),
        ((1, 3, 2), 2, REPEAT, []),
        # below the first number nothing was missed, but a late one is taken
        ((7,), 6, LATE, []),
        ((7,), 3, LATE, [(4, 6)]),
        ((7, 3), 5, LATE, [(4, 4), (6, 6)]),
        ((7, 3), 3, REPEAT, []),
    ],
)
def test_b7_a_number_is_new_late_or_a_repeat(
    before: tuple[int, ...], number: int, arrival: Arrival, missing: list[tuple[int, int]]
) -> None:
    producers = sent(*before)
    assert producers.arrive("p", number, body(number), T) is arrival
    if arrival is not REPEAT:
        assert gaps(producers) == missing
        assert producers.arrive("p", number, body(number), T) is REPEAT


def test_b7_the_same_number_with_another_body_is_a_conflict_and_the_first_one_stands() -> None:
    producers = sent(1, 2)
    for _ in range(2):
        assert producers.arrive("p", 1, body(1, tool="another"), T) is CONFLICT
    assert producers.arrive("p", 1, body(1), T) is REPEAT


def test_b7_two_equal_steps_with_different_numbers_are_two_steps() -> None:
    producers = sent(1)
    assert producers.arrive("p", 2, body(1), T) is NEW


def test_b7_a_repeat_whose_digest_is_no_longer_held_is_unverified() -> None:
    producers = sent(*range(1, 66))
    # The last 64 numbers are 2 to 65.
    assert producers.arrive("p", 1, body(1, tool="another"), T) is UNVERIFIED
    assert producers.arrive("p", 1, body(1), T) is UNVERIFIED
    assert producers.arrive("p", 2, body(2), T) is REPEAT
    assert producers.arrive("p", 2, body(2, tool="another"), T) is CONFLICT


def test_b7_of_a_late_number_below_the_last_64_no_digest_is_held() -> None:
    producers = sent(1, *range(3, 68))
    assert producers.arrive("p", 2, body(2), T) is LATE
    assert producers.arrive("p", 2, body(2), T) is UNVERIFIED
    # It has not pushed another one out.
    assert producers.arrive("p", 4, body(4, tool="another"), T) is CONFLICT


def test_b7_producers_do_not_meet() -> None:
    producers = sent(1, 2, 3)
    assert producers.arrive("q", 2, body(9), T) is NEW
    assert producers.arrive("q", 1, body(1), T) is LATE
    assert producers.arrive("p", 1, body(1), T) is REPEAT


# -- the limits -----------------------------------------------------------------------------------------


def test_b7_a_65th_producer_is_not_accepted_and_the_64_go_on() -> None:
    producers = Producers()
    for number in range(64):
        assert producers.arrive(f"p{number}", 1, body(1), T) is NEW
    before = producers.model_dump_json()
    with pytest.raises(Unacceptable, match=r"^more than 64 producers$"):
        producers.arrive("p64", 1, body(1), T)
    assert producers.model_dump_json() == before
    assert producers.arrive("p63", 2, body(2), T) is NEW


@pytest.mark.parametrize(("first", "number"), [(1, 10_002), (20_000, 9_999)], ids=["up", "down"])
def test_b7_a_jump_over_10_000_numbers_is_not_accepted(first: int, number: int) -> None:
    producers = sent(first)
    beyond = number + (1 if number > first else -1)
    before = producers.model_dump_json()
    with pytest.raises(Unacceptable, match=r"^a jump over 10000 numbers$"):
        producers.arrive("p", beyond, body(beyond), T)
    assert producers.model_dump_json() == before
    assert producers.arrive("p", number, body(number), T) is (NEW if number > first else LATE)
    ((missing_from, missing_to),) = gaps(producers)
    assert missing_to - missing_from + 1 == 10_000


def test_b7_a_33rd_missing_range_is_not_accepted_until_one_is_closed() -> None:
    producers = sent(*range(3, 68, 2))
    assert gaps(producers) == [(number, number) for number in range(4, 67, 2)]
    assert len(gaps(producers)) == 32
    before = producers.model_dump_json()
    for number in (69, 1):  # upward, and below the first one
        with pytest.raises(Unacceptable, match=r"^more than 32 gaps$"):
            producers.arrive("p", number, body(number), T)
    assert producers.model_dump_json() == before
    assert producers.arrive("p", 68, body(68), T) is NEW
    assert producers.arrive("p", 4, body(4), T) is LATE
    assert producers.arrive("p", 70, body(70), T) is NEW
    assert len(gaps(producers)) == 32


def test_b7_a_late_number_that_would_split_the_32nd_range_is_not_accepted() -> None:
    producers = sent(*range(1, 63, 2), 66, 70)
    assert len(gaps(producers)) == 32
    assert gaps(producers)[-1] == (67, 69)
    before = producers.model_dump_json()
    with pytest.raises(Unacceptable, match=r"^more than 32 gaps$"):
        producers.arrive("p", 68, body(68), T)
    assert producers.model_dump_json() == before
    assert producers.arrive("p", 67, body(67), T) is LATE  # its edge splits nothing


# -- gaps that stay open --------------------------------------------------------------------------------


def test_b7_an_open_gap_is_told_once_when_it_is_due() -> None:
    producers = sent(1)
    assert not producers.has_open_gaps()
    producers.arrive("p", 3, body(3), T + 10)
    assert producers.overdue() == []
    assert producers.watch_gaps() == T + 10
    # One that opens while the first is watched waits for its own turn, also in the next run.
    producers.arrive("p", 7, body(7), T + 20)
    producers = again(producers)
    assert producers.watch_gaps() == T + 10
    ((name, gap),) = producers.overdue()
    assert (name, gap.first, gap.last) == ("p", 2, 2)
    assert producers.has_open_gaps()
    assert producers.overdue() == []
    assert producers.watch_gaps() == T + 20
    ((_, second),) = producers.overdue()
    assert (second.first, second.last) == (4, 6)
    assert not producers.has_open_gaps()


def test_b7_gaps_that_are_open_together_are_told_together() -> None:
    producers = sent(1)
    producers.arrive("p", 3, body(3), T + 10)
    producers.arrive("p", 7, body(7), T + 20)
    assert producers.watch_gaps() == T + 20
    assert [(gap.first, gap.last) for _, gap in producers.overdue()] == [(2, 2), (4, 6)]


def test_b7_a_gap_that_is_closed_while_it_is_watched_is_not_told() -> None:
    producers = sent(1, 3, 6)
    producers.watch_gaps()
    producers.arrive("p", 2, body(2), T)
    producers.arrive("p", 5, body(5), T)
    assert [(gap.first, gap.last) for _, gap in producers.overdue()] == [(4, 4)]


def test_b7_a_number_that_comes_late_closes_its_gap_also_when_it_was_told() -> None:
    producers = sent(1, 3, 6)
    assert producers.arrive("p", 2, body(2), T) is LATE
    ((_, gap),) = producers.unreported()
    assert (gap.first, gap.last) == (4, 5)
    # What is left of a gap that was told is not told again.
    assert producers.arrive("p", 4, body(4), T) is LATE
    assert gaps(producers) == [(5, 5)]
    assert (producers.unreported(), producers.has_open_gaps()) == ([], False)
    assert producers.arrive("p", 5, body(5), T) is LATE
    assert gaps(producers) == []


# -- the digest -----------------------------------------------------------------------------------------


def test_b7_a_body_is_told_by_its_values_not_by_the_order_of_its_keys() -> None:
    assert body_digest({"a": 1, "b": {"c": 2, "d": 3}}) == body_digest({"b": {"d": 3, "c": 2}, "a": 1})
    others: list[dict[str, Any]] = [
        {"a": 1},
        {"a": "1"},
        {"a": True},
        {"a": [1]},
        {"a": {}},
        {"a": "\ud83d"},
        {"a": "é"},
    ]
    assert len({body_digest(other) for other in others}) == len(others)
    # SHA-256 of {"a":1} starts with 015abd7f5cc57a2d; so many bytes in base64, without its padding.
    assert body_digest({"a": 1}) == "AVq9f1zFei0"


# -- the state of the next run --------------------------------------------------------------------------

NUMBERS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1)), max_size=150)


@given(NUMBERS, st.booleans())
def test_b7_every_number_is_judged_like_in_a_list_of_all_that_came(
    arrivals: list[tuple[int, int]], handed_on: bool
) -> None:
    """Whatever the order and however often the session is handed on; the list is what has no bounds."""
    producers, came = Producers(), dict[int, int]()
    for number, variant in arrivals:
        if handed_on:
            producers = again(producers)
        missing = [n for n in range(min(came, default=0), max(came, default=0) + 1) if n not in came]
        try:
            arrival = producers.arrive("p", number, body(variant), T)
        except Unacceptable:
            assert len(_ranges(missing)) >= 32
            continue
        if number not in came:
            assert arrival is (LATE if came and number < max(came) else NEW)
            came[number] = variant
        elif number in sorted(came)[-64:]:
            assert arrival is (REPEAT if came[number] == variant else CONFLICT)
        else:
            assert arrival is UNVERIFIED
        missing = [n for n in range(min(came), max(came) + 1) if n not in came]
        assert sorted(gaps(producers)) == _ranges(missing)
        assert set(producers.known["p"].digests) == set(sorted(came)[-64:])


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    found = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        found.append((members[0], members[-1]))
    return found


@given(NUMBERS)
def test_b7_nothing_of_it_changes_on_the_way_to_the_next_run(arrivals: list[tuple[int, int]]) -> None:
    producers = Producers()
    for place, (number, variant) in enumerate(arrivals):
        name = "pq"[number % 2]
        try:
            producers.arrive(name, number, body(variant), T + place)
        except Unacceptable:
            continue
        if place % 7 == 0:
            producers.overdue()
            if producers.has_open_gaps():
                producers.watch_gaps()
    assert again(producers) == producers
    assert again(producers).model_dump_json() == producers.model_dump_json()
