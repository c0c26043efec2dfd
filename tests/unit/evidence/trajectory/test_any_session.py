"""Whatever a runtime can report, the trajectory of it conforms (case 22)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from affidavit.evidence.trajectory import NoSteps, trajectory_bytes
from affidavit.steps import STEP
from tests.support.trajectories import (
    COUNTED,
    PNG,
    Json,
    accept,
    call,
    metadata,
    session,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from(["c1", "c2", "c3"])
EXTRA = st.dictionaries(st.sampled_from(["affidavit", "k"]), JSON | st.dictionaries(st.just("original_fields"), JSON))
PARTS = st.lists(
    st.sampled_from([PNG, {"type": "text", "text": "t", "source": None}, {"type": "text"}, {"x": 1}])
    | st.builds(lambda path: {"type": "audio", "source": {"media_type": "audio/wav", "path": path}}, st.text()),
    max_size=3,
)
CALLS = st.lists(st.builds(call, IDS, arguments=JSON) | st.builds(call, IDS, arguments=JSON, extra=EXTRA), max_size=3)


def step_of(required: Mapping[str, Any], optional: Mapping[str, Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(dict(required), optional=dict(optional))


MESSAGE = step_of(
    {"role": st.sampled_from(["user", "system", "developer", "assistant", "tool"]), "content": st.text() | PARTS},
    {"tool_call_id": IDS, "copied": st.booleans(), "extra": EXTRA, "tool_calls": CALLS, "reasoning": st.text()},
)
COUNT = st.integers(0, 9)
USAGES = step_of(
    {},
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "cost_usd": st.floats(0, 1),
        "cost_usd_micros": COUNT,
        "logprobs": st.lists(JSON, max_size=2),
        "completion_token_ids": st.lists(JSON, max_size=2),
        "extra": EXTRA,
    },
)
STEPS = st.one_of(
    step_of({"kind": st.just("model_request"), "messages": st.lists(MESSAGE, max_size=3)}, {"extra": EXTRA}),
    step_of(
        {"kind": st.just("model_response"), "text": st.text(), "counted": st.just(COUNTED)},
        {
            "tool_calls": CALLS,
            "usage": USAGES,
            "copied": st.booleans(),
            "llm_call_count": st.integers(0, 2),
            "reasoning": st.text(),
            "reasoning_effort": st.text() | st.floats(),
            "extra": EXTRA,
        },
    ),
    step_of(
        {"kind": st.just("tool_call"), "call_id": IDS, "tool": st.just("look"), "allowed": st.booleans()},
        {"arguments": JSON, "extra": EXTRA},
    ),
    step_of(
        {"kind": st.just("tool_result"), "content": JSON | PARTS},
        {
            "call_id": IDS,
            "on": st.just("request"),
            "ok": st.booleans(),
            "extra": EXTRA,
            "subagent_trajectory_ref": st.lists(JSON, max_size=2) | st.dictionaries(st.text(), JSON, max_size=1),
        },
    ),
    step_of({"kind": st.just("model_failure"), "reason": st.just("refused")}, {"extra": EXTRA, "message": st.text()}),
)


def reportable(step: Json) -> bool:
    try:
        STEP.validate_python({name: value for name, value in step.items() if name != "counted"})
    except ValidationError:
        return False
    return True


@given(st.lists(STEPS.filter(reportable), max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_session_that_can_be_reported_conforms(steps: list[Json]) -> None:
    pairs = session(*steps)
    try:
        data = trajectory_bytes(metadata(), pairs)
    except NoSteps:
        assert all(step["kind"] == "model_request" for step in steps)
        return
    document = json.loads(data)
    accept(document)
    own_steps = [step for step in document["steps"] if not step.get("is_copied_context")]
    assert document["final_metrics"]["total_prompt_tokens"] == sum(
        step.get("metrics", {}).get("prompt_tokens", 0) for step in own_steps
    )
    assert document["final_metrics"]["total_steps"] == len(document["steps"])
    assert trajectory_bytes(metadata(), pairs) == data
