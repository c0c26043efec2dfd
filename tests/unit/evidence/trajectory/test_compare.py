"""The comparator: four tolerances, and nothing else (formats.md 7)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from affidavit.evidence.trajectory import Difference, compare
from affidavit.evidence.trajectory.compare import ABSENT

Json = dict[str, Any]


def run() -> Json:
    return {
        "schema_version": "ATIF-v1.6",
        "session_id": "run-1",
        "agent": {"name": "a", "version": "1"},
        "steps": [
            {"step_id": 1, "timestamp": "2025-01-01T00:00:00Z", "source": "user", "message": "go"},
            {
                "step_id": 2,
                "source": "agent",
                "message": [{"type": "text", "text": "ok"}],
                "model_name": "m",
                "reasoning_content": "hm",
                "reasoning_effort": "low",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "f", "arguments": {"q": [1, None]}}],
                "observation": {"results": [{"source_call_id": "c1", "content": "seen", "extra": {"score": 1}}]},
                "metrics": {"prompt_tokens": 5, "completion_tokens": 1, "cost_usd": 0.5, "extra": {"tier": "a"}},
                "extra": {"k": {"deep": True}},
            },
        ],
        "final_metrics": {"total_steps": 2},
    }


def changed(path: str, value: Any) -> Json:
    """A copy of the run with one value of a step replaced or added."""
    document = copy.deepcopy(run())
    holder: Any = document["steps"]
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        holder = holder[part]
    holder[last] = value
    return document


def test_a_run_equals_itself_and_root_numbers_and_times_are_not_looked_at() -> None:
    assert compare(run(), run()) == []
    other = run() | {"schema_version": "ATIF-v1.7", "session_id": "x", "notes": "n", "final_metrics": {}, "extra": {}}
    other["steps"] = [{**step, "step_id": 9, "timestamp": "2026-01-01T00:00:00Z"} for step in other["steps"]]
    assert compare(run(), other) == []


def test_tolerance_1_absent_cached_tokens_are_0() -> None:
    assert compare(run(), changed("1.metrics.cached_tokens", 0)) == []
    assert compare(changed("1.metrics.cached_tokens", 0), run()) == []
    assert compare(run(), changed("1.metrics.cached_tokens", 1)) == [Difference("steps.1.metrics.cached_tokens", 0, 1)]
    # Only in metrics that are there.
    without = changed("1.metrics", None)
    assert [each.path for each in compare(without, changed("1.metrics", {"cached_tokens": 0}))] == ["steps.1.metrics"]


def test_tolerance_2_llm_call_count_may_be_added() -> None:
    counted = changed("1.llm_call_count", 1)
    assert compare(run(), counted) == []
    assert compare(counted, run()) == [Difference("steps.1.llm_call_count", 1, ABSENT)]
    assert compare(counted, changed("1.llm_call_count", 2)) == [Difference("steps.1.llm_call_count", 1, 2)]
    nested = changed("1.tool_calls.0.arguments.llm_call_count", 1)
    assert compare(run(), nested) == [Difference("steps.1.tool_calls.0.arguments.llm_call_count", ABSENT, 1)]


@pytest.mark.parametrize(
    "path",
    ["0", "1", "1.tool_calls.0", "1.observation.results.0", "1.metrics"],
)
def test_tolerance_3_keys_under_extra_affidavit(path: str) -> None:
    holder: Any = run()["steps"]
    for part in path.split("."):
        holder = holder[int(part) if part.isdigit() else part]
    theirs = holder.get("extra", {})
    where = f"{path}.extra"
    assert compare(run(), changed(where, {**theirs, "affidavit": {"x": 1}})) == []
    assert compare(changed(where, {**theirs, "affidavit": "a"}), changed(where, {**theirs, "affidavit": [1]})) == []
    assert compare(run(), changed(where, {**theirs, "other": 1})) != []


def test_tolerance_3_is_for_extras_only() -> None:
    own = {"affidavit": {"x": 1}}
    path = "1.tool_calls.0.arguments.extra"
    assert compare(run(), changed(path, own)) == [Difference(f"steps.{path}", ABSENT, own)]
    assert compare(run(), changed("1.extra.k.extra", own)) == [Difference("steps.1.extra.k.extra", ABSENT, own)]
    assert [each.path for each in compare(run(), changed("1.message.0.extra", own))] == ["steps.1.message.0.extra"]
    assert compare(run(), changed("1.affidavit", 1)) == [Difference("steps.1.affidavit", ABSENT, 1)]


def test_tolerance_4_metrics_marked_as_estimated_are_absent() -> None:
    bare = changed("1.metrics", None)
    estimated = changed("1.extra.affidavit", {"usage": "estimated"})
    assert compare(bare, estimated) == []
    assert compare(estimated, bare) == []
    assert compare(run(), estimated) == [
        Difference("steps.1.metrics", {**run()["steps"][1]["metrics"], "cached_tokens": 0}, ABSENT)
    ]
    assert compare(bare, changed("1.extra.affidavit", {"usage": "guessed"})) != []
    # A single count may be the estimate.
    half = changed("1.metrics", {"completion_tokens": 1})
    filled = {"completion_tokens": 1, "prompt_tokens": 9}
    assert (
        compare(half, changed("1.metrics", {**filled, "extra": {"affidavit": {"estimated": ["prompt_tokens"]}}})) == []
    )
    assert compare(half, changed("1.metrics", filled)) == [Difference("steps.1.metrics.prompt_tokens", ABSENT, 9)]


@pytest.mark.parametrize(
    ("path", "value", "difference"),
    [
        ("0.source", "system", ("0.source", "user", "system")),
        ("0.message", "stop", ("0.message", "go", "stop")),
        ("0.is_copied_context", False, ("0.is_copied_context", ABSENT, False)),
        ("1.message", "ok", ("1.message", [{"type": "text", "text": "ok"}], "ok")),
        ("1.message.0.text", "no", ("1.message.0.text", "ok", "no")),
        ("1.model_name", "n", ("1.model_name", "m", "n")),
        ("1.reasoning_content", None, ("1.reasoning_content", "hm", ABSENT)),
        ("1.reasoning_effort", 1, ("1.reasoning_effort", "low", 1)),
        ("1.tool_calls.0.tool_call_id", "c2", ("1.tool_calls.0.tool_call_id", "c1", "c2")),
        ("1.tool_calls.0.function_name", "g", ("1.tool_calls.0.function_name", "f", "g")),
        ("1.tool_calls.0.arguments.q.0", True, ("1.tool_calls.0.arguments.q.0", 1, True)),
        ("1.tool_calls.0.arguments.q", [1], ("1.tool_calls.0.arguments.q.1", None, ABSENT)),
        ("1.tool_calls", [], ("1.tool_calls.0", run()["steps"][1]["tool_calls"][0], ABSENT)),
        ("1.observation.results.0.content", "Seen", ("1.observation.results.0.content", "seen", "Seen")),
        ("1.observation.results.0.source_call_id", None, ("1.observation.results.0.source_call_id", "c1", ABSENT)),
        ("1.observation.results.0.extra.score", 2, ("1.observation.results.0.extra.score", 1, 2)),
        ("1.metrics.prompt_tokens", 6, ("1.metrics.prompt_tokens", 5, 6)),
        ("1.metrics.cost_usd", 0.5000001, ("1.metrics.cost_usd", 0.5, 0.5000001)),
        ("1.metrics.extra.tier", "b", ("1.metrics.extra.tier", "a", "b")),
        ("1.extra.k.deep", 1, ("1.extra.k.deep", True, 1)),
        ("1.unknown", None, ("1.unknown", ABSENT, None)),
    ],
)
def test_everything_else_is_a_difference(path: str, value: Any, difference: tuple[str, Any, Any]) -> None:
    where, original, export = difference
    assert compare(run(), changed(path, value)) == [Difference(f"steps.{where}", original, export)]


def test_numbers_are_compared_as_json_has_them() -> None:
    assert compare(run(), changed("1.tool_calls.0.arguments.q.0", 1.0)) == []


def test_missing_and_surplus_steps_are_named() -> None:
    short = run()
    gone = short["steps"].pop()
    (difference,) = compare(run(), short)
    assert (difference.path, difference.export) == ("steps.1", ABSENT)
    assert difference.original["source"] == gone["source"]
    assert [each.path for each in compare(short, run())] == ["steps.1"]


def test_null_is_absent_for_atif_and_a_value_for_others() -> None:
    assert compare(run(), changed("0.reasoning_content", None)) == []
    assert compare(run(), changed("1.observation.results.0.subagent_trajectory_ref", None)) == []
    assert compare(run(), changed("1.message.0.source", None)) == []
    assert compare(run(), changed("0.extra", {})) == []
    assert [each.path for each in compare(run(), changed("1.extra.n", None))] == ["steps.1.extra.n"]


@pytest.mark.parametrize("other", [None, [], {"steps": 5}, {}])
def test_what_is_no_trajectory_has_no_steps(other: Any) -> None:
    (difference,) = compare(run(), other)
    assert (difference.path, difference.export) == ("steps", ABSENT)
    assert compare({"steps": [1, {}]}, {"steps": [1, {}]}) == []


def test_a_difference_is_one_safe_line() -> None:
    line = str(compare(run(), changed("0.message", "bad\x1b[0m\n" + "x" * 100))[0])
    assert line == "steps.0.message: go became bad\\x1b[0m\\x0a" + "x" * 49 + "…"
    assert str(Difference("steps.1", {"a": 1}, ABSENT)) == "steps.1: {'a': 1} became absent"
