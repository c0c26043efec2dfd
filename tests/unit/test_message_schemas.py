"""JSON Schemas of every message: valid themselves, and agreeing with what the models take."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from affidavit.message_schemas import message_schemas

SCHEMAS = {name: make() for name, make in message_schemas().items()}
CALL = {"kind": "tool_call", "call_id": "c1", "tool": "look", "allowed": True}


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("record", {"steps": [CALL, {"kind": "tool_result", "content": None}]}),
        ("admit", {}),
        ("admit", {"attempt_id": "a1"}),
        ("reset_breaker", {"by": "me", "reason": "looked at it"}),
        ("refresh_identity", {"version": "1", "charter": "c", "instance_uid": "i", "ttl_remaining_s": 5}),
        ("close", {}),
        ("admit-answer", {"accepted": False, "refused": {"type": "LoopDetected", "reason": "loop detected"}}),
    ],
)
def test_what_is_right_passes(name: str, value: Any) -> None:
    jsonschema.validate(value, SCHEMAS[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("record", {"steps": []}),
        ("record", {"steps": [{**CALL, "surprise": 1}]}),
        ("record", {"steps": [{"kind": "nonsense"}]}),
        ("record", [CALL]),
        ("admit", {"surprise": 1}),
        ("reset_breaker", {"by": "me"}),
    ],
)
def test_what_is_wrong_does_not(name: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, SCHEMAS[name])
