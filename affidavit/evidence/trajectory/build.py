"""The trajectory of a session: a pure function of its metadata and its captures (formats.md 7).

Written in two passes, so that a session of any length fits in memory. The first reads every event and capture once and
keeps a plan of integers: which steps there are, which results and verdicts belong to each (a result may come at any
later time), and the sums that stand before the steps in the file. The second prints the document in key order and reads
each capture again when its place comes, a call and a result at a time. In memory are, at any time: the plan (some
hundred bytes for each step, call and result), the metadata, one capture with what is made of it, and what `at` holds.

Each object is checked against the profile `writer` on its way out, so that what is written has been validated whole.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from affidavit.evidence.capture import normalise_value
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import iso_ms
from affidavit.evidence.totals import final_stop_reason
from affidavit.evidence.trajectory import fields as atif
from affidavit.evidence.trajectory import pieces
from affidavit.evidence.trajectory.extras import noted
from affidavit.evidence.trajectory.plan import Plan, PlannedStep, make_plan
from affidavit.evidence.trajectory.printing import Printer, Sink
from affidavit.evidence.trajectory.segments import Pair
from affidavit.evidence.trajectory.validate import Checker, InvalidTrajectory, validate

Json = dict[str, Any]


class NoSteps(EvidenceError):
    """Nothing of the session is a step: a trajectory has at least one."""

    def __init__(self) -> None:
        super().__init__("no captured steps")


class Written(NamedTuple):
    """A trajectory that was written: SHA-256 of its bytes (hex), its steps, its bytes, the events behind it."""

    digest: str
    step_count: int
    size: int
    event_count: int

    def provenance(self, *, chain_head: str, generation: str) -> Json:
        """Payload of `trajectory.provenance.json` (formats.md 5); `chain_head` is hex."""
        return {
            "trajectory_digest": self.digest,
            "step_count": self.step_count,
            "chain_head": chain_head,
            "event_count": self.event_count,
            "generation": generation,
        }


def write_trajectory(
    metadata: Mapping[str, Any], pairs: Iterable[Pair], at: Callable[[int], Pair], sink: Sink
) -> Written:
    """Write a session's trajectory; the same input always gives the same bytes.

    Args:
        metadata: the payload of metadata.json, with its registration.
        pairs: every chained event with its capture, from sequence 0 on; read once.
        at: the same pair again, by its sequence. `SegmentedPairs` gives both.
        sink: takes the bytes; after an error what it got is no trajectory.

    Raises:
        NoSteps: there is nothing to write; the sink got nothing.
        InvalidTrajectory: what was made is not valid after all.
        CaptureMismatch, TotalsError, CanonicalError: the evidence contradicts itself.
    """
    plan = make_plan(pairs)
    if not plan.steps:
        raise NoSteps
    builder = _Builder(metadata, plan, at)
    printer = Printer(sink)
    digest = printer.document(builder.document())
    return Written(digest, len(plan.steps), printer.size, plan.events)


def trajectory_bytes(metadata: Mapping[str, Any], pairs: Sequence[Pair]) -> bytes:
    """The trajectory of a session that is small enough to be held; see `write_trajectory`."""
    places = {event["metadata"]["sequence"]: place for place, (event, _) in enumerate(pairs)}
    sink = io.BytesIO()
    write_trajectory(metadata, pairs, lambda sequence: pairs[places[sequence]], sink)
    return sink.getvalue()


class _Builder:
    def __init__(self, metadata: Mapping[str, Any], plan: Plan, at: Callable[[int], Pair]) -> None:
        self._metadata = metadata
        self._plan = plan
        self._at = at
        self._checker = Checker({"schema_version": atif.SCHEMA_VERSION}, profile="writer")

    def document(self) -> Json:
        """The whole document; its steps are made while they are printed."""
        root = _root(self._metadata, self._plan)
        self._checker.embedded = self._checker.root({**root, "steps": [None]}).keys()
        self._refuse()
        return {**root, "steps": self._steps()}

    def _steps(self) -> Iterator[Json]:
        for place, planned in enumerate(self._plan.steps):
            event, capture = self._at(planned.place.sequence)
            head, calls = _head(event, capture, planned)
            head |= {"step_id": place + 1, "timestamp": iso_ms(event["time"])}
            ids = {call["call_id"] for call in calls or ()}
            if planned.results:
                head["observation"] = {"results": []}
            self._checker.head(place, head if calls is None else {**head, "tool_calls": []})
            self._refuse()
            if calls is not None:
                head["tool_calls"] = self._calls(place, planned, calls)
            if planned.results:
                head["observation"] = {"results": self._results(place, planned, ids)}
            yield head

    def _calls(self, place: int, planned: PlannedStep, calls: list[Json]) -> Iterator[Json]:
        ids: dict[str, int] = {}
        for index, call in enumerate(calls):
            verdicts = (self._capture(sequence) for which, sequence in planned.verdicts if which == index)
            made = pieces.tool_call(call, verdicts)
            self._checker.call(f"steps.{place}.tool_calls.{index}", made, index, ids)
            self._refuse()
            yield made

    def _results(self, place: int, planned: PlannedStep, ids: set[str]) -> Iterator[Json]:
        for index, where in enumerate(planned.results):
            reported, call_id = pieces.reported_result(self._capture(where.sequence), where.part)
            made = pieces.result(reported, call_id, ids, self._checker, named=where == planned.place)
            self._checker.result(f"steps.{place}.observation.results.{index}", made, ids)
            self._refuse()
            yield made

    def _capture(self, sequence: int) -> Mapping[str, Any]:
        capture = self._at(sequence)[1]
        assert capture is not None  # the plan saw it
        return capture

    def _refuse(self) -> None:
        if self._checker.issues:
            raise InvalidTrajectory(self._checker.issues)


def _head(event: Mapping[str, Any], capture: Mapping[str, Any] | None, planned: PlannedStep) -> tuple[Json, Any]:
    """A step without calls, results, number and time; and its calls as announced, None where it has none."""
    if capture is None:
        return pieces.own_step(event), None
    kind, part = capture["kind"], planned.place.part
    if kind == "model_response":
        return pieces.response_step(event, capture), _calls_of(capture)
    if kind == "model_failure":
        return pieces.failure_step(capture), None
    if kind == "tool_call":
        return pieces.call_step(capture), [pieces.unannounced_call(capture)]
    if kind == "model_request" and (message := capture["messages"][part])["role"] != "tool":
        return pieces.message_step(capture, part), _calls_of(message) if message["role"] == "assistant" else None
    return pieces.result_step(capture, part), None


def _calls_of(announcing: Mapping[str, Any]) -> list[Json] | None:
    return pieces.announced_calls(announcing)[0] if "tool_calls" in announcing else None


def _root(metadata: Mapping[str, Any], plan: Plan) -> Json:
    """The document without its steps."""
    registration, identity = metadata["registration"], metadata["identity"]
    given = dict(registration.get("trajectory_extra", {}))
    theirs = given.pop("extra", {}) if isinstance(given.get("extra", {}), dict) else {}
    # They stand deeper here than in the registration, so what nests to its limit is wrapped.
    given, theirs = ({name: normalise_value(value) for name, value in each.items()} for each in (given, theirs))
    own: Json = {
        name: holder[name]
        for holder, names in (
            (metadata, ("product_version", "generation", "registration_sha256")),
            (registration, ("external_ref", "originator")),
        )
        for name in names
        if name in holder
    }
    agent: Json = {"name": identity["charter"]["name"], "version": identity["version"]}
    agent["extra"] = {name: identity[name] for name in ("charter", "instance_uid")}
    for name in ("model_name", "tool_definitions"):
        if name in registration:
            value = normalise_value(registration[name])
            (agent if atif.AGENT[name].check(value) is None else own)[name] = value
    root: Json = {
        "schema_version": atif.SCHEMA_VERSION,
        "session_id": metadata["session_id"],
        "trajectory_id": metadata["trajectory_id"],
        "agent": agent,
        "final_metrics": _final_metrics(plan),
    }
    for name in ("notes", "continued_trajectory_ref", "subagent_trajectories"):
        if name in given and _fits(name, given[name]):
            root[name] = given.pop(name)
    # What no root field can hold is the reporter's all the same.
    left = {name: value for name, value in given.items() if name in atif.TRAJECTORY or name in theirs}
    theirs = {**{name: value for name, value in given.items() if name not in left}, **theirs}
    return root | noted(theirs, own | ({"trajectory_extra": left} if left else {}))


def _fits(name: str, value: Any) -> bool:
    """Whether a root field can stand in our document; embedded documents must be valid themselves."""
    if name != "subagent_trajectories":
        return atif.TRAJECTORY[name].check(value) is None
    checker = Checker({"schema_version": atif.SCHEMA_VERSION})
    embedded = {name: value}
    around = checker.root(embedded).keys()
    ours = [issue for issue in checker.issues if issue.path.startswith(name)]
    return not ours and not any(validate(each, around=around) for each in value)


def _final_metrics(plan: Plan) -> Json:
    totals = plan.totals
    return {
        "total_steps": len(plan.steps),
        "total_prompt_tokens": plan.prompt_tokens,
        "total_completion_tokens": plan.completion_tokens,
        "total_cached_tokens": plan.cached_tokens,
        **({} if plan.cost_usd is None else {"total_cost_usd": float(plan.cost_usd)}),
        "extra": {
            "tool_calls": totals.tool_total,
            "tool_allowed": totals.tool_allowed,
            "tool_blocked": totals.tool_blocked,
            "cost_usd_micros": totals.cost_usd_micros,
            "stop_reason_id": final_stop_reason(totals),
        },
    }
