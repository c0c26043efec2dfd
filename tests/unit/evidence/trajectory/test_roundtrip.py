"""A run that was imported and is exported again is the same run (formats.md 7, "Round trip")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from affidavit.evidence.trajectory import compare, trajectory_bytes, validate
from affidavit.importing import import_run
from tests.support.trajectories import COUNTED, Json, accept, metadata, session

PNG = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
TEXT = {"type": "text", "text": "t"}
EMBEDDED: Json = {
    "schema_version": "ATIF-v1.7",
    "trajectory_id": "sub",
    "agent": {"name": "a", "version": "1"},
    "steps": [{"step_id": 1, "source": "user", "message": "hi"}],
}


def run(*steps: Json, minor: int = 7, **root: Any) -> Json:
    return {
        "schema_version": f"ATIF-v1.{minor}",
        "session_id": "run-0",
        "agent": {"name": "builder", "version": "2.0"},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        **root,
    }


def user(message: Any = "go", **more: Any) -> Json:
    return {"source": "user", "message": message, **more}


def system(message: Any = "be good", **more: Any) -> Json:
    return {"source": "system", "message": message, **more}


def agent(*calls: str, results: Any = None, message: Any = "ok", **more: Any) -> Json:
    step = {"source": "agent", "message": message, **more}
    if calls:
        step["tool_calls"] = [{"tool_call_id": each, "function_name": "f", "arguments": {"id": each}} for each in calls]
    return step if results is None else {**step, "observation": {"results": list(results)}}


def seen(call_id: str, content: Any = "seen", **more: Any) -> Json:
    return {"source_call_id": call_id, "content": content, **more}


METRICS = {"prompt_tokens": 3, "completion_tokens": 1}

RUNS: dict[str, Json] = {
    "plain": run(system(), user(), agent(metrics=METRICS), user("more"), agent(message=""), minor=0),
    "one result for several calls": run(user(), agent("c1", "c2", results=[{"content": "both"}]), minor=0),
    "results with and without ids": run(
        agent("c1", "c2", results=[seen("c2"), {"content": "n"}, seen("c1"), seen("c1", "again")]), minor=1
    ),
    "ids used again": run(*[agent("c1", results=[seen("c1", str(turn))]) for turn in range(3)]),
    "ids without results, then used again": run(agent("c1"), agent("c1", results=[seen("c1")]), agent("c1")),
    "observation of the system": run(
        system(), system("reset", observation={"results": [{"content": "1"}, {"content": "2"}]}), user(), minor=2
    ),
    "observation without results": run(
        system(observation={"results": []}), agent(results=[]), agent("c1", results=[]), minor=2
    ),
    "parts": run(
        user([TEXT, PNG]),
        agent("c1", message=[PNG, TEXT], results=[seen("c1", [TEXT, PNG])]),
        agent(message=[]),
        minor=6,
    ),
    "reasoning, effort, model": run(
        agent(reasoning_content="", reasoning_effort="low", model_name="m"),
        agent(reasoning_effort=0.25, reasoning_content="hm"),
        agent(model_name=""),
    ),
    "metrics of every kind": run(
        agent(metrics={}),
        agent(metrics={"prompt_tokens": 3}),
        agent(metrics={**METRICS, "cached_tokens": 0, "extra": {}}),
        agent(
            metrics={
                **METRICS,
                "cached_tokens": 2,
                "cost_usd": 0.1,
                "logprobs": [-0.5, -1e-7],
                "completion_token_ids": [7],
                "prompt_token_ids": [1, 2, 3],
                "extra": {"details": {"audio": None}},
            }
        ),
    ),
    "copied context": run(
        user(is_copied_context=True),
        agent("c1", is_copied_context=True, metrics=METRICS, results=[seen("c1", "old")]),
        agent("c1", is_copied_context=False, results=[seen("c1", "new")]),
        agent("c1", is_copied_context=True, results=[seen("c1", "copy"), seen("c1", "of both")]),
        agent("c1", results=[seen("c1", "newest")]),
    ),
    "steps that no model made": run(
        agent("z", message="", llm_call_count=0, results=[seen("z")]),
        agent("z", "y", message="rule", llm_call_count=0, results=[seen("z"), seen("y")]),
        agent("w", message="", llm_call_count=0, extra={"k": 1}, results=[]),
        agent("w", message="", llm_call_count=0),
        agent(message="nothing", llm_call_count=0),
        agent(llm_call_count=4, metrics=METRICS),
        user(llm_call_count=2),
        system(llm_call_count=0),
    ),
    "subagents": run(
        agent(
            results=[
                {"subagent_trajectory_ref": [{"trajectory_id": "sub", "extra": {"ok": True}}]},
                {"content": "c", "subagent_trajectory_ref": [{"trajectory_path": "s.json", "session_id": "s"}]},
            ]
        ),
        subagent_trajectories=[EMBEDDED],
    ),
    "extras": run(
        user(extra={"k": None}),
        {
            "source": "agent",
            "message": "m",
            "extra": {"affidavit": {"usage": "theirs"}, "k": [1.0]},
            "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}, "extra": {"retry": 1}}],
            "observation": {"results": [seen("c", extra={"score": 0.5})]},
        },
    ),
    "results that look like JSON, and none": run(
        agent(results=[{"content": "[1]"}, {"content": ""}, {}, {"content": None, "source_call_id": None}])
    ),
    "arguments": run(
        {
            "source": "agent",
            "message": "",
            "tool_calls": [
                {"tool_call_id": "c", "function_name": "f", "arguments": {"n": None, "x": [1.5, {"\uff21": "é"}]}}
            ],
        }
    ),
    "an empty list of calls": run(agent(tool_calls=[])),
    "nulls": run(
        agent(tool_calls=None, metrics=None, observation=None, reasoning_content=None, extra=None, model_name=None)
    ),
    "root fields": run(
        user(),
        notes="n",
        continued_trajectory_ref="next.json",
        extra={"k": 1},
        final_metrics={"total_steps": 7},
    ),
}


def exported(document: Json) -> Json:
    run = import_run(document)
    registration = run.spec(mode="unsigned", instance_uid="instance-1").registration()
    steps = [{**step, "counted": COUNTED} if step["kind"] == "model_response" else step for step in run.steps]
    made: Json = json.loads(trajectory_bytes(metadata(**registration), session(*steps)))
    accept(made)
    return made


@pytest.mark.parametrize("name", RUNS)
def test_an_imported_run_comes_out_as_it_went_in(name: str) -> None:
    assert validate(RUNS[name]) == []
    export = exported(RUNS[name])
    assert compare(RUNS[name], export) == []
    # And once more, from the export.
    assert compare(export, exported(export)) == []


def test_what_the_root_of_a_run_says_is_kept() -> None:
    export = exported(RUNS["root fields"])
    assert (export["notes"], export["continued_trajectory_ref"]) == ("n", "next.json")
    assert export["extra"]["k"] == 1
    assert export["extra"]["affidavit"]["external_ref"] == "run-0"
    assert export["extra"]["affidavit"]["original_final_metrics"] == {"total_steps": 7}
    assert export["final_metrics"]["total_steps"] == 1
    assert exported(RUNS["subagents"])["subagent_trajectories"] == [EMBEDDED]


def test_original_times_stand_beside_the_admitted_ones() -> None:
    (step,) = exported(run(user(timestamp="2020-02-02T00:00:00Z")))["steps"]
    assert step["timestamp"] == "2023-11-14T22:13:21.000Z"
    assert step["extra"] == {"affidavit": {"original_timestamp": "2020-02-02T00:00:00Z"}}


def test_what_v1_7_cannot_say_is_a_difference_and_still_kept() -> None:
    wav = {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}}
    document = run(agent(message=[wav]), minor=8)
    export = exported(document)
    assert [each.path for each in compare(document, export)] == [
        "steps.0.message.0.type",
        "steps.0.message.0.source",
        "steps.0.message.0.text",
    ]
    assert export["steps"][0]["extra"]["affidavit"]["audio"] == [{"index": 0, "part": wav}]
