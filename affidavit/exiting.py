"""How the product's processes end: without an abort of Temporal's runtime, and without a traceback on Ctrl-C."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell gives it."""


SETTLE_S: Final = 0.05


@functools.cache
def settle_at_exit() -> None:
    """For programs that are not ours to end: let threads of Temporal's runtime finish before the interpreter does.

    A thread that has just delivered the last answer still needs the interpreter for a moment. If that is being taken
    apart already, the process aborts with all its work done: one run in twenty, for a program that ends at once.
    """
    atexit.register(time.sleep, SETTLE_S)


def leave(code: int) -> NoReturn:
    """End the process, everything printed."""
    if "temporalio" not in sys.modules:
        sys.exit(code)
    # Temporal's runtime has threads of its own. One that still waits for a server as the interpreter takes itself
    # apart aborts the process, so it is not taken apart.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def interrupts_end() -> Iterator[None]:
    """Let Ctrl-C end the process at once, for a block of imports: an exception there would be a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
