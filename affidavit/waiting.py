"""When to ask again for what has not happened yet (pure; P8)."""

from __future__ import annotations

from typing import Final

SCHEDULE_MS: Final = (25, 50, 100, 200, 400, 800)
THEN_MS: Final = 1000


class Pauses:
    """Seconds to wait before each next question; short again once something has happened.

    By query and not by an update that waits: a run has ten places for those, and a query costs no history.
    """

    def __init__(self) -> None:
        self._asked = 0

    def next(self) -> float:
        """The pause before the next question."""
        pause = SCHEDULE_MS[self._asked] if self._asked < len(SCHEDULE_MS) else THEN_MS
        self._asked += 1
        return pause / 1000

    def reset(self) -> None:
        """There was progress."""
        self._asked = 0
