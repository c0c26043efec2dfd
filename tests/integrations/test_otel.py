"""GenAI spans of the real OpenTelemetry SDK, around calls of a scripted model server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Status, StatusCode, Tracer

from affidavit.errors import SessionRefused
from affidavit.integrations.otel import AffidavitSpanProcessor
from affidavit.sync import SyncSession, SyncSessionClient
from examples.model_server import ModelServer, Turn, serving
from tests.support.agents import LOOPING, PARALLEL, recorded, trajectory
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions

ASK = [{"role": "user", "content": "look twice"}]


def tracer_of(session: SyncSession, **options: Any) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(AffidavitSpanProcessor(session, **options))
    return provider.get_tracer("an instrumentation")


def parts_of(message: dict[str, Any]) -> dict[str, Any]:
    """A chat message in the form of the semantic conventions, as an instrumentation writes it."""
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [part]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": message["content"]}] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = json.loads(function["arguments"])
        parts.append({"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def instrumented(tracer: Tracer, client: openai.OpenAI, messages: list[dict[str, Any]]) -> Any:
    """One chat span, as the conventions want it."""
    started = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.provider.name": "openai"}
    with tracer.start_as_current_span("chat m", attributes=started) as span:
        span.set_attribute("gen_ai.input.messages", json.dumps([parts_of(message) for message in messages]))
        try:
            answer = client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
        except openai.APIError as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise
        message = answer.choices[0].message.model_dump(exclude_none=True)
        output = parts_of(message) | {"finish_reason": answer.choices[0].finish_reason}
        span.set_attribute("gen_ai.output.messages", json.dumps([output]))
        span.set_attribute("gen_ai.response.finish_reasons", [answer.choices[0].finish_reason])
        span.set_attribute("gen_ai.response.model", answer.model)
        if answer.usage is not None:
            cached = answer.usage.prompt_tokens_details
            span.set_attribute("gen_ai.usage.input_tokens", answer.usage.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", answer.usage.completion_tokens)
            span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached.cached_tokens if cached else 0)
    return message


def agent(tracer: Tracer, server: ModelServer) -> str:
    messages: list[dict[str, Any]] = list(ASK)
    with (
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
        tracer.start_as_current_span("invoke_agent a", attributes={"gen_ai.operation.name": "invoke_agent"}),
    ):
        while True:
            message = instrumented(tracer, client, messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return str(message["content"])
            for call in message["tool_calls"]:
                about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call["function"]["name"]}
                with tracer.start_as_current_span("execute_tool", attributes=about) as span:
                    span.set_attribute("gen_ai.tool.call.id", call["id"])
                    span.set_attribute("gen_ai.tool.call.arguments", call["function"]["arguments"])
                    span.set_attribute("gen_ai.tool.call.result", "seen")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "seen"})


async def opened(client: SyncSessionClient, **spec: Any) -> SyncSession:
    return await asyncio.to_thread(client.open, {"agent": AGENT, **spec})


async def test_an_instrumented_agent_is_recorded_once_and_whole(running: Rig, sync_session: SyncSession) -> None:
    with serving(*PARALLEL) as server:
        assert await asyncio.to_thread(agent, tracer_of(sync_session), server) == "both seen"
    outcome = await asyncio.to_thread(sync_session.close)
    events = attested(running, outcome)
    calls = ["tool_call", "tool_result"] * 2
    assert actions(events) == ["opened", "model_request", "model_response", *calls, "model_request", "model_response"]
    totals = outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (130, 27, 40)
    assert (totals.tool_calls, totals.tool_allowed) == (2, 2)
    assert outcome.stop_reason == "Stop"
    first, second = recorded(running, outcome.session_id, "model_request")
    assert first["messages"] == [{"role": "user", "content": "look twice"}]
    assert [message["tool_call_id"] for message in second["messages"]] == ["c1", "c2"]


async def test_its_trajectory_is_valid_and_complete(running: Rig, sync_client: SyncSessionClient) -> None:
    session = await opened(sync_client, mode="unsigned")
    with serving(*PARALLEL) as server:
        await asyncio.to_thread(agent, tracer_of(session), server)
    await asyncio.to_thread(session.close)
    document = trajectory(running, session.session_id)
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    assert [r["content"] for r in document["steps"][1]["observation"]["results"]] == ["seen", "seen"]


async def test_an_error_of_the_provider_and_missing_usage(running: Rig, sync_session: SyncSession) -> None:
    tracer = tracer_of(sync_session)
    with serving(Turn(error=503), Turn(text="now", usage=None)) as server:
        with pytest.raises(openai.InternalServerError):
            await asyncio.to_thread(agent, tracer, server)
        await asyncio.to_thread(agent, tracer, server)
    outcome = await asyncio.to_thread(sync_session.close)
    events = attested(running, outcome)
    assert actions(events) == ["opened", "model_request", "model_failure", "model_request", "model_response"]
    (failure,) = recorded(running, outcome.session_id, "model_failure")
    assert failure["reason"] == "upstream_error"
    assert failure["message"].startswith("SpanError: InternalServerError")
    (answer,) = recorded(running, outcome.session_id, "model_response")
    assert "usage" not in answer


async def test_a_span_that_ends_without_an_answer_is_a_dropped_call(running: Rig, sync_session: SyncSession) -> None:
    about = {"gen_ai.operation.name": "chat"}
    await asyncio.to_thread(lambda: tracer_of(sync_session).start_span("chat m", attributes=about).end())
    outcome = await asyncio.to_thread(sync_session.close)
    assert actions(attested(running, outcome)) == ["opened", "model_request", "model_failure"]
    (failure,) = recorded(running, outcome.session_id, "model_failure")
    assert failure["reason"] == "cancelled"


async def test_spans_of_others_are_left_alone(running: Rig, sync_session: SyncSession) -> None:
    tracer = tracer_of(sync_session, only=lambda span: span.name != "chat other")
    for name, operation in (("chat other", "chat"), ("embed", "embeddings"), ("GET /", None)):
        about = {"gen_ai.operation.name": operation} if operation else {}
        await asyncio.to_thread(lambda n=name, a=about: tracer.start_span(n, attributes=a).end())
    outcome = await asyncio.to_thread(sync_session.close)
    assert actions(attested(running, outcome)) == ["opened"]


@pytest.mark.parametrize(("action", "reason"), [("reject", "loop detected"), ("inject", "You are repeating yourself")])
async def test_d4_a_looping_agent_is_stopped_within_three_repeats(
    running: Rig, sync_client: SyncSessionClient, action: str, reason: str
) -> None:
    session = await opened(sync_client, breaker={"min_tokens": 0, "action": action})
    with serving(LOOPING) as server:
        with pytest.raises(SessionRefused, match=reason):
            await asyncio.to_thread(agent, tracer_of(session), server)
        assert len(server.requests) == 4
    outcome = await asyncio.to_thread(session.close)
    assert outcome.status == "closed"
    attested(running, outcome)
