"""How the product's processes end: without an abort of Temporal's runtime, and without a traceback on Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell gives it."""


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
