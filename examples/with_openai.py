"""An agent on OpenAI's client, attested.

The model is scripted, so no account is needed. Beside `affidavit dev`: python examples/with_openai.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from model_server import MODEL, Turn, serving
from openai import AsyncOpenAI

from affidavit.client import SessionClient
from affidavit.contract import Agent
from affidavit.integrations.openai import attest

AGENT = Agent(version="1.0", charter="weather desk", instance_uid="example-1")
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
SCRIPT = (
    Turn(calls=[("c1", "temperature", '{"city":"Oslo"}'), ("c2", "temperature", '{"city":"Rome"}')], usage=(64, 30, 0)),
    Turn(text="Rome is 24 degrees warmer than Oslo.", usage=(120, 12, 64)),
)


async def main() -> None:
    affidavit = await SessionClient.connect(admit_timeout=20)
    with serving(*SCRIPT) as model:
        async with (
            affidavit.session({"agent": AGENT}) as session,
            attest(AsyncOpenAI(base_url=model.url, api_key="none"), session) as client,
        ):

            @session.tool
            async def temperature(city: str) -> int:
                return {"Oslo": 2, "Rome": 26}[city]

            messages: list[Any] = [{"role": "user", "content": "How much warmer is Rome than Oslo?"}]
            while True:
                answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
                message = answer.choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    break
                calls = [(call.id, call.function.arguments) for call in message.tool_calls if call.type == "function"]
                results = await asyncio.gather(*(temperature.call(*call) for call in calls))
                for (call_id, _), result in zip(calls, results, strict=True):
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": str(result)})
            print(message.content)
    assert session.outcome is not None
    print(f"session {session.session_id} {session.outcome.status}, receipt {session.outcome.receipt_id}")


asyncio.run(main())
