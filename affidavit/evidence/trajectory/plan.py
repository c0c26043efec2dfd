"""The first pass over a session: which steps its trajectory has, and what belongs to each (formats.md 7).

The plan is made of integers, so that it stays small however large the captures are: a few hundred bytes a step, and
about as much a call, whose id is kept as a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from affidavit.evidence.journal import TOKENS
from affidavit.evidence.totals import Totals
from affidavit.evidence.trajectory.pieces import SOURCES, announced_calls, metrics_of
from affidavit.evidence.trajectory.segments import CaptureMismatch, Pair

OWN_STEPS = frozenset({"refused", "message_rejected"})
"""Events without a capture that are steps nevertheless."""


class Place(NamedTuple):
    """Where something was reported: the sequence of its event, and the place of a message in a request (else 0)."""

    sequence: int
    part: int = 0


@dataclass(slots=True)
class PlannedStep:
    """One step: where it was reported, its results in order, and the verdicts on its calls."""

    place: Place
    source: str
    results: list[Place] = field(default_factory=list)
    verdicts: list[tuple[int, int]] = field(default_factory=list)
    """Which call of the step, and the sequence of the verdict."""


@dataclass(slots=True)
class Plan:
    """All steps, and the sums that stand before them in the file."""

    steps: list[PlannedStep] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    events: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: Fraction | None = None
    """Exact, so that the order of addition cannot show; None where no step has a cost."""


@dataclass(slots=True)
class _Holder:
    """The step that has a call of some id, and whether a result came for it."""

    step: int
    call: int
    announced: bool = True
    answered: bool = False


def make_plan(pairs: Iterable[Pair]) -> Plan:
    """The plan of a session's trajectory, from its events and captures in order.

    Raises:
        CaptureMismatch: an event was made of a capture that is not there.
        TotalsError: an event contradicts itself.
    """
    planner = _Planner()
    for event, capture in pairs:
        planner.add(event, capture)
    return planner.plan


def _key(call_id: str) -> bytes:
    return hashlib.sha256(call_id.encode()).digest()[:16]


class _Planner:
    def __init__(self) -> None:
        self.plan = Plan()
        self._live: dict[bytes, _Holder] = {}
        self._copied: dict[bytes, _Holder] = {}
        self._answered: set[bytes] = set()
        self._last_agent: int | None = None
        self._last_message: int | None = None

    def add(self, event: Mapping[str, Any], capture: Mapping[str, Any] | None) -> None:
        self.plan.totals = self.plan.totals.add_event(event)
        self.plan.events += 1
        sequence: int = event["metadata"]["sequence"]
        if capture is None:
            if "capture_sha256" in event["payload"]:
                raise CaptureMismatch(f"the capture of event {sequence} is missing")
            if event["payload"].get("action") in OWN_STEPS:
                self._step(Place(sequence), "system")
            return
        kind = capture["kind"]
        if kind == "model_request":
            for part, message in enumerate(capture["messages"]):
                self._message(Place(sequence, part), message)
        elif kind == "model_response":
            self._response(Place(sequence), event, capture)
        elif kind == "model_failure":
            self._step(Place(sequence), "system")
        elif kind == "tool_call":
            self._tool_call(Place(sequence), capture["call_id"])
        elif kind == "tool_result":
            self._result(Place(sequence), capture.get("call_id"), on_request=capture.get("on") == "request")

    def _step(self, place: Place, source: str) -> int:
        self.plan.steps.append(PlannedStep(place, source))
        if source == "agent":
            self._last_agent = len(self.plan.steps) - 1
        return len(self.plan.steps) - 1

    def _message(self, place: Place, message: Mapping[str, Any]) -> None:
        if message["role"] == "tool":
            self._tool_message(place, message.get("tool_call_id"), copied=bool(message.get("copied")))
            return
        self._last_message = self._step(place, SOURCES[message["role"]])
        if message["role"] == "assistant":
            self._hold(self._last_message, message, self._copied)

    def _response(self, place: Place, event: Mapping[str, Any], capture: Mapping[str, Any]) -> None:
        copied = bool(capture.get("copied"))
        self._hold(self._step(place, "agent"), capture, self._copied if copied else self._live)
        if copied:
            return  # it was counted where it happened
        metrics = metrics_of(event, capture) or {}
        for name in TOKENS:
            setattr(self.plan, name, getattr(self.plan, name) + metrics.get(name, 0))
        if "cost_usd" in metrics:
            self.plan.cost_usd = (self.plan.cost_usd or Fraction()) + Fraction(metrics["cost_usd"])

    def _hold(self, step: int, announcing: Mapping[str, Any], holders: dict[bytes, _Holder]) -> None:
        for place, call in enumerate(announced_calls(announcing)[0]):
            key = _key(call["call_id"])
            holders[key] = _Holder(step, place)
            if holders is self._live:
                self._answered.discard(key)

    def _tool_call(self, place: Place, call_id: str) -> None:
        key = _key(call_id)
        holder = self._live.get(key)
        if holder is not None and holder.announced:
            self.plan.steps[holder.step].verdicts.append((holder.call, place.sequence))
        else:
            self._live[key] = _Holder(self._step(place, "agent"), 0, announced=False)
            self._answered.discard(key)

    def _tool_message(self, place: Place, call_id: str | None, *, copied: bool) -> None:
        """A result in the words of the next request: new only if nobody reported it before."""
        key = None if call_id is None else _key(call_id)
        if key is not None:
            context = self._copied.get(key) if copied else None
            if context is not None and not context.answered:
                context.answered = True
                self.plan.steps[context.step].results.append(place)
                return
            if key in self._answered:
                return
        self._result(place, call_id)

    def _result(self, place: Place, call_id: str | None, *, on_request: bool = False) -> None:
        holder = None
        if call_id is not None:
            key = _key(call_id)
            self._answered.add(key)
            holder = self._holder(key)
        if holder is not None:
            holder.answered = True
            self.plan.steps[holder.step].results.append(place)
            return
        target = None
        if on_request or (call_id is None and self._last_agent is None):
            target = self._last_message
        elif call_id is None:
            target = self._last_agent
        if target is None or self.plan.steps[target].source == "user":
            # ATIF knows no observation on a user step, so it gets a step of its own behind it.
            target = self._step(place, "system")
            if on_request or call_id is None:
                self._last_message = target
        self.plan.steps[target].results.append(place)

    def _holder(self, key: bytes) -> _Holder | None:
        """Whose result it is: a copied step's only where no live call waits for one since."""
        live, copied = self._live.get(key), self._copied.get(key)
        if copied is not None and (live is None or (live.answered and copied.step > live.step)):
            return copied
        return live
