"""What a session must do, in memory and as short as it can be said (behaviours A to F); nothing of the product's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

SLOTS = 2
"""Open attempts that the sessions of the model may have."""


@dataclass
class Life:
    """One generation of a session id."""

    spec: dict[str, Any]
    generation: str
    actions: list[str] = field(default_factory=lambda: ["opened"])
    """Of every event in order, but for `refused`: those count what came within a second."""
    bodies: dict[int, str] = field(default_factory=dict)
    attempts: dict[str, bool] = field(default_factory=dict)
    """Open attempts; whether their request was reported."""
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("calls", "allowed", "blocked", "tokens"), 0))
    steps: int = 0
    repeated: int = 0
    conflicts: int = 0
    refusals: int = 0
    unprocessed: int = 0
    poisoned: bool = False
    status: str | None = None
    receipt: dict[str, Any] | None = None

    @property
    def live(self) -> bool:
        return self.status is None

    # -- reporting (B3, B7, C3) ------------------------------------------------------------------------

    def report(self, number: int, body: str, step: dict[str, Any], *, by_signal: bool) -> str:
        """Take a numbered step; `new`, `repeat`, `conflict` or `dropped`. An update is refused at the door instead of
        being counted, where the capture is incomplete (E2)."""
        if self.poisoned:
            self.unprocessed += by_signal
            return "dropped"
        if number in self.bodies:
            if self.bodies[number] == body:
                self.repeated += 1
                return "repeat"
            self.conflicts += 1
            self.actions.append("producer_conflict")
            return "conflict"
        self.bodies[number] = body
        if not self._attempt(step):
            self.poisoned = True
            self.unprocessed += 1
            return "dropped"
        self.actions.append(step["kind"])
        self.steps += 1
        if step["kind"] == "tool_call":
            self.totals["calls"] += 1
            self.totals["allowed" if step["allowed"] else "blocked"] += 1
        self.totals["tokens"] += step.get("usage", {}).get("completion_tokens", 0)
        return "new"

    def _attempt(self, step: dict[str, Any]) -> bool:
        """Open or close what the step opens or closes; False if attempts do not add up."""
        attempt = step.get("attempt_id")
        if attempt is None:
            return True
        if step["kind"] == "model_request":
            if self.attempts.get(attempt):
                return False
            self.attempts[attempt] = True
            return True
        return self.attempts.pop(attempt, None) is not None

    def gaps(self) -> list[tuple[int, int]]:
        """Ranges of numbers that did not come between those that did."""
        found: list[tuple[int, int]] = []
        came = sorted(self.bodies)
        for before, after in itertools.pairwise(came):
            if after - before > 1:
                found.append((before + 1, after - 1))
        return found

    # -- admission (C1, C2, C3) ------------------------------------------------------------------------

    def admit(self, attempt: str, *, own_agent: bool) -> str | None:
        """Open an attempt; the type of the refusal, None if it is accepted."""
        if self.poisoned:
            return "CaptureIncomplete"
        if not own_agent:
            self.refusals += 1
            return "IdentityConflict"
        if self.attempts.get(attempt):
            return "BadRequest"
        if attempt not in self.attempts:
            if len(self.attempts) >= SLOTS:
                return "ResponseSlotsFull"
            self.attempts[attempt] = False
        return None

    # -- the end (C4, E3, F1, F3) ----------------------------------------------------------------------

    def close(self) -> str:
        """End it; how it ended."""
        if self.status is None:
            if self.attempts:
                self.poisoned = True
            elif not self.poisoned:
                self.actions += ["producer_gap"] * len(self.gaps())
            unattested = self.spec["mode"] == "unsigned" and self.steps == 0
            self.status = "quarantined" if self.poisoned or unattested else "closed"
        return self.status


@dataclass
class Model:
    """The lives of every id, the newest last."""

    lives: dict[str, list[Life]] = field(default_factory=dict)

    def newest(self, name: str) -> Life | None:
        return self.lives[name][-1] if self.lives.get(name) else None

    def open(self, name: str, spec: dict[str, Any], *, reopen: bool) -> str | None:
        """What an open is refused with, None if it joins the newest life or starts one (A2, A4)."""
        newest = self.newest(name)
        if newest is None:
            return None
        if newest.live:
            return self._join(newest, spec)
        barred = any(life.status == "quarantined" for life in self.lives[name])
        return "SessionEnded" if barred or not reopen else None

    def _join(self, life: Life, spec: dict[str, Any]) -> str | None:
        if spec["mode"] != life.spec["mode"]:
            return "ModeConflict"
        if spec["agent"] != life.spec["agent"]:
            return "IdentityConflict"
        if spec["content"] != life.spec["content"]:
            return "RegistrationConflict"
        return "CaptureIncomplete" if life.poisoned else None
