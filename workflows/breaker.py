"""The loop breaker: judges, response by response, whether an agent still gets anywhere (formats.md 8).

Pure state: what a response says was measured before and comes in as an `Assessment`, so there is no arithmetic over
vectors here. Import it passed through (`workflow.unsafe.imports_passed_through()`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal, Protocol

from pydantic import BaseModel

from affidavit.assessment import MEMORY, Assessment, pack_counts, unpack_counts
from affidavit.evidence.scalars import MAX_INTEGER

__all__ = ["BreakerPolicy", "BreakerState", "Verdict", "VerdictState", "assess_embedding"]

VerdictState = Literal["progressing", "suspicious", "tripped", "not_assessed"]


class BreakerPolicy(Protocol):
    """What of `affidavit.contract.BreakerConfig` decides a verdict; its `action` is the session's affair."""

    @property
    def delta_epsilon(self) -> float: ...
    @property
    def window(self) -> int: ...
    @property
    def min_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one response meant.

    `delta` is how much is new in it, 0 to 2, a float32 widened; None if it was not assessed. `streak` and
    `tokens_consumed` are the state after it, `open` whether the breaker is open after it, for this or an
    earlier trip.
    """

    state: VerdictState
    delta: float | None
    streak: int
    tokens_consumed: int
    open: bool

    @property
    def assessed(self) -> bool:
        return self.state != "not_assessed"


class BreakerState(BaseModel):
    """All the breaker remembers; a fresh one is closed. About 1 KB of JSON a vector at most.

    `vectors` (packed by `affidavit.assessment.pack_counts`) and `call_digests` are the last eight, oldest
    first. `tokens` and `streak` count since the last reset.
    """

    vectors: list[str] = []
    call_digests: list[str] = []
    streak: int = 0
    tokens: int = 0
    open: bool = False

    def step(self, config: BreakerPolicy, assessment: Assessment, tokens: int) -> Verdict:
        """Take one model response in, in the order of the session.

        Args:
            config: the session's thresholds.
            assessment: the embedding's answer for it. One made before a reset is good: what was reset
                is left out.
            tokens: its prompt and completion tokens; 0 for a copied response, which consumed nothing now.

        Returns:
            The verdict. A response that was not assessed, or not assessable, adds its tokens and changes
            nothing else; it is never a trip, even if it crosses the token floor.
        """
        self.tokens = min(self.tokens + tokens, MAX_INTEGER)
        if not assessment.assessable:
            return self._verdict("not_assessed", None)
        delta = self._delta(assessment)
        self._remember(assessment)
        # The widened float32 is compared as it is published, so that a reader of the event gets the same answer.
        self.streak = self.streak + 1 if delta < config.delta_epsilon else 0
        if self.streak >= config.window and self.tokens >= config.min_tokens:
            self.open = True
            return self._verdict("tripped", delta)
        return self._verdict("suspicious" if self.streak else "progressing", delta)

    def reset(self) -> None:
        """Close the breaker and forget everything: the next response is the first."""
        self.vectors, self.call_digests = [], []
        self.streak = self.tokens = 0
        self.open = False

    def _delta(self, assessment: Assessment) -> float:
        if assessment.call_digest is not None and assessment.call_digest not in self.call_digests:
            return 1.0
        if assessment.similarities is None:
            return 0.0  # nothing said but calls made before, or a vector without a direction
        # The newest similarities belong to the vectors held now; older ones to vectors that a reset has dropped.
        held = len(self.vectors)
        return _float32(1.0 - max(assessment.similarities[-held:])) if held else 1.0

    def _remember(self, assessment: Assessment) -> None:
        if assessment.counts is not None:
            self.vectors = [*self.vectors, assessment.counts][-MEMORY:]
        if assessment.call_digest is not None:
            self.call_digests = [*self.call_digests, assessment.call_digest][-MEMORY:]

    def _verdict(self, state: VerdictState, delta: float | None) -> Verdict:
        return Verdict(state, delta, self.streak, self.tokens, self.open)


def assess_embedding(embedding: Sequence[float], vectors: Sequence[str]) -> Assessment:
    """What is answered for a given embedding: the formula in the standard library alone.

    Args:
        embedding: whole numbers below 2^31, or one with NaN or infinities.
        vectors: the packed window, oldest first.

    Returns:
        An assessment without calls. One that is all zero or not finite has no direction: its delta will be 0,
        and it is not remembered.
    """
    if not all(map(math.isfinite, embedding)) or not any(embedding):
        return Assessment(degenerate=True)
    counts = [int(number) for number in embedding]
    return Assessment(
        similarities=[_cosine(counts, unpack_counts(packed)) for packed in vectors],
        counts=pack_counts(counts),
    )


def _cosine(a: Sequence[int], b: Sequence[int]) -> float:
    squares = sum(map(mul, a, a)) * sum(map(mul, b, b))
    cosine = _float32(sum(map(mul, a, b)) / math.sqrt(squares)) if squares else 0.0
    return max(-1.0, min(1.0, cosine))


def _float32(number: float) -> float:
    """The nearest float32, widened; one rounding, as float32 arithmetic would do it."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded
