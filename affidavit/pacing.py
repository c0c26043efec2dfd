"""A sender that keeps up no better than its session does (behaviours C2: the queue is bounded, signals are not).

A signal is always taken and says nothing of how full the session is. So a handle looks now and then, and holds its
next message back while as many steps wait there as the session has room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

LOOK_EVERY_STEPS: Final = 256
"""A quarter of the default queue: so many more may wait there than it has room for, from one handle."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


class Pace:
    """Waits before a message where the session is behind.

    It never holds a message back for longer than `patience` seconds: a session whose store is away for an hour still
    takes signals, up to Temporal's own limit, and those are then safe from a crash of the agent.
    """

    def __init__(self, crowded: Callable[[], Awaitable[bool]], *, patience: float) -> None:
        """`crowded` says whether the session's queue is full; False where nobody can tell."""
        self._crowded = crowded
        self._patience = patience
        self._unseen = 0

    async def wait(self, steps: int, urgent: Callable[[], bool]) -> None:
        """Return when the next message, of so many steps, may go; soon once somebody waits for it to be sent."""
        self._unseen += steps
        if self._unseen < LOOK_EVERY_STEPS:
            return
        self._unseen = 0
        clock = asyncio.get_running_loop().time
        give_up, pause = clock() + self._patience, FIRST_PAUSE_S
        while not urgent() and await self._crowded() and (left := give_up - clock()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)
