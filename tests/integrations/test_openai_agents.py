"""OpenAI's Agents SDK with the tracing processor, against a scripted model server and the real product."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_trace_processors,
)

from affidavit.errors import SessionRefused
from affidavit.integrations.openai_agents import AffidavitTracing
from examples.model_server import ModelServer, Turn, serving
from tests.support.agents import LOOPING, PARALLEL, recorded, trajectory
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions

MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


@function_tool
async def look(q: int) -> str:
    """Look."""
    await asyncio.sleep(0)
    return f"seen {q}"


@function_tool
async def broken(q: int) -> str:
    """Break."""
    raise ValueError(f"no {q}")


@asynccontextmanager
async def agent_of(server: ModelServer, session: Any, api: str = "chat") -> AsyncIterator[tuple[Any, AffidavitTracing]]:
    tracing = AffidavitTracing(session)
    set_trace_processors([tracing])
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        model = MODELS[api](model="m", openai_client=client)
        settings = ModelSettings(include_usage=True)
        tools = [look, broken]
        yield Agent(name="a", instructions="be brief", model=model, tools=tools, model_settings=settings), tracing
    set_trace_processors([])


async def run(agent: Any, ask: str, hooks: AffidavitTracing, *, streamed: bool) -> str:
    if not streamed:
        return str((await Runner.run(agent, ask, hooks=hooks)).final_output)
    result = Runner.run_streamed(agent, ask, hooks=hooks)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_with_parallel_calls_is_recorded_once_and_whole(running: Rig, api: str, streamed: bool) -> None:
    with serving(*PARALLEL) as server:
        async with (
            running.client.session({"agent": AGENT}) as session,
            agent_of(server, session, api) as (agent, hooks),
        ):
            final = await run(agent, "look twice", hooks, streamed=streamed)
        events = attested(running, session.outcome)
    assert final in ("both seen", "bothseen")  # a streamed chat loses the spaces in the script
    assert actions(events)[:3] == ["opened", "model_request", "model_response"]
    assert sorted(actions(events)[3:7]) == ["tool_call", "tool_call", "tool_result", "tool_result"]
    assert actions(events)[7:] == ["model_request", "model_response"]
    totals = session.outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (130, 27, 40)
    assert (totals.tool_calls, totals.tool_allowed, totals.tool_blocked) == (2, 2, 0)
    first, second = recorded(running, session.session_id, "model_request")
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert [message["role"] for message in second["messages"]] == ["tool", "tool"]


async def test_its_trajectory_is_valid_and_complete(running: Rig) -> None:
    with serving(*PARALLEL) as server:
        spec = {"agent": AGENT, "mode": "unsigned"}
        async with running.client.session(spec) as session, agent_of(server, session) as (agent, hooks):
            await Runner.run(agent, "look twice", hooks=hooks)
    document = trajectory(running, session.session_id)
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    results = document["steps"][2]["observation"]["results"]
    assert sorted((r["source_call_id"], r["content"]) for r in results) == [("c1", "seen 1"), ("c2", "seen 2")]


async def test_missing_usage_is_estimated_and_not_zero(running: Rig) -> None:
    with serving(Turn(text="done", usage=None)) as server:
        async with running.client.session({"agent": AGENT}) as session, agent_of(server, session) as (agent, hooks):
            await Runner.run(agent, "look twice", hooks=hooks)
    (answer,) = recorded(running, session.session_id, "model_response")
    assert "usage" not in answer
    assert session.outcome.totals.prompt_tokens == 6  # be, brie+f, look, twic+e: four characters a token


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_of_the_provider_is_a_failure(running: Rig, streamed: bool) -> None:
    with serving(Turn(error=503)) as server:
        async with running.client.session({"agent": AGENT}) as session, agent_of(server, session) as (agent, hooks):
            with pytest.raises(openai.InternalServerError):
                await run(agent, "hi", hooks, streamed=streamed)
        events = attested(running, session.outcome)
    assert actions(events) == ["opened", "model_request", "model_failure"]
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert failure["reason"] == "upstream_error"
    assert "scripted error" in failure["message"]


async def test_a_dropped_stream_is_recorded_once_as_cancelled(running: Rig) -> None:
    with serving(Turn(text="one two three")) as server:
        async with running.client.session({"agent": AGENT}) as session, agent_of(server, session) as (agent, hooks):
            result = Runner.run_streamed(agent, "hi", hooks=hooks)
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    result.cancel()
                    break
        events = attested(running, session.outcome)
    assert actions(events) == ["opened", "model_request", "model_failure"]
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert failure["reason"] == "cancelled"


async def test_a_tool_that_raises_is_a_failed_result(running: Rig) -> None:
    with serving(Turn(calls=[("c1", "broken", '{"q":1}')]), Turn(text="done")) as server:
        async with running.client.session({"agent": AGENT}) as session, agent_of(server, session) as (agent, hooks):
            await Runner.run(agent, "hi", hooks=hooks)
        attested(running, session.outcome)
    (result,) = recorded(running, session.session_id, "tool_result")
    assert (result["call_id"], result["ok"]) == ("c1", False)
    assert result["content"].startswith("An error occurred while running the tool")  # as the model is told


async def test_d4_a_looping_run_is_stopped_within_three_repeats(running: Rig) -> None:
    with serving(LOOPING) as server:
        spec = {"agent": AGENT, "breaker": {"min_tokens": 0}}
        with pytest.raises(SessionRefused, match="loop detected"):
            async with running.client.session(spec) as session, agent_of(server, session) as (agent, hooks):
                await Runner.run(agent, "look", hooks=hooks, max_turns=20)
    assert len(server.requests) == 4
    assert (session.outcome.status, session.outcome.stop_reason_id) == ("closed", 91)


async def test_d4_under_inject_the_correction_reaches_the_model(running: Rig) -> None:
    with serving(LOOPING, LOOPING, LOOPING, LOOPING, Turn(text="I give up")) as server:
        spec = {"agent": AGENT, "breaker": {"min_tokens": 0, "action": "inject"}}
        async with running.client.session(spec) as session, agent_of(server, session) as (agent, hooks):
            result = await Runner.run(agent, "look", hooks=hooks, max_turns=20)
    assert result.final_output == "I give up"
    assert server.requests[-1]["messages"][-1]["content"].startswith("You are repeating yourself")
