"""Heartbeats beside work that blocks: an attempt lives as long as its worker, however slow the machine is."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from temporalio import activity

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0


@contextmanager
def beating() -> Iterator[None]:
    """Heartbeat from a thread of its own while the block runs.

    Without it a time limit would have to guess how long a batch takes under load; an attempt that was given up while
    it still computes only slows the next one down. Nearly every block is over before its first beat is due, and has
    no thread started for it.
    """
    work = _Work(contextvars.copy_context(), time.monotonic() + INTERVAL_S)
    _PACEMAKER.watch(work)
    try:
        yield
    finally:
        work.end()


def _started(target: Callable[[], None], name: str) -> threading.Thread | None:
    """A thread that runs; None where there can be no more. The attempt may yet be quick enough without beats."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        logger.warning("no thread for the heartbeats of an activity: %s", error)
        return None
    return thread


@dataclass(eq=False, slots=True)
class _Work:
    context: contextvars.Context
    due: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def begin(self) -> None:
        """Heartbeat from now on, unless it is over."""
        with self.lock:
            if not self.ended.is_set():
                self.thread = _started(self._beat, "heartbeat")

    def end(self) -> None:
        """Afterwards nothing beats for it any more."""
        with self.lock:
            self.ended.set()
        if self.thread is not None:
            self.thread.join()

    def _beat(self) -> None:
        while True:
            self.context.run(activity.heartbeat)
            if self.ended.wait(INTERVAL_S):
                return


class _Pacemaker:
    """One thread that has a thread started for work that is still there when its first beat is due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: deque[_Work] = deque()
        """In the order in which they came, and so in that in which they are due."""
        self._thread: threading.Thread | None = None

    def watch(self, work: _Work) -> None:
        with self._lock:
            self._watched.append(work)
            if self._thread is None:
                self._thread = _started(self._run, "pacemaker")

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._watched and self._watched[0].ended.is_set():
                    self._watched.popleft()
                if not self._watched:
                    self._thread = None
                    return
                work = self._watched[0]
            time.sleep(max(work.due - time.monotonic(), 0))
            work.begin()
            with self._lock:
                self._watched.popleft()


_PACEMAKER = _Pacemaker()
