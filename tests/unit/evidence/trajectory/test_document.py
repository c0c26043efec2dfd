"""The trajectory as a document: its bytes, its root, its sums; case 22."""

from __future__ import annotations

import json
from typing import Any

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.trajectory import read_trajectory, trajectory_bytes
from tests.support.trajectories import (
    COUNTED,
    USAGE,
    accept,
    call,
    export,
    metadata,
    request,
    response,
    result,
    session,
    user,
    verdict,
)


def test_the_bytes_of_a_trajectory() -> None:
    data = trajectory_bytes(
        metadata(model_name="model-1", external_ref="run-0"),
        session(request(user("h\u00e9\n\u2028")), response(usage={**USAGE, "cost_usd": 2.0}), result([])),
    )
    assert (
        data.decode()
        == """{
  "agent": {
    "extra": {
      "charter": {
        "name": "builder",
        "type_id": 1
      },
      "instance_uid": "instance-1"
    },
    "model_name": "model-1",
    "name": "builder",
    "version": "2.0"
  },
  "extra": {
    "affidavit": {
      "external_ref": "run-0",
      "generation": "run-1",
      "product_version": "0.1.0",
      "registration_sha256": "abababababababababababababababababababababababababababababababab"
    }
  },
  "final_metrics": {
    "extra": {
      "cost_usd_micros": 0,
      "stop_reason_id": 4,
      "tool_allowed": 0,
      "tool_blocked": 0,
      "tool_calls": 0
    },
    "total_cached_tokens": 0,
    "total_completion_tokens": 2,
    "total_cost_usd": 2,
    "total_prompt_tokens": 10,
    "total_steps": 2
  },
  "schema_version": "ATIF-v1.7",
  "session_id": "session-1",
  "steps": [
    {
      "message": "h\u00e9\\n\u2028",
      "source": "user",
      "step_id": 1,
      "timestamp": "2023-11-14T22:13:21.000Z"
    },
    {
      "llm_call_count": 1,
      "message": "ok",
      "metrics": {
        "cached_tokens": 0,
        "completion_tokens": 2,
        "cost_usd": 2,
        "prompt_tokens": 10
      },
      "observation": {
        "results": [
          {
            "content": "[]",
            "extra": {
              "affidavit": {
                "content_type": "application/json"
              }
            }
          }
        ]
      },
      "source": "agent",
      "step_id": 2,
      "timestamp": "2023-11-14T22:13:22.000Z"
    }
  ],
  "trajectory_id": "trajectory-1"
}
"""
    )


def test_case17_keys_are_in_utf16_order() -> None:
    data = trajectory_bytes(metadata(), session(response(call(arguments={"\uff21": 1, "\U00010000": 2, "z": []}))))
    assert (
        '"arguments": {\n            "z": [],\n            "\U00010000": 2,\n            "\uff21": 1\n' in data.decode()
    )


def test_root_fields_given_at_open_are_kept() -> None:
    document = export(
        response(),
        tool_definitions=[{"type": "function"}],
        originator="cli",
        trajectory_extra={
            "notes": "n",
            "continued_trajectory_ref": "next.json",
            "extra": {"k": 1, "affidavit": {"original_final_metrics": {"total_steps": 9}}},
            "experiment": "blue",
        },
    )
    assert document["notes"] == "n"
    assert document["continued_trajectory_ref"] == "next.json"
    assert document["agent"]["tool_definitions"] == [{"type": "function"}]
    assert document["extra"] == {
        "k": 1,
        "experiment": "blue",
        "affidavit": {
            "original_final_metrics": {"total_steps": 9},
            "product_version": "0.1.0",
            "generation": "run-1",
            "registration_sha256": "ab" * 32,
            "originator": "cli",
        },
    }


def test_root_fields_that_cannot_stand_are_kept_aside() -> None:
    bad = {"notes": 5, "steps": [], "extra": {"k": 1}, "k": 2, "subagent_trajectories": [{"trajectory_id": "x"}]}
    document = export(response(), tool_definitions=["look"], trajectory_extra=bad)
    assert "notes" not in document
    assert "subagent_trajectories" not in document
    assert "tool_definitions" not in document["agent"]
    assert document["extra"]["k"] == 1
    assert document["extra"]["affidavit"]["tool_definitions"] == ["look"]
    assert document["extra"]["affidavit"]["trajectory_extra"] == {
        "notes": 5,
        "steps": [],
        "k": 2,
        "subagent_trajectories": [{"trajectory_id": "x"}],
    }


def test_final_metrics_are_the_sums_and_copied_steps_are_not_counted_twice() -> None:
    document = export(
        response(call(), usage={**USAGE, "cached_tokens": 3, "cost_usd": 0.1}),
        verdict(),
        verdict("c2", allowed=False, stage="budget"),
        response(usage={**USAGE, "cost_usd": 0.2}),
        response(usage={"prompt_tokens": 1, "completion_tokens": 1, "cost_usd_micros": 300_000}),
        {"kind": "model_response", "text": "", "counted": COUNTED},
        response(copied=True, usage={"prompt_tokens": 1000, "completion_tokens": 1000, "cost_usd": 9.0}),
    )
    assert document["final_metrics"] == {
        "total_steps": 6,
        "total_prompt_tokens": 28,
        "total_completion_tokens": 5,
        "total_cached_tokens": 3,
        "total_cost_usd": 0.6,
        "extra": {
            "tool_calls": 2,
            "tool_allowed": 1,
            "tool_blocked": 1,
            "cost_usd_micros": 300_000,
            "stop_reason_id": 4,
        },
    }
    assert "total_cost_usd" not in export(response())["final_metrics"]


def test_steps_are_numbered_and_timed() -> None:
    document = export(request(user(), user()), response(claimed_time="2020-01-01T00:00:00Z"))
    assert [(step["step_id"], step["timestamp"]) for step in document["steps"]] == [
        (1, "2023-11-14T22:13:21.000Z"),
        (2, "2023-11-14T22:13:21.000Z"),
        (3, "2023-11-14T22:13:22.000Z"),
    ]
    assert document["steps"][2]["extra"] == {"affidavit": {"claimed_time": "2020-01-01T00:00:00Z"}}


def test_case22_whatever_a_runtime_reports_the_file_conforms() -> None:
    document = export(
        request(user("go", tool_calls=[call("s")])),  # calls where there can be none
        result("before its call", call_id="c1"),
        response(call("c1"), call("c1", arguments={"q": 2}), usage={}, counted=COUNTED),  # one id twice, no metrics
        verdict("c1"),
        result({"rows": []}, call_id="c1"),
        result("no call at all", call_id="nobody"),
        result("no id"),
        trajectory_extra={"continued_trajectory_ref": "before-the-rollover.json"},
    )
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3, 4]
    assert [step["source"] for step in document["steps"]] == ["user", "system", "agent", "system"]
    assert [
        step["extra"]["affidavit"]["orphan_call_id"] for step in document["steps"] if step["source"] == "system"
    ] == [
        "c1",
        "nobody",
    ]
    assert document["final_metrics"]["total_prompt_tokens"] == 7
    assert document["final_metrics"]["total_steps"] == 4
    assert document["continued_trajectory_ref"] == "before-the-rollover.json"


def test_the_order_of_canonical_json_holds_at_every_depth() -> None:
    value = {"b": {"\uff21": 1, "\U00010000": 2}, "a": [{"d": 1, "c": 2}]}
    data = trajectory_bytes(metadata(), session(response(call(arguments=value))))
    compact = json.dumps(json.loads(data), ensure_ascii=False, separators=(",", ":")).encode()
    assert canonicalize(json.loads(data)) == compact


def test_nesting_at_its_bound_can_be_read_again() -> None:
    deep: Any = "leaf"
    for _ in range(96):
        deep = [deep]
    data = trajectory_bytes(
        metadata(trajectory_extra={"steps": [deep], "extra": {"k": deep}}),
        session(
            response(
                call(arguments={"q": deep[0]}), extra={"affidavit": {"finish_reason": deep}}, finish_reason="stop"
            ),
            verdict(arguments={"q": [deep[0][0], 1]}, extra={"k": deep}),
        ),
    )
    document = read_trajectory(data, profile="writer")
    accept(document)
    assert document["extra"]["k"] == deep
    for _ in range(28):
        deep = [deep]  # 124 levels: as deep as a registration can have it
    deepest = metadata(trajectory_extra={"steps": deep, "extra": {"k": deep}})
    document = read_trajectory(trajectory_bytes(deepest, session(response())), profile="writer")
    accept(document)
    assert document["extra"]["k"]["why"] == "depth"
    assert document["extra"]["affidavit"]["trajectory_extra"]["steps"]["text"] == "[" * 124 + '"leaf"' + "]" * 124
