"""The TypeScript example: Temporal's own client for another language is enough to be attested."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests.support.oracle import attested
from tests.support.processes import environment
from tests.support.rig import Rig, actions
from workers.devserver import DevServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "typescript"
NODE = shutil.which("node")


@pytest.mark.timeout(240)
@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.skipif(not (EXAMPLE / "node_modules").is_dir(), reason="`npm ci` has not been run in examples/typescript")
async def test_a_session_from_typescript_is_attested(running: Rig, server: DevServer, tmp_path: Path) -> None:
    await run("node_modules/typescript/bin/tsc", "--outDir", str(tmp_path), cwd=EXAMPLE)
    (tmp_path / "node_modules").symlink_to(EXAMPLE / "node_modules")
    (tmp_path / "package.json").write_text('{"type":"module"}')
    out = await run("session.js", cwd=tmp_path, env=environment(running, server.address))
    found = re.fullmatch(r"session (\S+) closed, receipt (\S+)", out.strip())
    assert found is not None, out
    outcome = await running.client.handle(found[1]).result()
    events = attested(running, outcome)
    assert actions(events) == ["opened", "model_request", "model_response", "tool_call", "tool_result"]
    assert (outcome.totals.prompt_tokens, outcome.totals.tool_calls) == (64, 1)


async def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    assert NODE is not None
    program = await asyncio.create_subprocess_exec(
        NODE, *arguments, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0, (out + err).decode()
    return out.decode()
