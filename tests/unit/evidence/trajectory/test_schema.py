"""The JSON Schema of what is written: it refuses what an export never is."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from affidavit.evidence.schemas import load
from tests.support.trajectories import PNG, SCHEMA, call, export, request, response, result, user, verdict

GONE = object()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return export(
        request(user([PNG]), {"role": "system", "content": "s"}),
        response(call(), reasoning="hm", usage={"prompt_tokens": 1, "completion_tokens": 1, "cost_usd": 0.5}),
        verdict(),
        result("seen", call_id="c1", subagent_trajectory_ref=[{"trajectory_path": "s.json"}]),
        verdict("c2"),
        trajectory_extra={"notes": "n"},
    )


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(load("trajectory"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", "ATIF-v1.6"),
        ("session_id", "a#b"),
        ("session_id", GONE),
        ("trajectory_id", GONE),
        ("final_metrics", GONE),
        ("final_metrics.extra.stop_reason_id", 5),
        ("final_metrics.total_prompt_tokens", -1),
        ("extra.affidavit", GONE),
        ("extra.affidavit.generation", GONE),
        ("agent.extra.instance_uid", GONE),
        ("agent.version", ""),
        ("steps", []),
        ("unknown", 1),
        ("notes", None),
        ("steps.0.timestamp", "2023-11-14T22:13:21Z"),
        ("steps.0.timestamp", GONE),
        ("steps.0.step_id", 0),
        ("steps.0.source", "tool"),
        ("steps.0.message", GONE),
        ("steps.0.message", None),
        ("steps.0.message.0.source.media_type", "image/bmp"),
        ("steps.0.message.0.text", "t"),
        ("steps.0.message.0", {"type": "audio", "source": {"media_type": "audio/wav", "path": "a"}}),
        ("steps.0.observation", {"results": []}),
        ("steps.0.metrics", {"cached_tokens": 0}),
        ("steps.1.tool_calls", []),
        ("steps.1.model_name", "m"),
        ("steps.1.reasoning_content", "hm"),
        ("steps.1.reasoning_effort", 1),
        ("steps.2.metrics", GONE),
        ("steps.2.metrics.prompt_tokens", GONE),
        ("steps.2.metrics.cached_tokens", GONE),
        ("steps.2.metrics.cost_usd", "1"),
        ("steps.2.metrics.unknown", 1),
        ("steps.2.llm_call_count", -1),
        ("steps.2.llm_call_count", 0),
        ("steps.2.tool_calls.0.arguments", "{}"),
        ("steps.2.tool_calls.0.unknown", 1),
        ("steps.2.observation.results.0.content", {"a": 1}),
        ("steps.2.observation.results.0.source_call_id", None),
        ("steps.2.observation.results.0.subagent_trajectory_ref.0", {"session_id": "s"}),
        ("steps.3.metrics", {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}),
        ("steps.3.reasoning_content", "hm"),
    ],
)
def test_it_refuses(document: dict[str, Any], path: str, value: Any) -> None:
    broken = copy.deepcopy(document)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder: Any = broken
    for part in way:
        holder = holder[part]
    if value is GONE:
        del holder[last]
    else:
        holder[last] = value
    assert not SCHEMA.is_valid(broken)
