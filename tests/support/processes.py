"""Workers as processes of their own: started as an operator starts them, and always ended, by their id."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from workers.devserver import _die_with_parent

WORKERS = ("-m", "workers")


def environment(rig: Rig, address: str, **changes: str | None) -> dict[str, str]:
    """What `python -m workers` is told of a rig; a change of None leaves a variable out."""
    settings = rig.settings
    product = {
        "TEMPORAL_ADDRESS": address,
        "AFFIDAVIT_TASK_QUEUE": settings.task_queue,
        "AFFIDAVIT_STORE": str(settings.store),
        "AFFIDAVIT_BUS": str(settings.bus),
        "AFFIDAVIT_JOURNAL_KEY_FILES": ":".join(map(str, settings.journal_key_files)),
        "AFFIDAVIT_SIGNING_SEED_FILE": str(settings.signing_seed_file),
        "AFFIDAVIT_PUBLIC_KEYS": str(settings.public_keys),
        "AFFIDAVIT_GRACE_S": "3",
        **changes,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AFFIDAVIT_", "TEMPORAL_"))}
    return {**inherited, **{name: value for name, value in product.items() if value is not None}}


@asynccontextmanager
async def process(
    arguments: tuple[str, ...], env: Mapping[str, str], output: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process, its standard error in `output`; killed when the block is left while it still runs."""
    with output.open("ab") as errors:
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            *arguments,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            preexec_fn=_die_with_parent,  # where the test run itself is killed
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def line(running: asyncio.subprocess.Process) -> str:
    """The next line of the process's standard output."""
    assert running.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        text = (await running.stdout.readline()).decode()
    assert text, "the process has ended"
    return text.rstrip("\n")
