"""C3 as functions: an attempt is opened once and closed once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workflows.attempts import Attempts, Inconsistent

T = 1_786_320_000_000


def opened(*moves: Callable[[Attempts], None]) -> Attempts:
    attempts = Attempts()
    for move in moves:
        move(attempts)
    return attempts


def admit(attempts: Attempts) -> None:
    attempts.admit("a", T)


def request(attempts: Attempts) -> None:
    attempts.request("a", T + 5)


def end(attempts: Attempts) -> None:
    attempts.end("a")


@pytest.mark.parametrize(
    "moves",
    [
        (admit, end),  # refused by the provider before there was a request
        (admit, request, end),
        (request, end),  # nobody asked
        (admit, request, end, admit, request, end),  # the name is free again
        (request, end, admit, end),
    ],
)
def test_c3_an_attempt_that_adds_up_leaves_nothing_open(moves: tuple[Callable[[Attempts], None], ...]) -> None:
    assert opened(*moves).open == {}


@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        ((admit, admit), "attempt a is opened twice"),
        ((request, request), "attempt a is opened twice"),
        ((admit, request, request), "attempt a is opened twice"),
        ((request, admit), "attempt a is opened twice"),
        ((end,), "attempt a ends without an opening"),
        ((admit, end, end), "attempt a ends without an opening"),
        ((admit, request, end, end), "attempt a ends without an opening"),
    ],
)
def test_c3_a_second_opening_or_an_end_without_one_is_inconsistent(
    moves: tuple[Callable[[Attempts], None], ...], reason: str
) -> None:
    attempts = opened(*moves[:-1])
    before = attempts.model_copy(deep=True)
    with pytest.raises(Inconsistent) as found:
        moves[-1](attempts)
    assert str(found.value) == reason
    assert attempts == before


def test_c3_attempts_do_not_meet() -> None:
    attempts = opened(admit)
    attempts.admit("b", T)
    attempts.end("a")
    assert list(attempts.open) == ["b"]
    with pytest.raises(Inconsistent, match="attempt a ends"):
        attempts.end("a")
    attempts.end("b")


def test_f6_an_attempt_was_last_heard_of_at_its_admission_or_its_request() -> None:
    attempts = opened(admit)
    assert attempts.open["a"].since == T
    request(attempts)
    assert attempts.open["a"].since == T + 5


def test_c3_the_next_run_knows_which_attempts_are_open_and_had_their_request() -> None:
    attempts = opened(admit)
    attempts.request("b", T)
    again = Attempts.model_validate_json(attempts.model_dump_json())
    assert again == attempts
    again.request("a", T)
    with pytest.raises(Inconsistent):
        again.request("b", T)


def test_a_1025th_attempt_that_nobody_admitted_is_inconsistent() -> None:
    attempts = Attempts()
    for number in range(1024):
        attempts.request(f"a{number}", 1)

    with pytest.raises(Inconsistent, match="more than 1024 attempts are open"):
        attempts.request("one more", 1)
    attempts.end("a0")
    attempts.request("one more", 1)
