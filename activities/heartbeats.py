"""Heartbeats beside work that blocks: an attempt lives as long as its worker, however slow the machine is."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import activity

INTERVAL_S = 2.0


@contextmanager
def beating() -> Iterator[None]:
    """Heartbeat from a thread of its own while the block runs.

    Without it a time limit would have to guess how long a batch takes under load; an attempt that was given up while
    it still computes only slows the next one down.
    """
    done = threading.Event()
    context = contextvars.copy_context()

    def beat() -> None:
        while not done.wait(INTERVAL_S):
            context.run(activity.heartbeat)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
