"""The README's example, as a reader would run it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment, process
from tests.support.rig import Rig, actions
from tests.support.taps import LIMIT_S
from workers.devserver import DevServer

ROOT = Path(__file__).parents[2]


def example() -> str:
    """The README's one Python block that is a whole program."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (program,) = (block for block in blocks if "asyncio.run(" in block)
    return program


async def test_the_example_of_the_readme_runs_and_prints_its_receipt(
    running: Rig, server: DevServer, tmp_path: Path
) -> None:
    script = tmp_path / "example.py"
    script.write_text(example(), "utf-8")
    env = environment(running, server.address)
    async with process((str(script),), env, log := tmp_path / "log") as run:
        assert run.stdout is not None
        output = (await asyncio.wait_for(run.stdout.read(), LIMIT_S)).decode()
        assert await run.wait() == 0, log.read_text("utf-8")
    opened, ended = output.splitlines()
    word, session_id = opened.split()
    assert word == "session"
    assert ended.startswith("closed {")
    assert f"'session_id': '{session_id}'" in ended
    assert actions(running.journal(session_id)) == ["opened", "tool_call", "tool_result"]


@pytest.mark.timeout(400)
async def test_a_program_that_ends_at_once_does_not_abort(server: DevServer, tmp_path: Path) -> None:
    """What the runtime's threads did to one in twenty of them, before they were given a moment to finish."""
    script = tmp_path / "ending.py"
    script.write_text(
        "import asyncio\n"
        "from affidavit.client import SessionClient\n"
        "async def main():\n"
        f"    await (await SessionClient.connect(address={server.address!r})).task_queue_polled()\n"
        "asyncio.run(main())\n",
        "utf-8",
    )
    run = f"for each in $(seq 20); do {sys.executable} -P {script} || exit $?; done"
    shell = await asyncio.create_subprocess_shell(run, stderr=asyncio.subprocess.PIPE)
    try:
        _, errors = await shell.communicate()
    finally:
        if shell.returncode is None:
            shell.kill()
            await shell.wait()
    assert shell.returncode == 0, errors.decode()


async def test_left_by_an_exception_it_ends_cancelled_with_stop_reason_99_other(
    running: Rig, server: DevServer, tmp_path: Path
) -> None:
    """As the README says of the same program."""
    script = tmp_path / "example.py"
    body = example()
    caught = body.replace("asyncio.run(main())", "try:\n    asyncio.run(main())\nexcept KeyError:\n    print('caught')")
    script.write_text(caught.replace("    print(session.outcome", "        raise KeyError\n    print(session.outcome"))
    async with process((str(script),), environment(running, server.address), log := tmp_path / "log") as run:
        assert run.stdout is not None
        output = (await asyncio.wait_for(run.stdout.read(), LIMIT_S)).decode()
        assert await run.wait() == 0, log.read_text("utf-8")
    session_id = output.split()[1]
    assert output.splitlines()[1:] == ["caught"]
    assert actions(running.journal(session_id)) == ["opened", "tool_call", "tool_result", "cancel_requested"]
    outcome = await running.client.handle(session_id).result()
    assert (outcome.status, outcome.stop_reason_id, outcome.stop_reason) == ("cancelled", 99, "Other")
    assert outcome.receipt is not None
    assert (outcome.receipt["stop_reason_id"], outcome.receipt["stop_reason"]) == (99, "Other")
