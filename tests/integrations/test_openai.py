"""OpenAI's client, attested, against a scripted model server and the real product."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from affidavit.client import SessionHandle
from affidavit.errors import SessionRefused
from affidavit.integrations.openai import attest
from affidavit.integrations.openai_streams import CutOff
from affidavit.sync import SyncSession
from examples.model_server import ModelServer, Turn, serving
from tests.support.agents import LOOPING, PARALLEL, recorded, trajectory, unsigned
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions

HI = [{"role": "user", "content": "hi"}]


def client_of(model: ModelServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0)


@asynccontextmanager
async def session_of(rig: Rig, model: ModelServer, **spec: Any) -> AsyncIterator[tuple[SessionHandle, Any]]:
    async with rig.client.session({"agent": AGENT, **spec}) as session, client_of(model) as client:
        yield session, attest(client, session)


async def chat_agent(client: Any, session: SessionHandle, *, stream: bool = False) -> str:
    """An agent as people write it: it asks, runs what the model calls, and asks again."""

    @session.tool
    async def look(q: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"seen": q}

    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "look twice"}]
    while True:
        answer = await client.chat.completions.create(model="m", messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        results = await asyncio.gather(*(look.call(c.id, c.function.arguments) for c in message.tool_calls))
        for call, result in zip(message.tool_calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


async def test_an_agent_with_parallel_calls_is_recorded_once_and_whole(running: Rig) -> None:
    with serving(*PARALLEL) as model:
        async with session_of(running, model) as (session, client):
            assert await chat_agent(client, session) == "both seen"
        events = attested(running, session.outcome)
    assert actions(events) == [
        "opened",
        "model_request",
        "model_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "model_request",
        "model_response",
    ]
    totals = session.outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (130, 27, 40)
    assert (totals.tool_calls, totals.tool_allowed, totals.tool_blocked) == (2, 2, 0)
    assert session.outcome.stop_reason == "Stop"
    requests = [c for c in running.captures(session.session_id) if c.get("kind") == "model_request"]
    assert [[m["role"] for m in request["messages"]] for request in requests] == [["system", "user"], ["tool", "tool"]]
    assert len({request["context_sha256"] for request in requests}) == 2


async def test_its_trajectory_is_valid_and_complete(running: Rig) -> None:
    with serving(*PARALLEL) as model:
        async with session_of(running, model, **unsigned()) as (session, client):
            await chat_agent(client, session)
    document = trajectory(running, session.session_id)
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    first = document["steps"][2]
    assert [call["tool_call_id"] for call in first["tool_calls"]] == ["c1", "c2"]
    assert [(r["source_call_id"], r["content"]) for r in first["observation"]["results"]] == [
        ("c1", '{"seen":1}'),
        ("c2", '{"seen":2}'),
    ]
    assert document["final_metrics"]["total_prompt_tokens"] == 130


@pytest.mark.parametrize("usage", [True, False])
async def test_a_streamed_chat_is_put_together(running: Rig, usage: bool) -> None:
    turn = Turn(text="one two", calls=[("c1", "look", '{"q":1}')], usage=(11, 7, 3) if usage else None)
    with serving(turn) as model:
        async with session_of(running, model) as (session, client):
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            chunks = [chunk async for chunk in stream]
    assert all(chunk.choices for chunk in chunks)  # the chunk with the usage was asked for by us
    events = attested(running, session.outcome)
    (answer,) = recorded(running, session.session_id, "model_response")
    assert (answer["text"], answer["finish_reason"]) == ("onetwo", "tool_calls")
    assert answer["tool_calls"] == [{"call_id": "c1", "name": "look", "arguments": {"q": 1}}]
    assert actions(events)[-1] == "model_response"
    totals = session.outcome.totals
    # Without usage the prompt is estimated: "hi" is one token.
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (
        (11, 7, 3) if usage else (1, 0, 0)
    )


async def test_the_caller_sees_the_usage_of_a_stream_that_it_has_asked_for(running: Rig) -> None:
    with serving(Turn(text="a", usage=(3, 2, 0))) as model:
        async with session_of(running, model) as (session, client):
            options = {"include_usage": True}
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=options)
            chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.prompt_tokens == 3
    assert session.outcome.totals.prompt_tokens == 3


@pytest.mark.parametrize("how", ["closed", "collected", "forgotten", "raised"])
async def test_a_dropped_stream_is_recorded_once_as_cancelled(running: Rig, how: str) -> None:
    with serving(Turn(text="one two three")) as model:
        async with session_of(running, model) as (session, client):
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            seen = [await anext(stream), await anext(stream)]
            if how == "closed":
                await stream.close()
            elif how == "collected":
                del stream
                gc.collect()
            elif how == "raised":
                with pytest.raises(ZeroDivisionError):
                    async with stream:
                        seen.append(1 // 0)
        events = attested(running, session.outcome)
    assert session.outcome.status == "closed"
    assert actions(events) == ["opened", "model_request", "model_failure"]
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert failure["reason"] == "cancelled"
    assert failure.get("extra") == (None if how == "forgotten" else {"partial_text": "one"})


async def test_a_stream_that_is_cut_off_is_a_failure_with_what_had_come(running: Rig) -> None:
    with serving(Turn(text="one two three", cut=True)) as model:
        async with session_of(running, model) as (session, client):
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            assert len([chunk async for chunk in stream]) == 2
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert failure["reason"] == "upstream_error"
    assert failure["message"] == f"{CutOff.__name__}: the stream ended before the answer did"
    assert failure["extra"] == {"partial_text": "one"}


async def test_an_error_of_the_provider_is_a_failure_with_its_status(running: Rig) -> None:
    with serving(Turn(error=503), Turn(text="now")) as model:
        async with session_of(running, model) as (session, client):
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=HI)
            await client.chat.completions.create(model="m", messages=HI)
        events = attested(running, session.outcome)
    assert actions(events) == ["opened", "model_request", "model_failure", "model_request", "model_response"]
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert (failure["reason"], failure["status"]) == ("upstream_error", 503)


async def test_the_responses_api_is_recorded_too(running: Rig) -> None:
    turns = [Turn(calls=[("c1", "look", '{"q":1}')], usage=(20, 4, 8)), Turn(text="seen", usage=(30, 6, 0))]
    with serving(*turns) as model:
        async with session_of(running, model) as (session, client):
            items: list[Any] = [{"role": "user", "content": "look"}]
            first = await client.responses.create(model="m", instructions="be brief", input=items)
            items += [item.model_dump(exclude_none=True) for item in first.output]
            items.append({"type": "function_call_output", "call_id": "c1", "output": "42"})
            stream = await client.responses.create(model="m", instructions="be brief", input=items, stream=True)
            kinds = [event.type async for event in stream]
        attested(running, session.outcome)
    assert kinds[-1] == "response.completed"
    first_request, second_request = recorded(running, session.session_id, "model_request")
    assert [m["role"] for m in first_request["messages"]] == ["system", "user"]
    assert second_request["messages"] == [{"role": "tool", "content": "42", "tool_call_id": "c1"}]
    first_answer, second_answer = recorded(running, session.session_id, "model_response")
    assert first_answer["tool_calls"] == [{"call_id": "c1", "name": "look", "arguments": {"q": 1}}]
    assert (first_answer["finish_reason"], second_answer["finish_reason"]) == ("tool_calls", "stop")
    assert second_answer["text"] == "seen"
    totals = session.outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (50, 10, 8)


async def test_the_sdks_own_stream_helper_works_on_it(running: Rig) -> None:
    with serving(Turn(text="one two", usage=(5, 2, 0))) as model:
        async with (
            session_of(running, model) as (session, client),
            client.chat.completions.stream(model="m", messages=HI) as stream,
        ):
            completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "onetwo"
    assert session.outcome.totals.prompt_tokens == 5


async def test_a_raw_response_is_recorded_and_a_raw_stream_refused(running: Rig) -> None:
    with serving(Turn(text="a", usage=(3, 2, 0))) as model:
        async with session_of(running, model) as (session, client):
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=HI)
            assert raw.parse().choices[0].message.content == "a"
            with pytest.raises(TypeError, match="cannot be attested"):
                await client.chat.completions.with_raw_response.create(model="m", messages=HI, stream=True)
    assert len(model.requests) == 1
    assert (session.outcome.status, session.outcome.totals.prompt_tokens) == ("closed", 3)


async def test_d4_a_looping_agent_is_stopped_within_three_repeats(running: Rig) -> None:
    with serving(LOOPING) as model, pytest.raises(SessionRefused, match="loop detected") as refused:
        async with session_of(running, model, breaker={"min_tokens": 0}) as (session, client):
            await chat_agent(client, session)
    assert refused.value.type == "LoopDetected"
    assert len(model.requests) == 4  # the first answer and three repeats
    assert session.outcome.status == "closed"
    assert (session.outcome.stop_reason_id, session.outcome.stop_reason) == (91, "Loop Detected")
    attested(running, session.outcome)


async def test_d4_under_inject_the_correction_reaches_the_model(running: Rig) -> None:
    with serving(LOOPING, LOOPING, LOOPING, LOOPING, Turn(text="I give up")) as model:
        breaker = {"min_tokens": 0, "action": "inject"}
        async with session_of(running, model, breaker=breaker) as (session, client):
            assert await chat_agent(client, session) == "I give up"
    assert [request["messages"][-1]["role"] for request in model.requests] == ["user", "tool", "tool", "tool", "system"]
    assert model.requests[-1]["messages"][-1]["content"].startswith("You are repeating yourself")
    last = recorded(running, session.session_id, "model_request")[-1]
    assert [message["role"] for message in last["messages"]] == ["tool", "system"]


async def test_a_synchronous_client_with_a_session_for_threads(running: Rig, sync_session: SyncSession) -> None:
    def agent() -> None:
        with serving(*PARALLEL) as model, openai.OpenAI(base_url=model.url, api_key="none", max_retries=0) as client:
            attested_client = attest(client, sync_session)
            first = attested_client.chat.completions.create(model="m", messages=HI)
            assert [call.id for call in first.choices[0].message.tool_calls] == ["c1", "c2"]
            with attested_client.chat.completions.create(model="m", messages=HI, stream=True) as stream:
                next(stream)
            sync_session.close()

    await asyncio.to_thread(agent)
    events = attested(running, sync_session.outcome)
    assert actions(events)[1:] == ["model_request", "model_response", "model_request", "model_failure"]
    assert sync_session.outcome.totals.prompt_tokens == 50


async def test_a_synchronous_client_on_the_sessions_own_loop_is_told_so(running: Rig) -> None:
    with serving(Turn(text="a")) as model, openai.OpenAI(base_url=model.url, api_key="none") as client:
        async with running.client.session({"agent": AGENT}) as session:
            with pytest.raises(RuntimeError, match="SyncSessionClient"):
                attest(client, session).chat.completions.create(model="m", messages=HI)
    assert model.requests == []
