"""An agent on OpenAI's Agents SDK, attested.

The model is scripted, so no account is needed. Beside `affidavit dev`: python examples/with_openai_agents.py
"""

from __future__ import annotations

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_trace_processors
from model_server import MODEL, Turn, serving
from openai import AsyncOpenAI

from affidavit import contract
from affidavit.client import SessionClient
from affidavit.integrations.openai_agents import AffidavitTracing

IDENTITY = contract.Agent(version="1.0", charter="weather desk", instance_uid="example-2")
SCRIPT = (
    Turn(calls=[("c1", "temperature", '{"city":"Oslo"}'), ("c2", "temperature", '{"city":"Rome"}')], usage=(64, 30, 0)),
    Turn(text="Rome is 24 degrees warmer than Oslo.", usage=(120, 12, 64)),
)


@function_tool
async def temperature(city: str) -> int:
    """The temperature in a city, in degrees."""
    return {"Oslo": 2, "Rome": 26}[city]


async def main() -> None:
    affidavit = await SessionClient.connect(admit_timeout=20)
    with serving(*SCRIPT) as server:
        async with (
            affidavit.session({"agent": IDENTITY}) as session,
            AsyncOpenAI(base_url=server.url, api_key="none") as client,
        ):
            tracing = AffidavitTracing(session)
            set_trace_processors([tracing])  # add_trace_processor() where OpenAI is to have the traces too
            model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
            agent = Agent(name="weather", instructions="Be brief.", model=model, tools=[temperature])
            result = await Runner.run(agent, "How much warmer is Rome than Oslo?", hooks=tracing)
            print(result.final_output)
    assert session.outcome is not None
    print(f"session {session.session_id} {session.outcome.status}, receipt {session.outcome.receipt_id}")


asyncio.run(main())
