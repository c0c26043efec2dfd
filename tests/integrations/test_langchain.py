"""LangChain and LangGraph with the callback handler, against a scripted model server and the real product."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

from affidavit.errors import SessionRefused
from affidavit.integrations.langchain import AffidavitCallbackHandler
from affidavit.sync import SyncSession
from examples.model_server import ModelServer, Turn, serving
from tests.support.agents import LOOPING, PARALLEL, recorded, trajectory
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
ASK = {"messages": [("user", "look twice")]}


@tool
async def look(q: int) -> str:
    """Look."""
    await asyncio.sleep(0)
    return f"seen {q}"


def model_of(server: ModelServer, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.url, api_key="none", model="m", max_retries=0, **more)


def agent_of(server: ModelServer, **more: Any) -> Any:
    return create_react_agent(model_of(server), [look], **more)


def configured(session: Any) -> tuple[AffidavitCallbackHandler, dict[str, Any]]:
    handler = AffidavitCallbackHandler(session)
    return handler, {"callbacks": [handler], "recursion_limit": 40}


async def test_a_graph_with_parallel_calls_is_recorded_once_and_whole(running: Rig) -> None:
    with serving(*PARALLEL) as server:
        async with running.client.session({"agent": AGENT}) as session:
            answer = await agent_of(server, prompt="be brief").ainvoke(ASK, configured(session)[1])
        events = attested(running, session.outcome)
    assert answer["messages"][-1].content == "both seen"
    assert sorted(actions(events)[3:7]) == ["tool_call", "tool_call", "tool_result", "tool_result"]
    assert actions(events)[:3] == ["opened", "model_request", "model_response"]
    assert actions(events)[7:] == ["model_request", "model_response"]
    totals = session.outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (130, 27, 40)
    assert (totals.tool_calls, totals.tool_allowed, totals.tool_blocked) == (2, 2, 0)
    first, second = recorded(running, session.session_id, "model_request")
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert [message["role"] for message in second["messages"]] == ["tool", "tool"]
    assert first["tools"][0]["function"]["name"] == "look"
    assert "tools" not in second
    assert session.outcome.stop_reason == "Stop"


async def test_its_trajectory_is_valid_and_complete(running: Rig) -> None:
    with serving(*PARALLEL) as server:
        async with running.client.session({"agent": AGENT, "mode": "unsigned"}) as session:
            await agent_of(server).ainvoke(ASK, configured(session)[1])
    document = trajectory(running, session.session_id)
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    results = document["steps"][1]["observation"]["results"]
    assert sorted((r["source_call_id"], r["content"]) for r in results) == [("c1", "seen 1"), ("c2", "seen 2")]
    assert document["final_metrics"]["total_completion_tokens"] == 27


@pytest.mark.parametrize("usage", [True, False])
async def test_a_streamed_model_is_recorded_with_and_without_usage(running: Rig, usage: bool) -> None:
    with serving(Turn(text="one two", usage=(11, 7, 3) if usage else None)) as server:
        async with running.client.session({"agent": AGENT}) as session:
            chunks = model_of(server, stream_usage=True).astream("hi", configured(session)[1])
            text = "".join([str(chunk.content) async for chunk in chunks])
    assert text == "onetwo"
    (answer,) = recorded(running, session.session_id, "model_response")
    assert (answer["text"], answer["finish_reason"]) == ("onetwo", "stop")
    totals = session.outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens) == ((11, 7) if usage else (1, 0))


async def test_a_dropped_stream_is_recorded_once_as_cancelled(running: Rig) -> None:
    with serving(Turn(text="one two three")) as server:
        async with running.client.session({"agent": AGENT}) as session:
            stream = model_of(server).astream("hi", configured(session)[1])
            await anext(stream)
            await stream.aclose()
        events = attested(running, session.outcome)
    assert actions(events) == ["opened", "model_request", "model_failure"]
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert failure["reason"] == "cancelled"


async def test_an_error_of_the_provider_is_a_failure_with_its_status(running: Rig) -> None:
    with serving(Turn(error=503)) as server:
        async with running.client.session({"agent": AGENT}) as session:
            with pytest.raises(openai.InternalServerError):
                await agent_of(server).ainvoke(ASK, configured(session)[1])
        events = attested(running, session.outcome)
    assert actions(events) == ["opened", "model_request", "model_failure"]
    (failure,) = recorded(running, session.session_id, "model_failure")
    assert (failure["reason"], failure["status"]) == ("upstream_error", 503)


async def test_a_tool_that_raises_is_a_failed_result(running: Rig) -> None:
    @tool
    async def broken(q: int) -> str:
        """Break."""
        raise ValueError(f"no {q}")

    with serving(Turn(calls=[("c1", "broken", '{"q":1}')])) as server:
        async with running.client.session({"agent": AGENT}) as session:
            agent = create_react_agent(model_of(server), [broken])
            with pytest.raises(ValueError, match="no 1"):
                await agent.ainvoke(ASK, configured(session)[1])
        attested(running, session.outcome)
    (result,) = recorded(running, session.session_id, "tool_result")
    assert (result["ok"], result["content"]) == (False, {"error": "ValueError", "message": "no 1"})


async def test_d4_a_looping_graph_is_stopped_within_three_repeats(running: Rig) -> None:
    with serving(LOOPING) as server, pytest.raises(SessionRefused, match="loop detected"):
        async with running.client.session({"agent": AGENT, "breaker": {"min_tokens": 0}}) as session:
            await agent_of(server).ainvoke(ASK, configured(session)[1])
    assert len(server.requests) == 4
    assert (session.outcome.status, session.outcome.stop_reason_id) == ("closed", 91)
    attested(running, session.outcome)


async def test_d4_under_inject_the_correction_reaches_the_model(running: Rig) -> None:
    with serving(LOOPING, LOOPING, LOOPING, LOOPING, Turn(text="I give up")) as server:
        breaker = {"min_tokens": 0, "action": "inject"}
        async with running.client.session({"agent": AGENT, "breaker": breaker}) as session:
            handler, config = configured(session)
            answer = await agent_of(server, pre_model_hook=handler.pre_model_hook).ainvoke(ASK, config)
        attested(running, session.outcome)
    assert answer["messages"][-1].content == "I give up"
    assert server.requests[-1]["messages"][-1]["content"].startswith("You are repeating yourself")
    assert session.outcome.totals.prompt_tokens == 210


async def test_a_synchronous_run_with_a_session_for_threads(running: Rig, sync_session: SyncSession) -> None:
    @tool
    def look(q: int) -> str:
        """Look."""
        return f"seen {q}"

    def agent() -> Any:
        with serving(*PARALLEL) as server:
            answer = create_react_agent(model_of(server), [look]).invoke(ASK, configured(sync_session)[1])
            sync_session.close()
            return answer

    answer = await asyncio.to_thread(agent)
    assert answer["messages"][-1].content == "both seen"
    attested(running, sync_session.outcome)
    assert sync_session.outcome.totals.prompt_tokens == 130
