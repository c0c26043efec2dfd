"""An agent run in ATIF (v1.0-v1.8), read as the steps a runtime would have reported (formats.md 7, "An imported run").

The inverse of the export's table: a later export gives back the same run, step for step. What the steps of a session
cannot carry is never dropped: each object of the run that becomes a step, a message, a call or a result keeps it in
its own `extra.affidavit`, under `original_timestamp`, `original_step_id` and `original_fields`; the last holds fields
of the original that stand in place of what was reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from affidavit.contract import Agent, SessionSpec
from affidavit.evidence.capture import normalise_value
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable
from affidavit.fields import CallId, Count, Name
from affidavit.steps import STEP, Usage
from affidavit.validation import first_error

RUN_LIMIT: Final = 256 << 20
"""Bytes of a run that are read at most."""

_VERSION: Final = re.compile(r"ATIF-v1\.[0-8]")
_NAME: Final[TypeAdapter[str]] = TypeAdapter(Name)
_CALL_ID: Final[TypeAdapter[str]] = TypeAdapter(CallId)
_COUNT: Final[TypeAdapter[int]] = TypeAdapter(Count)
_EFFORT: Final[TypeAdapter[str | float]] = TypeAdapter(str | float)
_TEXT: Final[TypeAdapter[str]] = TypeAdapter(str)
_FLAG: Final[TypeAdapter[bool]] = TypeAdapter(bool)
_LIST: Final[TypeAdapter[list[Any]]] = TypeAdapter(list[Any])
_OBJECTS: Final[TypeAdapter[list[dict[str, Any]]]] = TypeAdapter(list[dict[str, Any]])
_REFERENCE: Final[TypeAdapter[list[Any] | dict[str, Any]]] = TypeAdapter(list[Any] | dict[str, Any])

_ROOT_FIELDS: Final[dict[str, TypeAdapter[Any]]] = {
    "notes": _TEXT,
    "continued_trajectory_ref": _TEXT,
    "subagent_trajectories": _OBJECTS,
}
"""Root fields that an export writes back as they are."""

_METRICS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cost_usd",
    "logprobs",
    "completion_token_ids",
    "prompt_token_ids",
)


class NotARun(EvidenceError):
    """The document is no ATIF trajectory; the message is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not an ATIF trajectory: {reason}")


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over a run's own steps; copied steps were counted where they happened."""

    steps: int
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """A run as it can be reported: what its session is opened with, and its steps in order."""

    schema_version: str
    agent_name: str
    agent_version: str
    model_name: str | None
    tool_definitions: list[Any] | None
    external_ref: str | None
    """The run's own session id."""
    trajectory_extra: dict[str, Any]
    """Root fields that an export gives back."""
    steps: list[dict[str, Any]]
    sums: Sums
    final_metrics: dict[str, Any] = field(default_factory=dict)

    def spec(self, *, mode: Literal["signed", "unsigned"] = "signed", instance_uid: str | None = None) -> SessionSpec:
        """How to open a session for this run; `instance_uid` is a fresh one unless given."""
        optional = {
            "external_ref": self.external_ref,
            "model_name": self.model_name,
            "tool_definitions": self.tool_definitions,
            "trajectory_extra": self.trajectory_extra or None,
        }
        agent = Agent(
            version=self.agent_version, charter=self.agent_name, instance_uid=instance_uid or f"replay-{uuid4()}"
        )
        given = {name: value for name, value in optional.items() if value is not None}
        return SessionSpec.model_validate({"agent": agent, "mode": mode, **given})

    def turns(self) -> Iterator[list[dict[str, Any]]]:
        """The steps in groups that belong together: a request or a response with what followed it."""
        turn: list[dict[str, Any]] = []
        for step in self.steps:
            if turn and step["kind"] in ("model_request", "model_response"):
                yield turn
                turn = []
            turn.append(step)
        if turn:
            yield turn

    def differences(self) -> list[tuple[str, Any, float]]:
        """Where the run's `final_metrics` are not its own sums: name, what it states, what the steps add up to."""
        own = {
            "total_steps": self.sums.steps,
            "total_prompt_tokens": self.sums.prompt_tokens,
            "total_completion_tokens": self.sums.completion_tokens,
            "total_cached_tokens": self.sums.cached_tokens,
            "total_cost_usd": self.sums.cost_usd,
        }
        stated = {name: self.final_metrics[name] for name in own if self.final_metrics.get(name) is not None}
        return [(name, value, own[name]) for name, value in stated.items() if not _equal(value, own[name])]


def read_run(data: bytes) -> ImportedRun:
    """Read a run from the bytes of its file.

    Raises:
        NotARun: not strict JSON, over the limit, or not an ATIF trajectory; the reason names the place.
    """
    try:
        document = read_json(data, max_bytes=RUN_LIMIT)
    except EvidenceError as error:
        raise NotARun(str(error)) from None
    return import_run(document)


def import_run(document: Any) -> ImportedRun:
    """A run that has been read already; see `read_run`.

    Every step that is returned is valid as a step.
    """
    if not isinstance(document, dict):
        raise NotARun("it is no JSON object")
    version = document.get("schema_version")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        shown = f"schema_version {printable(version)!r}" if isinstance(version, str) else "a missing schema_version"
        raise NotARun(f"{shown} is none of ATIF-v1.0 to ATIF-v1.8")
    agent, listed = document.get("agent"), document.get("steps")
    if not isinstance(agent, dict):
        raise NotARun("agent is no object")
    if not isinstance(listed, list) or not listed:
        raise NotARun("steps is no list of steps, or an empty one")
    steps = list(_steps(listed))
    model_name = agent["model_name"] if _fits(_NAME, agent.get("model_name")) else None
    definitions = agent["tool_definitions"] if _fits(_LIST, agent.get("tool_definitions")) else None
    reference = document.get("session_id") or None
    final = document.get("final_metrics")
    try:
        return ImportedRun(
            schema_version=version,
            agent_name=_required(agent, "name"),
            agent_version=_required(agent, "version"),
            model_name=model_name,
            tool_definitions=None if definitions is None else normalise_value(definitions),
            external_ref=None if reference is None else _name(reference, _NAME, 256),
            trajectory_extra=_trajectory_extra(document, agent, model_name, definitions),
            steps=steps,
            sums=_sums(steps, len(listed)),
            final_metrics=final if isinstance(final, dict) else {},
        )
    except EvidenceError as error:  # an object key that no JSON text can hold
        raise error if isinstance(error, NotARun) else NotARun(str(error)) from None


# -- the root -----------------------------------------------------------------------------------------


def _required(agent: Mapping[str, Any], key: str) -> str:
    value = agent.get(key)
    if not isinstance(value, str) or not value:
        raise NotARun(f"agent.{key} is missing")
    return _name(value, _NAME, 256)


def _trajectory_extra(
    document: Mapping[str, Any], agent: Mapping[str, Any], model_name: Any, definitions: Any
) -> dict[str, Any]:
    left = _others(
        document, {"schema_version", "session_id", "trajectory_id", "agent", "steps", "final_metrics", "extra"}
    )
    kept = {key: left.pop(key) for key, adapter in _ROOT_FIELDS.items() if _fits(adapter, left.get(key))}
    rest = _others(agent, {"name", "version"})
    if model_name is not None:
        del rest["model_name"]
    if definitions is not None:
        del rest["tool_definitions"]
    reference = document.get("session_id")
    notes = {
        "original_schema_version": document["schema_version"],
        "original_session_id": None if _fits(_NAME, reference) else reference,
        "original_trajectory_id": document.get("trajectory_id"),
        "original_final_metrics": document.get("final_metrics"),
        "original_agent": rest or None,
        "original_fields": left or None,
    }
    kept["extra"] = _noted(document, {name: value for name, value in notes.items() if value is not None})
    return {key: normalise_value(value) for key, value in kept.items()}


def _sums(steps: list[dict[str, Any]], count: int) -> Sums:
    usages = [step["usage"] for step in steps if "usage" in step and not step.get("copied")]
    return Sums(
        steps=count,
        tool_calls=sum(step["kind"] == "tool_call" for step in steps),
        prompt_tokens=sum(usage.get("prompt_tokens", 0) for usage in usages),
        completion_tokens=sum(usage.get("completion_tokens", 0) for usage in usages),
        cached_tokens=sum(usage.get("cached_tokens", 0) for usage in usages),
        cost_usd=math.fsum(usage.get("cost_usd", 0) for usage in usages),
    )


def _equal(stated: Any, own: float) -> bool:
    return isinstance(stated, int | float) and math.isclose(stated, own, rel_tol=1e-9, abs_tol=1e-12)


# -- the steps ----------------------------------------------------------------------------------------


def _steps(listed: list[Any]) -> Iterator[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    announced: set[str] = set()
    for place, step in enumerate(listed):
        where = f"steps.{place}"
        if not isinstance(step, dict):
            raise NotARun(f"{where} is no object")
        source = step.get("source")
        made: list[dict[str, Any]] = []
        if source in ("user", "system"):
            messages.append(_message(step, where))
            if results := _results(step, where, on="request"):
                # They belong to the last message reported so far, so that must be this one.
                made, messages = [_request(messages), *results], []
        elif source == "agent":
            made = [_request(messages)] if messages else []
            messages = []
            made += _agent(step, where, announced)
        else:
            raise NotARun(f"{where}.source is none of system, user, agent")
        yield from _checked(made, where)
    if messages:
        yield from _checked([_request(messages)], f"steps.{len(listed) - 1}")


def _checked(made: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    for step in made:
        try:
            STEP.validate_python(step)
        except ValidationError as error:
            raise NotARun(f"{where}: {first_error(error, without=step['kind'])}") from None
    return made


def _request(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "model_request", "messages": messages}


def _message(step: Mapping[str, Any], where: str) -> dict[str, Any]:
    left = _others(step, {"step_id", "timestamp", "source", "extra"})
    content = left.pop("message", "")
    if not isinstance(content, str) and not _fits(_OBJECTS, content):
        left["message"], content = content, ""
    message = {"role": step["source"], "content": content}
    if (copied := _taken(left, "is_copied_context", _FLAG)) is not None:
        message["copied"] = copied
    _observation_rest(left)
    return _with_extra(message, step, _step_notes(step, where, left))


def _agent(step: Mapping[str, Any], where: str, announced: set[str]) -> list[dict[str, Any]]:
    left = _others(step, {"step_id", "timestamp", "source", "extra"})
    listed = left.pop("tool_calls", None)
    calls = [] if listed is None else _calls(listed, where)
    own_call = _unannounced(step, calls, announced)
    announced.update(call["call_id"] for call in calls)
    if own_call is not None:
        for key in ("message", "llm_call_count"):
            left.pop(key, None)
        _observation_rest(left)
        return [
            _with_extra(_executed(own_call), step, _step_notes(step, where, left)),
            *_results(step, where),
        ]
    response: dict[str, Any] = {"kind": "model_response", "text": _text(left)}
    for key, name, adapter in (
        ("reasoning_content", "reasoning", _TEXT),
        ("reasoning_effort", "reasoning_effort", _EFFORT),
        ("model_name", "model", _NAME),
        ("llm_call_count", "llm_call_count", _COUNT),
        ("is_copied_context", "copied", _FLAG),
    ):
        if (value := _taken(left, key, adapter)) is not None:
            response[name] = value
    if listed is not None:
        response["tool_calls"] = calls
    if isinstance(left.get("metrics"), dict):
        response["usage"] = _usage(left.pop("metrics"))
    _observation_rest(left)
    # A copied step's calls were made, and counted, where it came from.
    executed = [] if response.get("copied") else [_executed(call) for call in calls]
    return [_with_extra(response, step, _step_notes(step, where, left)), *executed, *_results(step, where)]


def _unannounced(step: Mapping[str, Any], calls: list[dict[str, Any]], announced: set[str]) -> dict[str, Any] | None:
    """The one call of a step that no model made, if a bare `tool_call` says all of it."""
    said = {"message", "reasoning_content", "reasoning_effort", "model_name", "metrics", "is_copied_context"}
    count = step.get("llm_call_count")
    bare = type(count) is int and count == 0 and len(calls) == 1 and not any(step.get(key) for key in said)
    if bare and "extra" not in calls[0] and calls[0]["call_id"] not in announced:
        return calls[0]
    return None


def _executed(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "tool_call",
        "call_id": call["call_id"],
        "tool": call["name"],
        "allowed": True,
        "arguments": call["arguments"],
    }


def _calls(listed: Any, where: str) -> list[dict[str, Any]]:
    if not _fits(_OBJECTS, listed):
        raise NotARun(f"{where}.tool_calls is no list of objects")
    made = []
    for place, call in enumerate(listed):
        left = _others(call, {"tool_call_id", "function_name", "arguments", "extra"})
        call_id, name = call.get("tool_call_id"), call.get("function_name")
        if not isinstance(call_id, str) or not isinstance(name, str):
            raise NotARun(f"{where}.tool_calls.{place} lacks tool_call_id or function_name")
        if not _fits(_CALL_ID, call_id):
            left["tool_call_id"] = call_id
        if not _fits(_NAME, name):
            left["function_name"] = name
        announced = {
            "call_id": _name(call_id, _CALL_ID, 4096),
            "name": _name(name, _NAME, 256),
            "arguments": call.get("arguments", {}),
        }
        made.append(_with_extra(announced, call, {"original_fields": left} if left else {}))
    return made


def _usage(metrics: Mapping[str, Any]) -> dict[str, Any]:
    usage: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for key, value in _others(metrics, {"extra"}).items():
        try:
            if key not in _METRICS:
                raise ValueError(key)
            Usage.model_validate({key: value})
        except ValueError:
            left[key] = value
        else:
            usage[key] = value
    return _with_extra(usage, metrics, {"original_fields": left} if left else {})


def _results(step: Mapping[str, Any], where: str, *, on: Literal["request"] | None = None) -> list[dict[str, Any]]:
    observation = step.get("observation")
    listed = observation.get("results") if isinstance(observation, dict) else None
    if not isinstance(listed, list):
        return []
    made = []
    for place, result in enumerate(listed):
        if not isinstance(result, dict):
            raise NotARun(f"{where}.observation.results.{place} is no object")
        left = _others(result, {"content", "extra"})
        reported: dict[str, Any] = {"kind": "tool_result", "content": result.get("content")}
        call_id = left.pop("source_call_id", None)
        if call_id is not None:
            reported["call_id"] = _name(call_id, _CALL_ID, 4096)
            if not _fits(_CALL_ID, call_id):
                left["source_call_id"] = call_id
        if (reference := _taken(left, "subagent_trajectory_ref", _REFERENCE)) is not None:
            reported["subagent_trajectory_ref"] = reference
        if on is not None:
            reported["on"] = on
        made.append(_with_extra(reported, result, {"original_fields": left} if left else {}))
    return made


def _observation_rest(left: dict[str, Any]) -> None:
    """Leave of an observation only what its results do not say."""
    observation = left.get("observation")
    if isinstance(observation, dict) and isinstance(observation.get("results"), list):
        if observation["results"] and observation.keys() == {"results"}:
            del left["observation"]
        else:
            left["observation"] = {**observation, "results": []}


def _text(left: dict[str, Any]) -> str:
    """The message of an agent step as text; content parts are kept beside it."""
    message = left.pop("message", "")
    if isinstance(message, str):
        return message
    left["message"] = message
    parts = message if _fits(_OBJECTS, message) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


# -- what is carried, and what is kept beside it ------------------------------------------------------


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _taken(left: dict[str, Any], key: str, adapter: TypeAdapter[Any]) -> Any:
    """Take a field that a step can carry out of what is left; None where there is none."""
    return left.pop(key) if key in left and _fits(adapter, left[key]) else None


def _name(value: Any, adapter: TypeAdapter[str], limit: int) -> str:
    """A name or id that can be carried: itself, else a readable stand-in."""
    if _fits(adapter, value):
        return str(value)
    return printable(str(value), limit) or "(empty)"


def _others(holder: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The fields of an object that are not known; a null says nothing."""
    return {key: value for key, value in holder.items() if key not in known and value is not None}


def _step_notes(step: Mapping[str, Any], where: str, left: dict[str, Any]) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    if step.get("timestamp") is not None:
        notes["original_timestamp"] = step["timestamp"]
    if (step_id := step.get("step_id")) is not None and f"steps.{_previous(step_id)}" != where:
        notes["original_step_id"] = step_id
    if left:
        notes["original_fields"] = left
    return notes


def _previous(step_id: Any) -> Any:
    return step_id - 1 if type(step_id) is int else None


def _with_extra(made: dict[str, Any], original: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    if extra := _noted(original, notes):
        made["extra"] = extra
    elif original.get("extra") == {}:
        made["extra"] = {}
    return made


def _noted(original: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
    """The original's `extra` and what is ours; what stood under our key and collides moves to `reported`."""
    extra = original.get("extra")
    if extra is not None and not isinstance(extra, dict):
        notes = {**notes, "original_fields": {**notes.get("original_fields", {}), "extra": extra}}
    theirs = extra if isinstance(extra, dict) else {}
    if not notes:
        return dict(theirs)
    mine = theirs.get("affidavit", {})
    if not isinstance(mine, dict) or mine.keys() & notes.keys():
        mine = {"reported": mine}
    return {**theirs, "affidavit": {**mine, **notes}}
