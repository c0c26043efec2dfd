"""The trajectory of a session, construct by construct: calls, verdicts, results, and what nobody said."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.support.trajectories import (
    METRICS,
    PNG,
    USAGE,
    Json,
    agent,
    call,
    export,
    exported_steps,
    made,
    observed,
    ours,
    own,
    request,
    response,
    result,
    user,
    verdict,
)


def test_a_verdict_goes_into_the_call_that_was_announced() -> None:
    (step,) = exported_steps(
        response(call("c1"), call("c2", extra={"k": 1})),
        verdict("c2", allowed=False, stage="policy", reason="no", arguments={"q": 1.0}),
        verdict("c1", arguments={"q": 2}, claimed_time="2025-01-01T00:00:00Z"),
    )
    assert step == agent(
        made("c1", allowed=True, executed_arguments={"q": 2}, claimed_time="2025-01-01T00:00:00Z"),
        {
            "tool_call_id": "c2",
            "function_name": "look",
            "arguments": {"q": 1},
            "extra": {"k": 1, "affidavit": {"allowed": False, "stage": "policy", "reason": "no"}},
        },
    )


def test_true_is_not_1_among_executed_arguments() -> None:
    (step,) = exported_steps(response(call(arguments={"q": 1})), verdict(arguments={"q": True}))
    assert step["tool_calls"] == [made(arguments={"q": 1}, allowed=True, executed_arguments={"q": True})]


def test_a_second_verdict_does_not_replace_the_first() -> None:
    (step,) = exported_steps(
        response(call()),
        verdict(allowed=False, stage="budget"),
        verdict(tool="peek", extra={"by": "ann"}),
    )
    assert step["tool_calls"] == [
        made(
            allowed=False,
            stage="budget",
            further_verdicts=[{"allowed": True, "executed_tool": "peek", "verdict_extra": {"by": "ann"}}],
        )
    ]


def test_a_call_that_nobody_announced_is_a_step() -> None:
    steps = exported_steps(
        verdict("c9", arguments={"a": []}, extra={"k": 1}),
        verdict("c9", allowed=False, stage="parse"),
        result("late", call_id="c9"),
    )
    assert steps == [
        {
            "source": "agent",
            "message": "",
            "llm_call_count": 0,
            "tool_calls": [made("c9", arguments={"a": []}, allowed=True)],
            "extra": {"k": 1},
        },
        {
            "source": "agent",
            "message": "",
            "llm_call_count": 0,
            "tool_calls": [made("c9", arguments={}, allowed=False, stage="parse")],
            **observed({"source_call_id": "c9", "content": "late"}),
        },
    ]


def test_null_arguments_are_empty_and_marked() -> None:
    announced, direct = exported_steps(
        {"kind": "model_response", "tool_calls": [{"call_id": "c1", "name": "f", "arguments": None}], "usage": USAGE},
        verdict("c1", tool="f", arguments=None),
        verdict("c2", tool="f", arguments=None),
    )
    assert announced["tool_calls"][0]["arguments"] == {}
    assert announced["tool_calls"][0]["extra"]["affidavit"]["arguments"] == "null"
    assert "executed_arguments" not in announced["tool_calls"][0]["extra"]["affidavit"]
    assert direct["tool_calls"] == [
        {"tool_call_id": "c2", "function_name": "f", "arguments": {}, **ours(allowed=True, arguments="null")}
    ]
    assert "extra" not in direct


def test_argument_text_that_is_no_object_stays_as_its_wrapper() -> None:
    (step,) = exported_steps(response(call(arguments='{"q":')))
    assert step["tool_calls"][0]["arguments"] == {
        "encoding": "json-text",
        "text": '"{\\"q\\":"',
        "sha256": hashlib.sha256(b'"{\\"q\\":"').hexdigest(),
        "why": "not_object",
    }


def test_the_same_call_id_twice_in_a_step_keeps_the_second_in_extra() -> None:
    (step,) = exported_steps(
        response(call("c1"), call("c1", arguments={"q": 2}), call("c2")),
        verdict("c2"),
        verdict("c1"),
        result(call_id="c1"),
    )
    assert step == agent(
        made("c1", allowed=True),
        made("c2", allowed=True),
        **observed({"source_call_id": "c1", "content": "seen"}),
        **ours(duplicate_tool_calls=[call("c1", arguments={"q": 2})]),
    )


def test_a_reused_call_id_belongs_to_its_latest_holder() -> None:
    first, second = exported_steps(
        response(call(), text="one"),
        verdict(),
        response(call(), text="two"),
        verdict(allowed=False, stage="schema"),
        result("for two", call_id="c1"),
        result("again for two", call_id="c1"),
    )
    assert first == agent(made(allowed=True), message="one")
    assert second == agent(
        made(allowed=False, stage="schema"),
        message="two",
        **observed(
            {"source_call_id": "c1", "content": "for two"},
            {"source_call_id": "c1", "content": "again for two"},
        ),
    )


def test_call_ids_of_copied_steps_never_match_later_calls() -> None:
    steps = exported_steps(
        request({"role": "assistant", "content": "old", "tool_calls": [call("c1")]}, user("go on")),
        response(call("c2"), text="older", copied=True),
        verdict("c1"),
        verdict("c2"),
    )
    assert [step.get("llm_call_count") for step in steps] == [None, None, None, 0, 0]
    assert steps[0]["tool_calls"] == [made("c1")]
    assert steps[2] == {
        "source": "agent",
        "message": "older",
        "is_copied_context": True,
        "metrics": METRICS,
        "tool_calls": [made("c2")],
    }
    assert steps[3]["tool_calls"] == [made("c1", arguments={}, allowed=True)]


def test_copied_history_keeps_its_own_results() -> None:
    steps = exported_steps(
        response(call()),
        result("now", call_id="c1"),
        request(
            {"role": "assistant", "content": "", "tool_calls": [call()], "copied": True},
            {"role": "tool", "content": "now", "tool_call_id": "c1", "copied": True},
        ),
        response(copied=True, text="then"),
        result("then", call_id="c1"),
    )
    assert steps[0]["observation"]["results"] == [{"source_call_id": "c1", "content": "now"}]
    assert [each["content"] for each in steps[1]["observation"]["results"]] == ["now", "then"]
    assert len(steps) == 3


def test_a_live_call_gets_its_result_though_history_was_sent_again() -> None:
    live, copy = exported_steps(
        response(call()),
        request({"role": "assistant", "content": "", "tool_calls": [call()], "copied": True}),
        result(call_id="c1"),
    )
    assert live["observation"]["results"] == [{"source_call_id": "c1", "content": "seen"}]
    assert "observation" not in copy


# -- results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"b": 1.0, "a": [None, "é"]}, '{"a":[null,"é"],"b":1}'),
        ([1, {"\U00010000": 1, "\uff21": 2}], '[1,{"\U00010000":1,"\uff21":2}]'),
        ([], "[]"),
        ([{"type": "image", "data": "…"}], '[{"data":"…","type":"image"}]'),
        (True, "true"),
        (1e-7, "1e-7"),
    ],
)
def test_json_results_are_their_canonical_text(content: Any, shown: str) -> None:
    (step,) = exported_steps(response(call()), result(content, call_id="c1", extra={"k": 1}))
    assert step["observation"]["results"] == [
        {
            "source_call_id": "c1",
            "content": shown,
            "extra": {"k": 1, "affidavit": {"content_type": "application/json"}},
        }
    ]


def test_results_keep_parts_failures_times_and_what_json_cannot_carry() -> None:
    (step,) = exported_steps(
        response(call()),
        result([{"type": "text", "text": "a"}, PNG], call_id="c1"),
        result("boom", call_id="c1", ok=False, claimed_time=5),
        result(None, call_id="c1"),
        result(2**60, call_id="c1"),
        result("\ud800", call_id="c1"),
        result({"encoding": "json-text", "text": 5, "sha256": "", "why": ""}, call_id="c1"),
    )
    assert [{**each, "source_call_id": None} for each in step["observation"]["results"]] == [
        {"source_call_id": None, "content": [{"type": "text", "text": "a"}, PNG]},
        {"source_call_id": None, "content": "boom", **ours(ok=False, claimed_time=5)},
        {"source_call_id": None},
        {"source_call_id": None, "content": "1152921504606846976", **ours(encoding={"content": "big_integer"})},
        {"source_call_id": None, "content": '"\\ud800"', **ours(encoding={"content": "lone_surrogate"})},
        {
            "source_call_id": None,
            "content": '{"encoding":"json-text","sha256":"","text":5,"why":""}',
            **ours(content_type="application/json"),
        },
    ]


def test_a_result_without_call_id_goes_to_the_latest_agent_step() -> None:
    first, second, last = exported_steps(
        response(text="one"), verdict("c9"), result("for the call"), request(user()), result("late")
    )
    assert "observation" not in first
    assert second["observation"]["results"] == [{"content": "for the call"}, {"content": "late"}]
    assert last == {"source": "user", "message": "hi"}


def test_a_result_before_any_agent_step_goes_to_the_last_message() -> None:
    steps = exported_steps(
        request(user("a"), {"role": "system", "content": "reset"}), result("done"), result("and done")
    )
    assert steps[1] == {
        "source": "system",
        "message": "reset",
        **observed({"content": "done"}, {"content": "and done"}),
    }


def test_a_user_step_has_no_observation_so_its_results_stand_behind_it() -> None:
    steps = exported_steps(request(user()), result("early"), result("too"), response(), result("asked", on="request"))
    assert steps == [
        {"source": "user", "message": "hi"},
        {
            "source": "system",
            "message": "",
            **observed({"content": "early"}, {"content": "too"}, {"content": "asked", **ours(on="request")}),
        },
        agent(),
    ]


def test_a_result_on_request_belongs_to_the_last_message() -> None:
    first, second = exported_steps(
        response(), request({"role": "system", "content": "s"}), result("x", on="request"), result("y")
    )
    assert second["observation"]["results"] == [{"content": "x", **ours(on="request")}]
    assert first["observation"]["results"] == [{"content": "y"}]


def test_a_result_before_anything_is_a_step() -> None:
    assert exported_steps(result()) == [{"source": "system", "message": "", **observed({"content": "seen"})}]


def test_an_orphan_result_is_kept_and_marked() -> None:
    steps = exported_steps(
        request(user()), result("early", call_id="c1"), response(call()), result("right", call_id="c1")
    )
    assert steps[1] == {
        "source": "system",
        "message": "",
        **observed({"content": "early"}),
        **ours(orphan_call_id="c1"),
    }
    assert steps[2]["observation"]["results"] == [{"source_call_id": "c1", "content": "right"}]
    (on_system,) = exported_steps(request({"role": "system", "content": "s"}), result(call_id="x", on="request"))
    assert on_system["observation"]["results"] == [{"content": "seen", **ours(on="request", orphan_call_id="x")}]


def test_a_tool_message_is_a_result_only_if_nobody_reported_one() -> None:
    def tool(content: str, **more: Any) -> Json:
        return {"role": "tool", "content": content, **more}

    (step,) = exported_steps(
        response(call("c1"), call("c2"), call("c3")),
        result("1", call_id="c1"),
        request(
            tool("1 again", tool_call_id="c1"),
            tool("2", tool_call_id="c2", name="look", extra={"k": 1}),
            tool("3 \ud800", tool_call_id="c3"),
            tool("bare"),
        ),
        request(tool("2 again", tool_call_id="c2", copied=True)),
    )
    assert step["observation"]["results"] == [
        {"source_call_id": "c1", "content": "1"},
        {"source_call_id": "c2", "content": "2", "extra": {"k": 1, "affidavit": {"name": "look"}}},
        {"source_call_id": "c3", "content": '"3 \\ud800"', **ours(encoding={"content": "lone_surrogate"})},
        {"content": "bare"},
    ]
    announced, second, direct = exported_steps(
        response(call("c1")),
        request(tool("one", tool_call_id="c1")),
        response(call("c1")),
        request(tool("two", tool_call_id="c1")),
        verdict("c9"),
        result("nine", call_id="c9"),
        verdict("c9"),
        request(tool("nine again", tool_call_id="c9")),
    )[1:]
    assert announced["observation"]["results"] == [{"source_call_id": "c1", "content": "two"}]
    assert direct["observation"]["results"] == [{"source_call_id": "c9", "content": "nine again"}]
    assert second["observation"]["results"] == [{"source_call_id": "c9", "content": "nine"}]
    (orphan,) = exported_steps(request(tool("x", tool_call_id="c8", copied=True)))
    assert orphan == {
        "source": "system",
        "message": "",
        "is_copied_context": True,
        **observed({"content": "x"}),
        **ours(orphan_call_id="c8"),
    }


def test_subagent_references_stay_where_they_resolve() -> None:
    embedded = {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": "sub",
        "agent": {"name": "a", "version": "1"},
        "steps": [{"step_id": 1, "source": "user", "message": "hi"}],
    }
    seen = {"content": "c", "subagent_trajectory_ref": [{"trajectory_id": "sub"}]}
    sibling = {
        **embedded,
        "trajectory_id": "sibling",
        "steps": [{"step_id": 1, "source": "agent", "message": "", **observed(seen)}],
    }
    document = export(
        response(),
        result(None, subagent_trajectory_ref={"trajectory_id": "sub", "session_id": None}),
        result("see", subagent_trajectory_ref=[{"trajectory_path": "sub.json", "session_id": "s"}]),
        result("?", subagent_trajectory_ref=[{"trajectory_id": "nowhere"}]),
        result("!", subagent_trajectory_ref={"session_id": "s"}),
        trajectory_extra={"subagent_trajectories": [embedded, sibling]},
    )
    assert document["subagent_trajectories"] == [embedded, sibling]
    assert document["steps"][0]["observation"]["results"] == [
        {"subagent_trajectory_ref": [{"trajectory_id": "sub"}]},
        {"content": "see", "subagent_trajectory_ref": [{"trajectory_path": "sub.json", "session_id": "s"}]},
        {"content": "?", **ours(subagent_trajectory_ref=[{"trajectory_id": "nowhere"}])},
        {"content": "!", **ours(subagent_trajectory_ref={"session_id": "s"})},
    ]


# -- what nobody said ---------------------------------------------------------------------------------


def test_failures_refusals_and_rejected_messages_are_system_steps() -> None:
    steps = exported_steps(
        {"kind": "model_failure", "reason": "timeout", "status": 504, "message": "gone", "extra": {"k": 1}},
        own("refused", reason="loop detected", count=3),
        own("cancel_requested", by="ann"),
        own("message_rejected", name="tool_call", reason="producer_seq: not a number", sha256="ab" * 32, bytes=9),
    )
    assert steps == [
        {
            "source": "system",
            "message": "timeout",
            "extra": {"k": 1, "affidavit": {"action": "model_failure", "status": 504, "message": "gone"}},
        },
        {"source": "system", "message": "loop detected", **ours(action="refused", count=3)},
        {
            "source": "system",
            "message": "producer_seq: not a number",
            **ours(action="message_rejected", name="tool_call", sha256="ab" * 32, bytes=9),
        },
    ]


def test_what_a_reporter_put_under_our_key_moves_aside() -> None:
    taken, other, same = exported_steps(
        response(extra={"affidavit": {"finish_reason": "mine"}}, finish_reason="stop"),
        response(extra={"affidavit": "text"}, finish_reason="stop"),
        response(extra={"affidavit": {"finish_reason": "stop", "more": 1}}, finish_reason="stop"),
    )
    assert taken["extra"] == {"affidavit": {"reported": {"finish_reason": "mine"}, "finish_reason": "stop"}}
    assert other["extra"] == {"affidavit": {"reported": "text", "finish_reason": "stop"}}
    assert same["extra"] == {"affidavit": {"finish_reason": "stop", "more": 1}}
