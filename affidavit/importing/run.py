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

from pydantic import TypeAdapter

from affidavit.contract import Agent, SessionSpec
from affidavit.evidence.capture import normalise_value
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable
from affidavit.importing.carrying import LIST, NAME, OBJECTS, TEXT, NotARun, carried_name, fits, noted, others
from affidavit.importing.turns import import_steps

RUN_LIMIT: Final = 256 << 20
"""Bytes of a run that are read at most."""

_VERSION: Final = re.compile(r"ATIF-v1\.[0-8]")
_ROOT_FIELDS: Final[dict[str, TypeAdapter[Any]]] = {
    "notes": TEXT,
    "continued_trajectory_ref": TEXT,
    "subagent_trajectories": OBJECTS,
}
"""Root fields that an export writes back as they are."""


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
    steps = list(import_steps(listed))
    model_name = agent["model_name"] if fits(NAME, agent.get("model_name")) else None
    definitions = agent["tool_definitions"] if fits(LIST, agent.get("tool_definitions")) else None
    reference = document.get("session_id") or None
    final = document.get("final_metrics")
    try:
        return ImportedRun(
            schema_version=version,
            agent_name=_required(agent, "name"),
            agent_version=_required(agent, "version"),
            model_name=model_name,
            tool_definitions=None if definitions is None else normalise_value(definitions),
            external_ref=None if reference is None else carried_name(reference, NAME, 256),
            trajectory_extra=_trajectory_extra(document, agent, model_name, definitions),
            steps=steps,
            sums=_sums(steps, len(listed)),
            final_metrics=final if isinstance(final, dict) else {},
        )
    except EvidenceError as error:  # an object key that no JSON text can hold
        raise error if isinstance(error, NotARun) else NotARun(str(error)) from None


def _required(agent: Mapping[str, Any], key: str) -> str:
    value = agent.get(key)
    if not isinstance(value, str) or not value:
        raise NotARun(f"agent.{key} is missing")
    return carried_name(value, NAME, 256)


def _trajectory_extra(
    document: Mapping[str, Any], agent: Mapping[str, Any], model_name: Any, definitions: Any
) -> dict[str, Any]:
    left = others(
        document, {"schema_version", "session_id", "trajectory_id", "agent", "steps", "final_metrics", "extra"}
    )
    kept = {key: left.pop(key) for key, adapter in _ROOT_FIELDS.items() if fits(adapter, left.get(key))}
    rest = others(agent, {"name", "version"})
    if model_name is not None:
        del rest["model_name"]
    if definitions is not None:
        del rest["tool_definitions"]
    reference = document.get("session_id")
    notes = {
        "original_schema_version": document["schema_version"],
        "original_session_id": None if fits(NAME, reference) else reference,
        "original_trajectory_id": document.get("trajectory_id"),
        "original_final_metrics": document.get("final_metrics"),
        "original_agent": rest or None,
        "original_fields": left or None,
    }
    kept["extra"] = noted(document, {name: value for name, value in notes.items() if value is not None})
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
