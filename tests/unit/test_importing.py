"""Runs in ATIF become steps, and nothing of them is lost (formats.md 7)."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from affidavit.contract import registration_hash
from affidavit.evidence.capture import normalise_step
from affidavit.importing import ImportedRun, NotARun, import_run, read_run
from affidavit.steps import STEP

TIME = "2026-03-01T10:00:00Z"


def run_of(*steps: dict[str, Any], version: str = "ATIF-v1.7", **root: Any) -> ImportedRun:
    numbered = [{"step_id": place, **step} for place, step in enumerate(steps, start=1)]
    agent = {"name": "tester", "version": "1"}
    run = import_run({"schema_version": version, "session_id": "s", "agent": agent, "steps": numbered, **root})
    for step in run.steps:
        STEP.validate_python(step)
        normalise_step(step)
    registration_hash(run.spec().registration())
    return run


def user(message: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"source": "user", "message": message, **more}


def agent(message: Any = "", **more: Any) -> dict[str, Any]:
    return {"source": "agent", "message": message, **more}


def call(call_id: str = "c1", name: str = "search", **more: Any) -> dict[str, Any]:
    return {"tool_call_id": call_id, "function_name": name, "arguments": {"q": 1}, **more}


def kinds(run: ImportedRun) -> list[str]:
    return [step["kind"] for step in run.steps]


def test_messages_in_a_row_are_one_request_and_trailing_ones_the_last() -> None:
    run = run_of({"source": "system", "message": "be kind"}, user(timestamp=TIME), agent("hello"), user("bye"))
    assert kinds(run) == ["model_request", "model_response", "model_request"]
    assert run.steps[0]["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi", "extra": {"affidavit": {"original_timestamp": TIME}}},
    ]
    assert run.steps[2]["messages"] == [{"role": "user", "content": "bye"}]


def test_a_run_without_an_agent_step_is_one_request() -> None:
    assert kinds(run_of({"source": "system", "message": "a"}, user())) == ["model_request"]


def test_an_agent_step_becomes_response_calls_and_results() -> None:
    metrics = {"prompt_tokens": 7, "completion_tokens": 3, "cost_usd": 0.25, "extra": {"tier": None}}
    run = run_of(
        user(),
        agent(
            "look",
            timestamp=TIME,
            reasoning_content="hm",
            reasoning_effort="high",
            model_name="m",
            llm_call_count=2,
            tool_calls=[call(), call("c2", "read", extra={"k": 1})],
            observation={
                "results": [{"source_call_id": "c2", "content": [{"type": "text", "text": "é"}]}, {"content": "x"}]
            },
            metrics=metrics,
            extra={"mine": True},
        ),
    )
    response, *rest = run.steps[1:]
    assert response == {
        "kind": "model_response",
        "text": "look",
        "reasoning": "hm",
        "reasoning_effort": "high",
        "model": "m",
        "llm_call_count": 2,
        "tool_calls": [
            {"call_id": "c1", "name": "search", "arguments": {"q": 1}},
            {"call_id": "c2", "name": "read", "arguments": {"q": 1}, "extra": {"k": 1}},
        ],
        "usage": metrics,
        "extra": {"mine": True, "affidavit": {"original_timestamp": TIME}},
    }
    assert rest == [
        {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": 1}},
        {"kind": "tool_call", "call_id": "c2", "tool": "read", "allowed": True, "arguments": {"q": 1}},
        {"kind": "tool_result", "content": [{"type": "text", "text": "é"}], "call_id": "c2"},
        {"kind": "tool_result", "content": "x"},
    ]
    sums = run.sums
    assert (sums.steps, sums.tool_calls, sums.prompt_tokens, sums.completion_tokens) == (2, 2, 7, 3)
    assert sums.cost_usd == 0.25


def test_an_observation_of_a_message_belongs_to_that_message() -> None:
    run = run_of(
        user("a"), {"source": "system", "message": "b", "observation": {"results": [{"content": "o"}]}}, user("c")
    )
    assert kinds(run) == ["model_request", "tool_result", "model_request"]
    assert [message["content"] for message in run.steps[0]["messages"]] == ["a", "b"]
    assert run.steps[1] == {"kind": "tool_result", "content": "o", "on": "request"}


def test_a_call_that_no_model_made_is_announced_by_nobody() -> None:
    bare = agent(llm_call_count=0, timestamp=TIME, tool_calls=[call("fresh")])
    run = run_of(user(), bare)
    assert kinds(run) == ["model_request", "tool_call"]
    assert run.steps[1]["extra"] == {"affidavit": {"original_timestamp": TIME}}
    # Where a bare call would say less, or be taken for an earlier one, a response says it all.
    for other in ({"message": "said"}, {"tool_calls": [call("a"), call("b")]}, {"tool_calls": [call(extra={"k": 1})]}):
        assert kinds(run_of(user(), {**bare, **other}))[1] == "model_response"
    again = run_of(agent(tool_calls=[call()]), agent(llm_call_count=0, tool_calls=[call()]))
    assert kinds(again) == ["model_response", "tool_call", "model_response", "tool_call"]


def test_copied_steps_are_marked_and_count_nothing() -> None:
    copied = agent("old", is_copied_context=True, tool_calls=[call()], metrics={"prompt_tokens": 9})
    run = run_of(user(is_copied_context=True), copied, agent("new", metrics={"prompt_tokens": 4}))
    assert run.steps[0]["messages"][0]["copied"] is True
    assert run.steps[1]["copied"] is True
    assert kinds(run) == ["model_request", "model_response", "model_response"]
    assert (run.sums.prompt_tokens, run.sums.tool_calls) == (4, 0)


def test_what_no_step_can_carry_is_kept() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}]
    run = run_of(
        agent(
            parts,
            color="red",
            step_id=9,
            metrics={"prompt_tokens": -1, "weird": 2, "cached_tokens": None},
            observation={"results": [{"content": "x", "source_call_id": None, "odd": 1}], "note": "n"},
            tool_calls=[call(function_name="n" * 300)],
            extra={"affidavit": {"original_timestamp": "older"}},
            timestamp=TIME,
        )
    )
    response, executed, result = run.steps
    assert response["text"] == "see"
    assert response["extra"]["affidavit"] == {
        "reported": {"original_timestamp": "older"},
        "original_timestamp": TIME,
        "original_step_id": 9,
        "original_fields": {"color": "red", "observation": {"results": [], "note": "n"}, "message": parts},
    }
    assert response["usage"] == {"extra": {"affidavit": {"original_fields": {"prompt_tokens": -1, "weird": 2}}}}
    assert len(executed["tool"]) == 256
    assert response["tool_calls"][0]["extra"]["affidavit"]["original_fields"] == {"function_name": "n" * 300}
    assert result["extra"] == {"affidavit": {"original_fields": {"odd": 1}}}


def test_the_root_is_kept_for_the_export() -> None:
    final = {"total_prompt_tokens": 5, "total_steps": 1, "total_cost_usd": 0.0}
    document = {
        "schema_version": "ATIF-v1.2",
        "session_id": "a plain word",
        "agent": {
            "name": "a",
            "version": "2",
            "model_name": "m",
            "tool_definitions": [{"n": 1}],
            "extra": {"big": 2**60},
        },
        "steps": [user(step_id=1)],
        "notes": "n",
        "extra": {"k": 1},
        "final_metrics": final,
        "surprise": 1,
    }
    run = import_run(document)
    assert (run.external_ref, run.model_name, run.tool_definitions) == ("a plain word", "m", [{"n": 1}])
    kept = run.trajectory_extra
    assert kept["notes"] == "n"
    assert kept["extra"]["k"] == 1
    ours = kept["extra"]["affidavit"]
    assert ours["original_schema_version"] == "ATIF-v1.2"
    assert ours["original_final_metrics"] == final
    assert ours["original_fields"] == {"surprise": 1}
    assert ours["original_agent"]["extra"]["big"]["why"] == "big_integer"
    assert run.differences() == [("total_prompt_tokens", 5, 0)]
    spec = run.spec()
    assert (spec.agent.charter, spec.agent.version, spec.mode) == ("a", "2", "signed")
    assert spec.agent.instance_uid != run.spec().agent.instance_uid


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "line 1"),
        (b"[]", "it is no JSON object"),
        (b'{"a":1,"a":2}', "duplicate key 'a'"),
        (b"{}", "a missing schema_version"),
        (b'{"schema_version":"ATIF-v2.0\\u001b[31m"}', r"\x1b[31m' is none of ATIF-v1.0 to ATIF-v1.8"),
        (b'{"schema_version":"ATIF-v1.6"}', "agent is no object"),
        (b'{"schema_version":"ATIF-v1.6","agent":{"name":"a","version":"1"},"steps":[]}', "steps is no list"),
        (b'{"schema_version":"ATIF-v1.6","agent":{"name":""},"steps":[{"source":"user"}]}', "agent.name is missing"),
        (b'{"schema_version":"ATIF-v1.6","agent":{},"steps":[{"source":"robot"}]}', "steps.0.source"),
        (
            b'{"schema_version":"ATIF-v1.6","agent":{},"steps":[{"source":"agent","tool_calls":[{}]}]}',
            "steps.0.tool_calls.0",
        ),
        (b"\xff", "not UTF-8"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(document: bytes, reason: str) -> None:
    with pytest.raises(NotARun) as caught:
        read_run(document)
    assert str(caught.value).startswith("not an ATIF trajectory: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("minor", range(9))
def test_every_version_is_read(minor: int) -> None:
    assert run_of(user(), version=f"ATIF-v1.{minor}").schema_version == f"ATIF-v1.{minor}"


def test_turns_keep_all_steps_in_order() -> None:
    run = run_of(user(), agent(tool_calls=[call()], observation={"results": [{"content": 1}]}), agent("b"))
    turns = list(run.turns())
    assert [len(turn) for turn in turns] == [1, 3, 1]
    assert [step for turn in turns for step in turn] == run.steps


def test_the_bundled_sample_is_whole() -> None:
    data = resources.files("affidavit.samples").joinpath("support-agent.json").read_bytes()
    run = read_run(data)
    assert run.schema_version == "ATIF-v1.6"
    assert run.differences() == []
    assert (run.sums.steps, run.sums.tool_calls) == (13, 7)
    assert len({step["call_id"] for step in run.steps if step["kind"] == "tool_result"}) == 7
    assert not data.decode().isascii()
    assert json.loads(data)["steps"][3]["tool_calls"][1]["tool_call_id"] == "call_03"
