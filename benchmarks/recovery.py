"""How soon sessions move again when the worker that had them all is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

from affidavit.client import SessionHandle
from benchmarks.bench import Bench
from benchmarks.results import Row, percentile
from benchmarks.steps import steps
from tests.support.processes import WORKERS, environment, process

SESSIONS: Final = 20
UNDER_LOAD_S: Final = 2.0
LIMIT_S: Final = 20


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """From the SIGKILL to the first answer of each session; another worker is started at the same moment."""
    sessions = [await bench.start("product") for _ in range(SESSIONS)]
    reporting = [asyncio.create_task(_report(session)) for session in sessions if isinstance(session, SessionHandle)]
    await asyncio.sleep(UNDER_LOAD_S)
    os.kill(bench.pids["product"], signal.SIGKILL)
    killed = time.perf_counter()
    # Nobody reports any more: what is measured is how soon the work comes back, not how much of it a machine can do.
    for task in reporting:
        task.cancel()
    await asyncio.gather(*reporting, return_exceptions=True)
    env = environment(bench.rig, bench.server.address)
    async with process(WORKERS, env, bench.folder / "second.log"):
        found = await asyncio.gather(
            *(_answered(session, killed) for session in sessions if isinstance(session, SessionHandle))
        )
        for session in sessions:
            if isinstance(session, SessionHandle):
                await session.close()
    yield Row(
        f"a kill under load, until the last of {SESSIONS} sessions answers",
        max(found),
        "s",
        LIMIT_S,
        LIMIT_S,
        less_is_better=True,
        note=f"p50 {percentile(found, 0.5):.1f} s; a worker takes about 2 s to start",
    )


async def _report(session: SessionHandle) -> None:
    source = steps()
    while True:
        await session.record(*islice(source, 4))
        await asyncio.sleep(0.25)


async def _answered(session: SessionHandle, since: float) -> float:
    await session.flush()
    return time.perf_counter() - since
