"""P8: when a waiter asks again."""

from __future__ import annotations

from affidavit.waiting import Pauses


def test_p8_the_pauses_double_to_a_second_and_begin_anew_after_progress() -> None:
    pauses = Pauses()
    assert [pauses.next() for _ in range(9)] == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    pauses.reset()
    assert [pauses.next() for _ in range(2)] == [0.025, 0.05]
