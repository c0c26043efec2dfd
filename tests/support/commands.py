"""`affidavit` commands run in this process, against a rig."""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from affidavit.cli.app import run
from tests.support.rig import Rig


async def command(rig: Rig, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that finds the rig's server, queue and data by its environment."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", rig.client.temporal.service_client.config.target_host)
    monkeypatch.setenv("AFFIDAVIT_TASK_QUEUE", rig.settings.task_queue)
    monkeypatch.setenv("AFFIDAVIT_DATA_DIR", str(rig.data.root))

    def invoke() -> tuple[int, str, str]:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
            code = run(arguments)
        return code, out.getvalue(), errors.getvalue()

    return await asyncio.to_thread(invoke)
