from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from temporalio.testing import ActivityEnvironment

from activities import heartbeats
from activities.heartbeats import beating


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ActivityEnvironment, threading.Semaphore]]:
    """An environment whose heartbeats come every hundredth of a second, and a semaphore that counts them."""
    monkeypatch.setattr(heartbeats, "INTERVAL_S", 0.01)
    monkeypatch.setattr(heartbeats, "_PACEMAKER", heartbeats._Pacemaker())
    seen = threading.Semaphore(0)
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *_: seen.release()
    return environment, seen


def test_work_that_takes_long_beats_again_and_again_until_it_ends(
    beats: tuple[ActivityEnvironment, threading.Semaphore],
) -> None:
    environment, seen = beats

    def work() -> bool:
        with beating():
            return all(seen.acquire(timeout=10) for _ in range(3))

    assert environment.run(work)
    while seen.acquire(blocking=False):
        pass
    assert not seen.acquire(timeout=0.1)
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_each_of_several_at_once_beats(beats: tuple[ActivityEnvironment, threading.Semaphore]) -> None:
    environments = [ActivityEnvironment() for _ in range(4)]
    both = threading.Barrier(4, timeout=10)
    found = []

    def work(environment: ActivityEnvironment) -> None:
        seen = threading.Event()
        environment.on_heartbeat = lambda *_: seen.set()

        def block() -> None:
            with beating():
                found.append(seen.wait(10))
                both.wait()

        environment.run(block)

    threads = [threading.Thread(target=work, args=(each,)) for each in environments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [True] * 4


def test_work_that_is_over_before_its_first_beat_has_no_thread(
    beats: tuple[ActivityEnvironment, threading.Semaphore], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, _seen = beats
    monkeypatch.setattr(heartbeats, "INTERVAL_S", 0.2)
    begun = []
    monkeypatch.setattr(heartbeats._Work, "_beat", lambda self: begun.append(self))

    def work() -> None:
        for _ in range(50):
            with beating():
                pass

    environment.run(work)
    # The pacemaker has gone through all of them when it ends.
    (pacemaker,) = [thread for thread in threading.enumerate() if thread.name == "pacemaker"]
    pacemaker.join(10)
    assert (pacemaker.is_alive(), begun) == (False, [])


@pytest.mark.parametrize("name", ["heartbeat", "pacemaker"])
def test_a_machine_without_threads_for_a_while_costs_beats_and_no_work(
    beats: tuple[ActivityEnvironment, threading.Semaphore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    environment, seen = beats
    refused = threading.Event()
    start = threading.Thread.start

    def none_left(self: threading.Thread) -> None:
        if self.name == name:
            refused.set()
            raise RuntimeError("can't start new thread")
        start(self)

    def work() -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            with beating():
                assert refused.wait(10)
            assert not seen.acquire(blocking=False)
        with beating():
            return seen.acquire(timeout=10)

    with caplog.at_level(logging.WARNING):
        assert environment.run(work)
    assert "no thread for the heartbeats of an activity: can't start new thread" in caplog.messages
