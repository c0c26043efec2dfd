"""The commands of docs/other-languages.md, run as they stand."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from affidavit.message_schemas import message_schemas
from tests.support.oracle import attested
from tests.support.processes import environment
from tests.support.rig import Rig, actions
from workers.devserver import DevServer

PAGE = (Path(__file__).parents[2] / "docs" / "other-languages.md").read_text()


@pytest.mark.timeout(200)
async def test_the_commands_of_the_page_make_an_attested_session(running: Rig, server: DevServer) -> None:
    found = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    commands = found[1].replace("--task-queue affidavit", f"--task-queue {running.settings.task_queue}")
    env = environment(running, server.address)
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"  # where the dev server's package puts the command
    program = await asyncio.create_subprocess_exec(
        "bash", "-e", "-c", commands, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        out, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0, out.decode()
    outcome = await running.client.handle("cli-1").result()
    events = attested(running, outcome)
    assert actions(events) == ["opened", "model_request", "model_response", "tool_call", "tool_result"]
    assert (outcome.rejected, outcome.totals.prompt_tokens, outcome.totals.tool_calls) == (0, 64, 1)


def test_the_page_names_messages_that_have_a_schema() -> None:
    assert {"record", "admit", "close", "outcome", "submit-answer", "flush-answer"} <= set(message_schemas())
