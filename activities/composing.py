"""From an entry and the step behind it to the event and its journal record (pure; formats.md 3.2 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from affidavit.activity_api import Entry
from affidavit.contract import Agent
from affidavit.evidence.canonical import digest
from affidavit.evidence.capture import capture_bytes, normalise_step
from affidavit.evidence.journal import record_payload
from affidavit.evidence.ocsf import build_event
from affidavit.evidence.scalars import sha256_hex

REASON_CHARS = 256
"""Free text in an event is cut here; the capture has all of it."""

NOTHING = b"{}"

_JSON_TEXT = b'"encoding":"json-text"'
"""How a capture shows that a value stands in it as JSON text; a reporter's own such object is marked as well."""

_COMMON = ("producer", "producer_seq", "claimed_time", "attempt_id")
_VALUES = {
    "model_request": ("messages",),
    "model_response": ("text", "reasoning"),
    "tool_call": ("arguments",),
    "tool_result": ("content",),
    "wake": ("input",),
    "event": ("payload",),
}
"""The values that a session with content `full` shows in its events."""


@dataclass(frozen=True, slots=True)
class Session:
    """What all events of a session share."""

    session_id: str
    product_version: str
    agent: Agent
    content: str = "store"


def _picked(capture: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: capture[key] for key in keys if key in capture}


def _model_request(capture: Mapping[str, Any]) -> dict[str, Any]:
    return {"roles": [message["role"] for message in capture["messages"]], **_picked(capture, "model")}


def _model_response(capture: Mapping[str, Any]) -> dict[str, Any]:
    # A copied response ends nothing, so its event has no stop reason and names no finish reason.
    kept = ("model",) if capture.get("copied") else ("finish_reason", "model")
    return {**_picked(capture, *kept), "tool_calls": len(capture.get("tool_calls", ()))}


def _model_failure(capture: Mapping[str, Any]) -> dict[str, Any]:
    return _picked(capture, "reason", "status")


def _tool_call(capture: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        **_picked(capture, "call_id", "tool", "allowed", "stage", "reason"),
        "arguments_sha256": digest(capture.get("arguments", {})),
    }
    if "reason" in facts:
        facts["reason"] = facts["reason"][:REASON_CHARS]
    return facts


def _tool_result(capture: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_picked(capture, "call_id"),
        "ok": capture.get("ok", True),
        "content_sha256": digest(capture["content"]),
    }


def _event(capture: Mapping[str, Any]) -> dict[str, Any]:
    return {**_picked(capture, "type"), "payload_sha256": digest(capture["payload"])}


_FACTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "model_request": _model_request,
    "model_response": _model_response,
    "model_failure": _model_failure,
    "tool_call": _tool_call,
    "tool_result": _tool_result,
    "wake": lambda capture: {},
    "event": _event,
}


def compose(session: Session, entry: Entry, step: Mapping[str, Any] | None) -> tuple[dict[str, Any], bytes]:
    """The journal record of an entry, and the bytes of its capture.

    Args:
        session: what all events share.
        entry: as the workflow decided it.
        step: the step as reported, or None for an event of our own; its capture is then `{}`.
    """
    payload: dict[str, Any] = {"action": entry.action, **entry.payload}
    captured = NOTHING
    if step is not None:
        capture = normalise_step(step)
        captured = capture_bytes(capture)
        facts = _FACTS[capture["kind"]](capture)
        if entry.action == "breaker_tripped":
            payload["replaced"] = {**payload["replaced"], **facts}
        else:
            payload |= facts
        payload |= {"capture_sha256": sha256_hex(captured), **_picked(capture, *_COMMON)}
        if _JSON_TEXT in captured or "encoding" in capture.get("extra", {}).get("affidavit", {}):
            payload["json_text"] = True
        if session.content == "full":
            payload |= _picked(capture, *_VALUES.get(capture["kind"], ()))
    identity = session.agent.as_identity(entry.ttl_remaining_s)
    stop = None if entry.stop_reason_id is None else (entry.stop_reason_id, entry.stop_reason or "")
    event = build_event(
        uid=entry.uid,
        sequence=entry.sequence,
        time_ms=entry.time,
        class_name=entry.class_name,
        session_id=session.session_id,
        identity=identity,
        product_version=session.product_version,
        status_id=entry.status_id,
        severity_id=entry.severity_id,
        payload=payload,
        metrics=entry.metrics,
        stop=stop,
    )
    attempt = None if entry.attempt_id is None else {"id": entry.attempt_id, "terminal": bool(entry.attempt_terminal)}
    record = record_payload(
        event=event, identity=identity, counts=entry.counts, stop_reason_id=entry.stop_reason_id, attempt=attempt
    )
    return record, captured
