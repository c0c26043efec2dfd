"""How long `submit` takes, against an update that does nothing; one session, one call after the other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from affidavit.client import SessionHandle
from affidavit.converter import raw_json
from benchmarks.bench import Bench
from benchmarks.results import Row, median, percentile
from benchmarks.steps import messages, steps


async def rows(bench: Bench, pairs: int, calls: int = 100) -> AsyncIterator[Row]:
    """p50 and p99 of both, as ratios within pairs."""
    session, floor = await bench.start("product"), bench.raw(await bench.start("floor"))
    assert isinstance(session, SessionHandle)
    source, message = steps(), raw_json(messages(1, 1)[0])
    half, tail = [], []
    for _ in range(pairs):
        empty = await _timed(calls, lambda: floor.execute_update("submit", message))
        full = await _timed(calls, lambda: session.submit(next(source)))
        half.append(percentile(full, 0.5) / percentile(empty, 0.5))
        tail.append(percentile(full, 0.99) / percentile(empty, 0.99))
    note = f"{percentile(full, 0.5) * 1e3:.0f} ms against {percentile(empty, 0.5) * 1e3:.0f} ms"
    yield Row(
        "`submit` p50 against an empty update, one session", median(half), "x", 4, 2.5, less_is_better=True, note=note
    )
    yield Row("`submit` p99 against an empty update's", median(tail))
    await session.close()
    await floor.execute_update("close")


async def _timed(calls: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    found = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        found.append(time.perf_counter() - started)
    return found
