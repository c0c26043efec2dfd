"""The steps of a run, as the steps a runtime would have reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import ValidationError

from affidavit.importing.carrying import (
    CALL_ID,
    COUNT,
    EFFORT,
    FLAG,
    NAME,
    OBJECTS,
    REFERENCE,
    TEXT,
    NotARun,
    carried_name,
    fits,
    others,
    step_notes,
    taken,
    with_extra,
)
from affidavit.steps import STEP, Usage
from affidavit.validation import first_error

_METRICS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cost_usd",
    "logprobs",
    "completion_token_ids",
    "prompt_token_ids",
)


def import_steps(listed: list[Any]) -> Iterator[dict[str, Any]]:
    """Read the steps of a run, in order; each that comes out is valid as a step."""
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
    left = others(step, {"step_id", "timestamp", "source", "extra"})
    content = left.pop("message", "")
    if not isinstance(content, str) and not fits(OBJECTS, content):
        left["message"], content = content, ""
    message = {"role": step["source"], "content": content}
    if (copied := taken(left, "is_copied_context", FLAG)) is not None:
        message["copied"] = copied
    _observation_rest(left)
    return with_extra(message, step, step_notes(step, where, left))


def _agent(step: Mapping[str, Any], where: str, announced: set[str]) -> list[dict[str, Any]]:
    left = others(step, {"step_id", "timestamp", "source", "extra"})
    listed = left.pop("tool_calls", None)
    calls = [] if listed is None else _calls(listed, where)
    own_call = _unannounced(step, calls, announced)
    announced.update(call["call_id"] for call in calls)
    if own_call is not None:
        for key in ("message", "llm_call_count"):
            left.pop(key, None)
        _observation_rest(left)
        return [
            with_extra(_executed(own_call), step, step_notes(step, where, left)),
            *_results(step, where),
        ]
    response: dict[str, Any] = {"kind": "model_response", "text": _text(left)}
    for key, name, adapter in (
        ("reasoning_content", "reasoning", TEXT),
        ("reasoning_effort", "reasoning_effort", EFFORT),
        ("model_name", "model", NAME),
        ("llm_call_count", "llm_call_count", COUNT),
        ("is_copied_context", "copied", FLAG),
    ):
        if (value := taken(left, key, adapter)) is not None:
            response[name] = value
    if listed is not None:
        response["tool_calls"] = calls
    if isinstance(left.get("metrics"), dict):
        response["usage"] = _usage(left.pop("metrics"))
    _observation_rest(left)
    # A copied step's calls were made, and counted, where it came from.
    executed = [] if response.get("copied") else [_executed(call) for call in calls]
    return [with_extra(response, step, step_notes(step, where, left)), *executed, *_results(step, where)]


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
    if not fits(OBJECTS, listed):
        raise NotARun(f"{where}.tool_calls is no list of objects")
    made = []
    for place, call in enumerate(listed):
        left = others(call, {"tool_call_id", "function_name", "arguments", "extra"})
        call_id, name = call.get("tool_call_id"), call.get("function_name")
        if not isinstance(call_id, str) or not isinstance(name, str):
            raise NotARun(f"{where}.tool_calls.{place} lacks tool_call_id or function_name")
        if not fits(CALL_ID, call_id):
            left["tool_call_id"] = call_id
        if not fits(NAME, name):
            left["function_name"] = name
        announced = {
            "call_id": carried_name(call_id, CALL_ID, 4096),
            "name": carried_name(name, NAME, 256),
            "arguments": call.get("arguments", {}),
        }
        made.append(with_extra(announced, call, {"original_fields": left} if left else {}))
    return made


def _usage(metrics: Mapping[str, Any]) -> dict[str, Any]:
    usage: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for key, value in others(metrics, {"extra"}).items():
        try:
            if key not in _METRICS:
                raise ValueError(key)
            Usage.model_validate({key: value})
        except ValueError:
            left[key] = value
        else:
            usage[key] = value
    return with_extra(usage, metrics, {"original_fields": left} if left else {})


def _results(step: Mapping[str, Any], where: str, *, on: Literal["request"] | None = None) -> list[dict[str, Any]]:
    observation = step.get("observation")
    listed = observation.get("results") if isinstance(observation, dict) else None
    if not isinstance(listed, list):
        return []
    made = []
    for place, result in enumerate(listed):
        if not isinstance(result, dict):
            raise NotARun(f"{where}.observation.results.{place} is no object")
        left = others(result, {"content", "extra"})
        reported: dict[str, Any] = {"kind": "tool_result", "content": result.get("content")}
        call_id = left.pop("source_call_id", None)
        if call_id is not None:
            reported["call_id"] = carried_name(call_id, CALL_ID, 4096)
            if not fits(CALL_ID, call_id):
                left["source_call_id"] = call_id
        if (reference := taken(left, "subagent_trajectory_ref", REFERENCE)) is not None:
            reported["subagent_trajectory_ref"] = reference
        if on is not None:
            reported["on"] = on
        made.append(with_extra(reported, result, {"original_fields": left} if left else {}))
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
    parts = message if fits(OBJECTS, message) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
