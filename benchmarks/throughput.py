"""Steps a second of many sessions at once, against the floor and against the naive shape (ratios within pairs)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from temporalio.client import WorkflowHandle

from affidavit.client import SessionHandle
from affidavit.contract import SIGNAL_RECORD
from affidavit.converter import raw_json
from benchmarks.bench import SHAPES, Bench, Shape
from benchmarks.results import Row, median
from benchmarks.steps import messages
from tests.support.waiting import eventually

LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Size:
    """How much is reported: sessions at once, signals of each, steps in a signal."""

    sessions: int
    signals: int
    each: int

    @property
    def steps(self) -> int:
        return self.sessions * self.signals * self.each

    def __str__(self) -> str:
        sessions = f"{self.sessions} session{'s' * (self.sessions > 1)}"
        return f"{sessions}, {'one step' if self.each == 1 else f'{self.each} steps'} a signal"


SIZES: Final = (
    Size(1, 100, 1),
    Size(1, 50, 20),
    Size(20, 50, 1),
    Size(20, 20, 20),
    Size(50, 20, 1),
    Size(50, 8, 20),
)
NAIVE: Final = {
    Size(1, 100, 1): Size(1, 15, 1),
    Size(1, 50, 20): Size(1, 1, 20),
    Size(20, 50, 1): Size(20, 15, 1),
    Size(20, 20, 20): Size(20, 1, 20),
    Size(50, 20, 1): Size(50, 6, 1),
    Size(50, 8, 20): Size(50, 1, 20),
}
"""What the naive shape is given instead, which would need minutes for the same."""
MUST_AND_AIM: Final = {Size(20, 50, 1): (0.7, 0.9), Size(20, 20, 20): (0.35, 0.5)}
AGAINST_NAIVE: Final = {Size(20, 50, 1): (9.0, 12.0), Size(20, 20, 20): (40.0, 80.0)}


@dataclass(frozen=True)
class Measured:
    """One run: steps a second, processor time of the worker a step (s), history events a step."""

    rate: float
    cpu: float
    events: float


async def measure(bench: Bench, shape: Shape, size: Size) -> Measured:
    """Start the sessions, then time from the first signal until every step went through every stage."""
    handles = [await bench.start(shape) for _ in range(size.sessions)]
    texts = [messages(size.signals, size.each, seed) for seed in range(size.sessions)]
    cpu, started = bench.cpu_s(shape), time.perf_counter()
    await asyncio.gather(
        *(_report(bench, bench.raw(handle), sent) for handle, sent in zip(handles, texts, strict=True))
    )
    if shape == "product":
        await _published(bench, handles, size.sessions + size.steps)
    seconds, cpu = time.perf_counter() - started, bench.cpu_s(shape) - cpu
    described = await asyncio.gather(*(bench.raw(handle).describe() for handle in handles))
    events = sum(each.history_length for each in described)
    await asyncio.gather(*(bench.raw(handle).execute_update("close") for handle in handles))
    return Measured(size.steps / seconds, cpu / size.steps, events / size.steps)


async def _report(bench: Bench, raw: WorkflowHandle[object, object], texts: Sequence[bytes]) -> None:
    for message in texts:
        await raw.signal(SIGNAL_RECORD, raw_json(message))
    await raw.execute_update("flush")


async def _published(bench: Bench, handles: Sequence[object], events: int) -> None:
    """Wait until the bus has every event: the last stage runs beside the journal. Asked of its file, because a query
    of each session would take the worker's time."""
    ids = [handle.session_id for handle in handles if isinstance(handle, SessionHandle)]
    places = ",".join("?" * len(ids))

    async def count() -> int:
        with sqlite3.connect(f"file:{bench.rig.data.bus}?mode=ro", uri=True) as connection:
            # A number of places, and nothing that anybody has written.
            query = f"SELECT count(*) FROM records WHERE session IN ({places})"  # noqa: S608
            (found,) = connection.execute(query, ids).fetchone()
        return int(found)

    await eventually(count, lambda found: found >= events, within=LIMIT_S)


async def rows(bench: Bench, pairs: int, sizes: Sequence[Size] = SIZES) -> AsyncIterator[Row]:
    """Runs of the shapes, each of them first in turn; each pair gives a ratio, the median of which counts."""
    for size in sizes:
        ratios, naive, product = [], [], []
        for pair in range(pairs):
            order = SHAPES[pair % len(SHAPES) :] + SHAPES[: pair % len(SHAPES)]
            found = {shape: await measure(bench, shape, NAIVE[size] if shape == "naive" else size) for shape in order}
            ratios.append(found["product"].rate / found["floor"].rate)
            naive.append(found["product"].rate / found["naive"].rate)
            product.append(found["product"])
        must, aim = MUST_AND_AIM.get(size, (None, None))
        note = f"{median([each.rate for each in product]):.0f} steps/s"
        yield Row(f"steps/s, {size}, against the floor", median(ratios), must=must, aim=aim, note=note)
        must, aim = AGAINST_NAIVE.get(size, (None, None))
        yield Row(f"steps/s, {size}, against the naive shape", median(naive), must=must, aim=aim)
        if size == Size(20, 20, 20):
            events = median([each.events for each in product])
            yield Row("history events a step, 20 steps a signal", events, "", 0.6, 0.2, less_is_better=True)
            cpu = median([each.cpu for each in product]) * 1e6
            note = "worker process, Temporal's core and the server's protocol included"
            yield Row("CPU of the worker a step, 20 steps a signal", cpu, "us", note=note, less_is_better=True)
