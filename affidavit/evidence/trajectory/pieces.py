"""From captures to the objects of ATIF v1.7: steps, calls, results, metrics (formats.md 7; pure).

What was said, done and measured and has no place in ATIF, or would make the file invalid, moves into the nearest
`extra.affidavit`; nothing is dropped for it. What an import kept there under `original_fields` goes back to its place
where it is valid, so that a run comes out as it went in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.trajectory import fields as atif
from affidavit.evidence.trajectory.extras import (
    RESTORED,
    Json,
    noted,
    originals,
    own_notes,
    without,
    without_note,
)
from affidavit.evidence.trajectory.validate import Checker, are_parts, is_part

SOURCES: Final[Mapping[str, str]] = {"user": "user", "assistant": "agent", "system": "system", "developer": "system"}
"""The source of the step that a message of a role becomes."""
JSON_TYPE: Final = "application/json"
ESTIMATED: Final = "estimated"
"""Under `extra.affidavit`: `usage: "estimated"` on a step without usage, `estimated: [names]` on its metrics."""

_COUNTS: Final = ("prompt_tokens", "completion_tokens")
_VERDICT: Final = ("allowed", "stage", "reason", "claimed_time")
_OF_RESULT: Final = ("claimed_time", "name", "on", "reasoning", "tool_calls")
_OF_REQUEST: Final = ("model", "prompt_tokens", "tokens_before", "tools", "context_sha256")


# -- steps --------------------------------------------------------------------------------------------


def message_step(capture: Mapping[str, Any], part: int) -> Json:
    """The step of one message of a request, without its calls' verdicts and its observation."""
    messages = capture["messages"]
    message = messages[part]
    role = message["role"]
    source = SOURCES[role]
    notes = {} if any(other["role"] != "tool" for other in messages[part + 1 :]) else _request_notes(capture)
    notes |= _encoding_of(capture, f"messages.{part}.")
    notes |= {name: message[name] for name in ("name", "tool_call_id") if name in message}
    if role == "developer":
        notes["role"] = role
    given, extra = originals(message.get("extra"), RESTORED[source])
    text, part_notes = _message_content(given.pop("message", message["content"]))
    step: Json = {"source": source, "message": text, **given}
    if role == "assistant" or "copied" in message:
        step["is_copied_context"] = role == "assistant" or message["copied"]
    if role == "assistant":
        if "reasoning" in message:
            step["reasoning_content"] = message["reasoning"]
        notes |= _duplicates(message)
    else:
        notes |= {name: message[name] for name in ("reasoning", "tool_calls") if name in message}
    return step | noted(extra, {**notes, **part_notes})


def response_step(event: Mapping[str, Any], capture: Mapping[str, Any]) -> Json:
    """The step of a model response, without its calls and its observation."""
    given, extra = originals(capture.get("extra"), RESTORED["agent"])
    notes = {name: capture[name] for name in ("finish_reason", "claimed_time") if name in capture}
    text, part_notes = _message_content(given.pop("message", capture.get("text", "")))
    step: Json = {"source": "agent", "message": text, **given}
    for name, field in (("model", "model_name"), ("reasoning", "reasoning_content"), ("copied", "is_copied_context")):
        if name in capture and field not in step:
            step[field] = capture[name]
    if "reasoning_effort" in capture:
        valid = atif.effort(capture["reasoning_effort"]) is None
        (step if valid else notes)["reasoning_effort"] = capture["reasoning_effort"]
    metrics = metrics_of(event, capture)
    if metrics is not None:
        step["metrics"] = metrics
        if "usage" not in capture:
            notes["usage"] = ESTIMATED
    if capture.get("llm_call_count") == 0 and not _no_model(capture):
        # ATIF forbids metrics and reasoning on a step that no model made; what was reported of them wins.
        notes["llm_call_count"] = 0
    elif "llm_call_count" in capture or not capture.get("copied"):
        step["llm_call_count"] = capture.get("llm_call_count", 1)
    if event["payload"].get("action") == "breaker_tripped":
        notes["breaker"] = "tripped"
    return step | noted(extra, {**notes, **part_notes, **_duplicates(capture)})


def failure_step(capture: Mapping[str, Any]) -> Json:
    """The step of a model failure; its message is the reason."""
    notes = {name: capture[name] for name in ("status", "message", "claimed_time") if name in capture}
    return {
        "source": "system",
        "message": capture["reason"],
        **noted(capture.get("extra"), {"action": "model_failure", **notes}),
    }


def own_step(event: Mapping[str, Any]) -> Json:
    """The step of a refusal or a rejected message, which nobody could report."""
    payload = event["payload"]
    return {"source": "system", "message": str(payload.get("reason", "")), **noted(None, without(payload, {"reason"}))}


def call_step(capture: Mapping[str, Any]) -> Json:
    """The step of a tool call that no model announced, without the call itself."""
    given, extra = originals(capture.get("extra"), ("observation",))
    if _null_arguments(capture):
        extra = without_note(extra, "arguments")  # it stands on the call
    return {"source": "agent", "message": "", "llm_call_count": 0, **given, **noted(extra, {})}


def result_step(capture: Mapping[str, Any], part: int) -> Json:
    """The step of a result that has no other step to stand on."""
    reported, call_id = reported_result(capture, part)
    copied = {"is_copied_context": True} if reported.get("copied") else {}
    orphan = {} if call_id is None else {"orphan_call_id": call_id}
    return {"source": "system", "message": "", **copied, **noted(None, orphan)}


def _request_notes(capture: Mapping[str, Any]) -> Json:
    """What was reported of a request as a whole; it stands on the step of its last message that is no tool's."""
    notes = {name: capture[name] for name in ("claimed_time",) if name in capture}
    request = {name: capture[name] for name in _OF_REQUEST if name in capture}
    if extra := without_note(capture.get("extra"), "encoding"):
        request["extra"] = extra
    return notes | ({"request": request} if request else {})


def _encoding_of(capture: Mapping[str, Any], prefix: str) -> Json:
    """Which of a message's texts stand escaped, out of what the capture says of all its texts."""
    marks = own_notes(capture.get("extra")).get("encoding")
    found = marks if isinstance(marks, dict) else {}
    mine = {path.removeprefix(prefix): why for path, why in found.items() if path.startswith(prefix)}
    return {"encoding": mine} if mine else {}


def _message_content(content: Any) -> tuple[Any, Json]:
    """A message as a string or as content parts of v1.7, and what there is to say about it."""
    if not isinstance(content, list):
        return content, {}
    strange = [place for place, part in enumerate(content) if not is_part(part)]
    parts, notes = _parts(
        [_text_part(canonicalize(part).decode()) if place in strange else part for place, part in enumerate(content)]
    )
    return parts, notes | ({"json_parts": strange} if strange else {})


def _parts(parts: list[Any]) -> tuple[list[Json], Json]:
    """Valid parts as v1.7 has them: an audio part becomes a text that names its path, and is kept whole."""
    written: list[Json] = []
    audio: list[Json] = []
    for place, part in enumerate(parts):
        if part["type"] == "audio":
            audio.append({"index": place, "part": part})
            written.append(_text_part(f"[audio: {part['source']['path']}]"))
        else:
            written.append(_present(part))
    return written, {"audio": audio} if audio else {}


def _present(holder: Mapping[str, Any]) -> Json:
    """Without the optional fields that are null, which is how some writers say absent."""
    return {name: value for name, value in holder.items() if value is not None}


def _text_part(text: str) -> Json:
    return {"type": "text", "text": text}


# -- calls --------------------------------------------------------------------------------------------


def announced_calls(announcing: Mapping[str, Any]) -> tuple[list[Json], list[Json]]:
    """The calls of a response or message: the first of each id, and those that repeat an id."""
    first: dict[str, Json] = {}
    again: list[Json] = []
    for call in announcing.get("tool_calls", ()):
        if first.setdefault(call["call_id"], call) is not call:
            again.append(call)
    return list(first.values()), again


def unannounced_call(capture: Mapping[str, Any]) -> Json:
    """The call of a step that no model announced, in the form of an announcement."""
    null = {"arguments": "null"} if _null_arguments(capture) else {}
    return {
        "call_id": capture["call_id"],
        "name": capture["tool"],
        "arguments": capture.get("arguments", {}),
        **noted(None, null | {name: capture[name] for name in _VERDICT if name in capture}),
    }


def tool_call(announced: Mapping[str, Any], verdicts: Iterable[Mapping[str, Any]]) -> Json:
    """A call as announced, with the verdicts on it; a later one does not replace the first."""
    notes: Json = {}
    for verdict in verdicts:
        said = _verdict_notes(announced, verdict)
        if notes:
            notes.setdefault("further_verdicts", []).append(said)
        else:
            notes = said
    return {
        "tool_call_id": announced["call_id"],
        "function_name": announced["name"],
        "arguments": announced["arguments"],
        **noted(announced.get("extra"), notes),
    }


def _null_arguments(capture: Mapping[str, Any]) -> bool:
    return own_notes(capture.get("extra")).get("arguments") == "null"


def _verdict_notes(call: Mapping[str, Any], verdict: Mapping[str, Any]) -> Json:
    notes = {name: verdict[name] for name in _VERDICT if name in verdict}
    # Canonical forms, because Python holds true and 1 for equal.
    if "arguments" in verdict and canonicalize(verdict["arguments"]) != canonicalize(call["arguments"]):
        notes["executed_arguments"] = verdict["arguments"]
    if verdict["tool"] != call["name"]:
        notes["executed_tool"] = verdict["tool"]
    if extra := verdict.get("extra"):
        notes["verdict_extra"] = extra
    return notes


def _duplicates(announcing: Mapping[str, Any]) -> Json:
    again = announced_calls(announcing)[1]
    return {"duplicate_tool_calls": again} if again else {}


# -- results ------------------------------------------------------------------------------------------


def reported_result(capture: Mapping[str, Any], part: int) -> tuple[Json, str | None]:
    """What was reported as a result, by a step of its own or a message of role `tool`, and for which call."""
    if capture["kind"] == "tool_result":
        return dict(capture), capture.get("call_id")
    message = capture["messages"][part]
    marked = noted(message.get("extra"), _encoding_of(capture, f"messages.{part}."))
    return message | marked, message.get("tool_call_id")


def result(reported: Json, call_id: str | None, ids: Collection[str], checker: Checker, *, named: bool = False) -> Json:
    """One result of an observation.

    Args:
        reported: as `reported_result` gives it, with its `call_id`.
        ids: the ids of the calls of the step that it stands on.
        checker: knows which references resolve.
        named: the step itself already says which call it was for.
    """
    made: Json = {}
    notes: Json = {name: reported[name] for name in _OF_RESULT if name in reported}
    if call_id in ids:
        made["source_call_id"] = call_id
    elif call_id is not None and not named:
        notes["orphan_call_id"] = call_id
    content, content_notes = _result_content(reported.get("content"))
    if content is not None:
        made["content"] = content
    if reported.get("ok") is False:
        notes["ok"] = False
    references = reported.get("subagent_trajectory_ref")
    if references is not None:
        listed = references if isinstance(references, list) else [references]
        if _resolve(listed, checker):
            made["subagent_trajectory_ref"] = [_present(each) for each in listed]
        else:
            notes["subagent_trajectory_ref"] = references
    return made | noted(reported.get("extra"), notes | content_notes)


def _result_content(content: Any) -> tuple[Any, Json]:
    if content is None or isinstance(content, str):
        return content, {}
    if _is_wrapper(content):
        return content["text"], {"encoding": {"content": content["why"]}}  # ATIF wants a string here
    if are_parts(content):
        return _parts(content)
    return canonicalize(content).decode(), {"content_type": JSON_TYPE}


def _is_wrapper(value: Any) -> bool:
    """Whether a value stands for one that JSON cannot carry (formats.md 1)."""
    whole = isinstance(value, dict) and value.keys() == {"encoding", "text", "sha256", "why"}
    return whole and value["encoding"] == "json-text" and isinstance(value["text"], str)


def _resolve(references: list[Any], checker: Checker) -> bool:
    trial = Checker({"schema_version": atif.SCHEMA_VERSION})
    trial.embedded = checker.embedded
    for reference in references:
        trial.reference("", reference)
    return not trial.issues


# -- metrics ------------------------------------------------------------------------------------------


def metrics_of(event: Mapping[str, Any], capture: Mapping[str, Any]) -> Json | None:
    """The metrics of a response: its usage as reported, or what the session counted in its place.

    The file needs token counts on what a model made just now, so a missing one is the one in the event. None where
    there is neither usage nor, because the step is copied or no model made it, anything to estimate.
    """
    usage = capture.get("usage")
    estimating = not (capture.get("copied") or _no_model(capture))
    if usage is None and not estimating:
        return None
    metrics: Json = {}
    notes: Json = {}
    for name, value in (usage or {}).items():
        if name == "extra":
            continue
        field = atif.METRICS.get(name)
        (metrics if field is not None and field.check(value) is None else notes)[name] = value
    if "cost_usd" not in metrics and type(notes.get("cost_usd_micros")) is int:
        metrics["cost_usd"] = notes["cost_usd_micros"] / 1_000_000
    metrics.setdefault("cached_tokens", 0)
    missing = [name for name in _COUNTS if name not in metrics] if estimating else []
    metrics |= {name: event["metrics"].get(name, 0) for name in missing}
    if missing and usage is not None:
        notes[ESTIMATED] = missing
    return metrics | noted((usage or {}).get("extra"), notes)


def _no_model(capture: Mapping[str, Any]) -> bool:
    """Whether a response says that no model made it, and nothing in it says otherwise."""
    return capture.get("llm_call_count") == 0 and "usage" not in capture and "reasoning" not in capture
