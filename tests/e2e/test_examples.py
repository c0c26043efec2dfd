"""Each example as a user runs it: a program of its own, which ends with an attested session."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.oracle import attested
from tests.support.processes import environment, process
from tests.support.rig import Rig, actions
from workers.devserver import DevServer

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = {
    "with_openai.py": [2, 2],
    "with_openai_agents.py": [2, 2],
    "with_langgraph.py": [2, 2],
    "with_otel.py": [1, 0],
    "with_threads.py": [3, 2],
}
"""Answers of the model and calls of tools."""


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("with_*.py")} == set(STEPS)


@pytest.mark.timeout(240)
async def test_each_example_runs_and_is_attested(running: Rig, server: DevServer, tmp_path: Path) -> None:
    """All at once, because most of their time goes into imports."""
    outputs = await asyncio.gather(*(output(running, server, name, tmp_path) for name in STEPS))
    for name, out in zip(STEPS, outputs, strict=True):
        found = re.search(r"session (\S+) closed, receipt (\S+)$", out.strip())
        assert found is not None, out
        outcome = await running.client.handle(found[1]).result()
        assert outcome.receipt_id == found[2]
        events = actions(attested(running, outcome))
        assert [events.count("model_response"), events.count("tool_call")] == STEPS[name], name


async def output(rig: Rig, server: DevServer, name: str, cwd: Path) -> str:
    env = environment(rig, server.address, PYTHONPATH=str(EXAMPLES))  # of a program that is started by its path
    async with process((str(EXAMPLES / name),), env, cwd / f"{name}.log") as program:
        out, _ = await program.communicate()
    assert program.returncode == 0, (cwd / f"{name}.log").read_text()
    return out.decode()
