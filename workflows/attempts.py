"""Model attempts: opened by an admission or by a request, closed by exactly one terminal record (pure; C3)."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

OPEN: Final = 1024
"""Attempts that may be open without anybody having asked to admit them; the state of a run holds them all."""


class Inconsistent(Exception):
    """Attempts do not add up: a terminal without an opening, or a second opening. The session is poisoned."""


class Attempt(BaseModel):
    """An open attempt; `since` is when something was last heard of it (epoch milliseconds)."""

    since: int
    requested: bool = False


class Attempts(BaseModel):
    """The attempts that are open, by id; as many as response slots, plus those that nobody asked to admit."""

    open: dict[str, Attempt] = {}
    changes: int = 0
    """How often one was opened, renewed or ended."""

    def admit(self, attempt_id: str, now_ms: int) -> None:
        """Open an attempt before its request is reported.

        Raises:
            Inconsistent: it is open already.
        """
        if attempt_id in self.open:
            raise Inconsistent(f"attempt {attempt_id} is opened twice")
        self.open[attempt_id] = Attempt(since=now_ms)
        self.changes += 1

    def request(self, attempt_id: str, now_ms: int) -> None:
        """A request was reported: the first one of an admitted attempt, or one that opens it itself.

        Raises:
            Inconsistent: the attempt has had its request.
        """
        attempt = self.open.get(attempt_id)
        if attempt is not None and attempt.requested:
            raise Inconsistent(f"attempt {attempt_id} is opened twice")
        if attempt is None and len(self.open) >= OPEN:
            raise Inconsistent(f"more than {OPEN} attempts are open")
        self.open[attempt_id] = Attempt(since=now_ms, requested=True)
        self.changes += 1

    def end(self, attempt_id: str) -> None:
        """A terminal record was reported.

        Raises:
            Inconsistent: no such attempt is open.
        """
        if self.open.pop(attempt_id, None) is None:
            raise Inconsistent(f"attempt {attempt_id} ends without an opening")
        self.changes += 1
