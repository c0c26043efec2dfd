"""Sessions as lists of events and captures, written by hand, and what their export must satisfy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import atif
import jsonschema

from affidavit.evidence.capture import capture_bytes, capture_sha256, normalise_step
from affidavit.evidence.schemas import load
from affidavit.evidence.strict import read_json
from affidavit.evidence.trajectory import Pair, trajectory_bytes, validate

Json = dict[str, Any]
COUNTED = {"prompt_tokens": 7, "completion_tokens": 0, "cached_tokens": 0}
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
METRICS = {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 0}
PNG = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
OPENED_MS = 1_700_000_000_000  # 2023-11-14T22:13:20.000Z
SCHEMA = jsonschema.Draft202012Validator(load("trajectory"))


def metadata(**registration: Any) -> Json:
    """The payload of metadata.json, as far as a trajectory needs it."""
    return {
        "session_id": "session-1",
        "generation": "run-1",
        "product_version": "0.1.0",
        "trajectory_id": "trajectory-1",
        "registration_sha256": "ab" * 32,
        "identity": {"version": "2.0", "charter": {"name": "builder", "type_id": 1}, "instance_uid": "instance-1"},
        "registration": registration,
    }


def own(action: str, **payload: Any) -> Json:
    """An event of the product's own, to stand among steps."""
    return {"action": action, **payload}


def session(*steps: Mapping[str, Any]) -> list[Pair]:
    """Events and captures, one second apart, behind an opening event.

    A step may carry `counted`, the metrics of its event; a mapping without `kind` is an event of the product's own.
    """
    pairs: list[Pair] = [(_event(0, {"action": "opened"}), None)]
    for step in steps:
        if "kind" not in step:
            pairs.append((_event(len(pairs), dict(step)), None))
            continue
        counted = step.get("counted", {})
        capture = normalise_step({name: value for name, value in step.items() if name not in ("counted", "action")})
        payload = {"action": step.get("action", step["kind"]), "capture_sha256": capture_sha256(capture)}
        if step["kind"] == "tool_call":
            payload["allowed"] = step["allowed"]
        if "usage" in step:
            payload["cost_usd_micros"] = step["usage"].get("cost_usd_micros", 0)
        event = _event(len(pairs), payload, counted)
        if step["kind"] == "tool_call":
            event |= {"class_name": "agent.tool_call", "status_id": 1 if step["allowed"] else 2}
        pairs.append((event, read_json(capture_bytes(capture))))
    return pairs


def _event(sequence: int, payload: Json, metrics: Mapping[str, int] | None = None) -> Json:
    return {
        "metadata": {"sequence": sequence},
        "time": OPENED_MS + 1000 * sequence,
        "class_name": "agent.session",
        "status_id": 1,
        "payload": payload,
        "metrics": dict(metrics or {}),
    }


def export(*steps: Mapping[str, Any], **registration: Any) -> Json:
    """The trajectory of a session, after every validator has accepted it."""
    document: Json = json.loads(trajectory_bytes(metadata(**registration), session(*steps)))
    accept(document)
    return document


def exported_steps(*steps: Mapping[str, Any]) -> list[Json]:
    """Its steps without numbers and times."""
    kept = export(*steps)["steps"]
    return [{name: step[name] for name in step if name not in ("step_id", "timestamp")} for step in kept]


def accept(document: Json) -> None:
    """Our validator, our schema and the independent package each find nothing wrong."""
    assert validate(document, "writer") == []
    assert [error.message for error in SCHEMA.iter_errors(document)] == []
    atif.Trajectory.model_validate(document)


# -- what is reported, and what becomes of it -----------------------------------------------------------


def request(*messages: Json, **more: Any) -> Json:
    return {"kind": "model_request", "messages": list(messages), **more}


def user(content: Any = "hi", **more: Any) -> Json:
    return {"role": "user", "content": content, **more}


def response(*calls: Json, text: str = "ok", **more: Any) -> Json:
    listed = {"tool_calls": list(calls)} if calls else {}
    return {"kind": "model_response", "text": text, "usage": USAGE, **listed, **more}


def call(call_id: str = "c1", name: str = "look", arguments: Any = None, **more: Any) -> Json:
    return {"call_id": call_id, "name": name, "arguments": {"q": 1} if arguments is None else arguments, **more}


def verdict(call_id: str = "c1", tool: str = "look", allowed: bool = True, **more: Any) -> Json:
    return {"kind": "tool_call", "call_id": call_id, "tool": tool, "allowed": allowed, **more}


def result(content: Any = "seen", **more: Any) -> Json:
    return {"kind": "tool_result", "content": content, **more}


def agent(*calls: Json, message: Any = "ok", **more: Any) -> Json:
    listed = {"tool_calls": list(calls)} if calls else {}
    return {"source": "agent", "message": message, "llm_call_count": 1, "metrics": METRICS, **listed, **more}


def made(call_id: str = "c1", name: str = "look", arguments: Json | None = None, **ours: Any) -> Json:
    extra = {"extra": {"affidavit": ours}} if ours else {}
    return {
        "tool_call_id": call_id,
        "function_name": name,
        "arguments": {"q": 1} if arguments is None else arguments,
        **extra,
    }


def ours(**notes: Any) -> Json:
    return {"extra": {"affidavit": notes}}


def observed(*results: Json) -> Json:
    return {"observation": {"results": list(results)}}
