"""The trajectory of a session: one literal per construct of formats.md 7's table. Here: messages and responses."""

from __future__ import annotations

import math

from tests.support.trajectories import (
    COUNTED,
    METRICS,
    PNG,
    USAGE,
    agent,
    call,
    exported_steps,
    made,
    ours,
    request,
    response,
    result,
    user,
)

# -- messages -----------------------------------------------------------------------------------------


def test_each_message_of_a_request_is_a_step_of_its_role() -> None:
    steps = exported_steps(
        request(
            {"role": "system", "content": "be good"},
            {"role": "developer", "content": "be terse"},
            user("hi", name="ann"),
            {"role": "assistant", "content": "hello", "reasoning": "greet", "tool_calls": [call()]},
            user("again", copied=True),
        )
    )
    assert steps == [
        {"source": "system", "message": "be good"},
        {"source": "system", "message": "be terse", **ours(role="developer")},
        {"source": "user", "message": "hi", **ours(name="ann")},
        {
            "source": "agent",
            "message": "hello",
            "reasoning_content": "greet",
            "tool_calls": [made()],
            "is_copied_context": True,
        },
        {"source": "user", "message": "again", "is_copied_context": True},
    ]


def test_content_parts_are_kept_and_foreign_ones_become_text() -> None:
    text = {"type": "text", "text": "see"}
    url = {"type": "image_url", "image_url": {"url": "a", "n": 1.0}}
    (step,) = exported_steps(request(user([text, PNG, url])))
    shown = {"type": "text", "text": '{"image_url":{"n":1,"url":"a"},"type":"image_url"}'}
    assert step == {"source": "user", "message": [text, PNG, shown], **ours(json_parts=[2])}


def test_audio_becomes_a_text_that_names_its_path() -> None:
    wav = {"type": "audio", "source": {"media_type": "audio/wav", "path": "talk/a.wav", "duration_sec": 2.5}}
    steps = exported_steps(request(user([PNG, wav])), response(), result([wav]))
    named = {"type": "text", "text": "[audio: talk/a.wav]"}
    assert steps[0]["message"] == [PNG, named]
    assert steps[0]["extra"] == {"affidavit": {"audio": [{"index": 1, "part": wav}]}}
    assert steps[1]["observation"]["results"] == [
        {"content": [named], "extra": {"affidavit": {"audio": [{"index": 0, "part": wav}]}}}
    ]


def test_what_a_request_says_as_a_whole_stands_on_its_last_message() -> None:
    tools = [{"name": "look"}]
    first, last = exported_steps(
        request(user("a"), user("b", extra={"k": 1}), model="m", tools=tools, tokens_before=9, extra={"run": 2})
    )
    assert first == {"source": "user", "message": "a"}
    assert last["extra"] == {
        "k": 1,
        "affidavit": {"request": {"model": "m", "tools": tools, "tokens_before": 9, "extra": {"run": 2}}},
    }


def test_a_tool_message_is_not_the_last_message_of_a_request() -> None:
    tool = {"role": "tool", "content": "late", "tool_call_id": "c1"}
    _, asked = exported_steps(response(call()), request(user(), tool, model="m"))
    assert asked == {"source": "user", "message": "hi", **ours(request={"model": "m"})}


def test_a_user_message_with_calls_keeps_them_beside_it() -> None:
    (step,) = exported_steps(request(user("hi", tool_calls=[call()], reasoning="why", tool_call_id="x")))
    assert step == {"source": "user", "message": "hi", **ours(tool_calls=[call()], reasoning="why", tool_call_id="x")}


# -- responses and their metrics ----------------------------------------------------------------------


def test_a_response_is_an_agent_step_with_its_usage_as_reported() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "cached_tokens": 4,
        "cost_usd": 0.25,
        "logprobs": [-0.5, -1e-7],
        "completion_token_ids": [1, 2],
        "prompt_token_ids": [3],
        "extra": {"tier": "fast"},
    }
    (step,) = exported_steps(
        response(
            usage=usage,
            reasoning="because",
            reasoning_effort=0.5,
            model="model-1",
            finish_reason="stop",
            llm_call_count=3,
            extra={"k": [None]},
        )
    )
    assert step == {
        "source": "agent",
        "message": "ok",
        "model_name": "model-1",
        "reasoning_content": "because",
        "reasoning_effort": 0.5,
        "llm_call_count": 3,
        "metrics": usage,
        "extra": {"k": [None], "affidavit": {"finish_reason": "stop"}},
    }


def test_absent_cost_stays_absent_and_absent_cached_tokens_are_0() -> None:
    (step,) = exported_steps(response())
    assert step == {"source": "agent", "message": "ok", "llm_call_count": 1, "metrics": METRICS}


def test_no_usage_at_all_is_the_estimate_and_says_so() -> None:
    (step,) = exported_steps({"kind": "model_response", "text": "ok", "counted": COUNTED})
    assert step == {
        "source": "agent",
        "message": "ok",
        "llm_call_count": 1,
        "metrics": {"prompt_tokens": 7, "completion_tokens": 0, "cached_tokens": 0},
        **ours(usage="estimated"),
    }


def test_nothing_is_estimated_for_a_copied_response() -> None:
    bare, counted = exported_steps(
        {"kind": "model_response", "text": "old", "copied": True, "counted": COUNTED},
        response(copied=True, usage={"completion_tokens": 2}, counted=COUNTED),
    )
    assert bare == {"source": "agent", "message": "old", "is_copied_context": True}
    assert counted["metrics"] == {"completion_tokens": 2, "cached_tokens": 0}


def test_a_count_that_usage_lacks_is_estimated_and_named() -> None:
    (step,) = exported_steps(response(usage={"completion_tokens": 3, "extra": {"k": 1}}, counted=COUNTED))
    assert step["metrics"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "extra": {"k": 1, "affidavit": {"estimated": ["prompt_tokens"]}},
    }
    assert "extra" not in step


def test_usage_that_atif_cannot_hold_stands_beside_it() -> None:
    usage = {**USAGE, "cost_usd_micros": 1500, "logprobs": [{"token": "a"}], "completion_token_ids": ["x"]}
    (step,) = exported_steps(response(usage=usage))
    assert step["metrics"] == {
        **METRICS,
        "cost_usd": 0.0015,
        "extra": {"affidavit": {"cost_usd_micros": 1500, "logprobs": [{"token": "a"}], "completion_token_ids": ["x"]}},
    }


def test_a_response_that_no_model_made() -> None:
    plain, counted, reasoned = exported_steps(
        {"kind": "model_response", "text": "rule", "llm_call_count": 0},
        response(llm_call_count=0),
        {"kind": "model_response", "text": "r", "reasoning": "hm", "llm_call_count": 0, "counted": COUNTED},
    )
    assert plain == {"source": "agent", "message": "rule", "llm_call_count": 0}
    # It says two things that cannot both be; what was counted stands.
    assert counted == {"source": "agent", "message": "ok", "metrics": METRICS, **ours(llm_call_count=0)}
    assert reasoned["reasoning_content"] == "hm"
    assert reasoned["extra"] == {"affidavit": {"llm_call_count": 0, "usage": "estimated"}}


def test_case18_texts_that_json_cannot_carry_stay_texts() -> None:
    first, second, third = exported_steps(
        request(user("a"), user("half \ud83d")), response(text="\udc00", reasoning_effort=math.inf)
    )
    assert "extra" not in first
    assert second == {"source": "user", "message": '"half \\ud83d"', **ours(encoding={"content": "lone_surrogate"})}
    assert third["message"] == '"\\udc00"'
    assert third["extra"]["affidavit"]["encoding"] == {"text": "lone_surrogate"}
    assert third["extra"]["affidavit"]["reasoning_effort"]["text"] == "Infinity"


def test_a_tripped_response_is_a_step_like_any_other() -> None:
    (step,) = exported_steps(response(action="breaker_tripped"))
    assert step == agent(**ours(breaker="tripped"))
