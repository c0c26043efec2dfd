"""Memory that a session costs while it idles in a worker's cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from benchmarks.bench import Bench, rss
from benchmarks.results import Row

WARM: Final = 30
SESSIONS: Final = 200
AT_ONCE: Final = 20


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """Growth of the worker's resident memory by a number of sessions that are open and do nothing."""
    await _open(bench, WARM)
    before = rss(bench.pids["product"])
    await _open(bench, SESSIONS)
    grown = (rss(bench.pids["product"]) - before) / SESSIONS / 1024
    yield Row("memory of a cached idle session", grown, "KB", 300, 100, less_is_better=True)


async def _open(bench: Bench, sessions: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            await bench.rig.open()

    await asyncio.gather(*(one() for _ in range(sessions)))
