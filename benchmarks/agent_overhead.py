"""What attestation costs an agent for each model call: the same agent without it and with it, side by side.

Beside `affidavit dev`: python benchmarks/agent_overhead.py [--calls 200] [--model-ms 300]

The model is scripted and answers after `--model-ms`. Prints a row of the benchmark table: milliseconds for each model
call with its tool, median and 95th percentile, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from affidavit.client import SessionClient
from affidavit.contract import Agent
from affidavit.integrations.openai import attest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from model_server import ModelServer, Turn, serving

AGENT = Agent(version="1.0", charter="benchmark", instance_uid="overhead-1")
TURNS = 10
"""Model calls of one conversation, so that the list of messages does not grow for ever."""

Look = Callable[[str, str], Awaitable[str]]


async def agent(client: AsyncOpenAI, look: Look, calls: int) -> list[float]:
    """Call the model and run the tool that it asks for; returns the seconds that each round took."""
    took = []
    messages: list[Any] = []
    for number in range(calls):
        if number % TURNS == 0:
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Look at {number}."}]
        started = time.perf_counter()
        message = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            if call.type == "function":
                result = await look(call.id, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        took.append(time.perf_counter() - started)
    return took


async def plain(model: ModelServer, calls: int) -> list[float]:
    async def look(_call_id: str, arguments: str) -> str:
        return f"seen {arguments}"

    async with AsyncOpenAI(base_url=model.url, api_key="none") as client:
        return await agent(client, look, calls)


async def attested(model: ModelServer, calls: int) -> list[float]:
    affidavit = await SessionClient.connect(admit_timeout=30)
    async with (
        affidavit.session({"agent": AGENT, "breaker": {"action": "observe"}}) as session,
        attest(AsyncOpenAI(base_url=model.url, api_key="none"), session) as client,
    ):

        @session.tool
        async def look(q: int) -> str:
            return f'seen {{"q": {q}}}'

        return await agent(client, look.call, calls)


def row(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
    return f"| {name} | {len(ordered)} | {middle * 1000:.1f} | {late * 1000:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what attestation adds to each model call.")
    parser.add_argument("--calls", type=int, default=200, help="model calls of each run")
    parser.add_argument("--model-ms", type=float, default=0, help="how long the scripted model takes")
    given = parser.parse_args()
    script = [
        Turn(text=f"I look at {n}", calls=[(f"c{n}", "look", f'{{"q":{n}}}')], wait_s=given.model_ms / 1000)
        for n in range(given.calls)
    ]
    runs = []
    for run in (plain, attested):
        with serving(*script) as model:
            runs.append(asyncio.run(run(model, given.calls)))
    print("| agent | model calls | median ms | p95 ms |\n| --- | --- | --- | --- |")
    print(row("without", runs[0]))
    print(row("attested", runs[1]))
    added = statistics.median(runs[1]) - statistics.median(runs[0])
    ratio = statistics.median(runs[1]) / statistics.median(runs[0])
    print(f"added per model call: {added * 1000:.1f} ms, ratio {ratio:.2f}, with a model of {given.model_ms:g} ms")


if __name__ == "__main__":
    main()
