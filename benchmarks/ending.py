"""The end of a session of 1 000 steps, and the export of a trajectory of 5 000."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from activities.sealed import SealedEvidence
from affidavit.client import SessionHandle
from affidavit.evidence.bundle import DirectoryReader
from affidavit.evidence.trajectory.rebuild import rebuild_trajectory
from affidavit.stores.local import DirectoryStore
from benchmarks.bench import Bench
from benchmarks.pipeline import KEY
from benchmarks.results import Row, median, median_row
from benchmarks.steps import steps
from tests.support.stored import StoredSession
from tests.support.waiting import eventually

CLOSED: Final = 1_000
EXPORTED: Final = 5_000
LIMIT_S: Final = 60.0


async def rows(bench: Bench, pairs: int) -> AsyncIterator[Row]:
    """From `close` to the receipt, against a session of no steps."""
    ratios, seconds = [], []
    for _ in range(pairs):
        empty, full = await _closing(bench, 0), await _closing(bench, CLOSED)
        ratios.append(full / empty)
        seconds.append(full)
    note = f"{median(seconds):.2f} s"
    yield Row(f"close to receipt, {CLOSED} steps, against a session of none", median(ratios), note=note)


async def _closing(bench: Bench, count: int) -> float:
    session = await bench.start("product")
    assert isinstance(session, SessionHandle)
    if count:
        await session.record(*islice(steps(), count))
    await session.flush()
    await eventually(session.view, lambda view: view.published_through == view.event_count - 1, within=LIMIT_S)
    started = time.perf_counter()
    await session.close()
    return time.perf_counter() - started


def export_rows(pairs: int) -> Iterator[Row]:
    """A trajectory rebuilt from captures, against reading those as JSON."""
    yield median_row([_export() for _ in range(pairs)])


def _export() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        session = StoredSession(SealedEvidence(DirectoryStore(root), [KEY]))
        source = steps()
        for _ in range(0, EXPORTED, 50):
            session.report(*islice(source, 50))
        started = time.process_time()
        life = session.life
        rebuild_trajectory(DirectoryReader(root), life.session_id, life.generation, io.BytesIO(), journal_keys=[KEY])
        spent = time.process_time() - started
        started = time.process_time()
        for file in root.glob("sessions/*/*/*/*.ndjson"):
            for line in file.read_bytes().splitlines():
                json.loads(line)
        ratio = spent / (time.process_time() - started)
    return Row(f"export of {EXPORTED} steps, against reading the journal as JSON", ratio, note=f"{spent:.2f} s of CPU")
