"""A worker that stops dead at given places, to be killed there: says `held SESSION` and never goes on.

The environment's HELD maps session ids to places: an object's folder or name in the evidence store (`journal`,
`receipt.json`, …) or a topic of the bus, with `before` or `after` the write; or `embed`. Opening events are let
through.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from temporalio import activity

from activities.buses.base import BusRecord
from activities.buses.sqlite import SqliteBus
from activities.embedders import Counts, HashEmbedder
from affidavit.client import SessionClient
from affidavit.stores.local import DirectoryStore
from tests.support.taps import TapBus, TapStore
from workers.running import run_until, stop_on_signals
from workers.settings import WorkerSettings
from workers.worker import build_worker

HELD: dict[str, str] = json.loads(os.environ["HELD"])
STEMS = {hashlib.sha256(session_id.encode()).hexdigest()[:32]: session_id for session_id in HELD}
OPENING = "/000000000000.ndjson"


def _say(session_id: str) -> None:
    sys.stdout.write(f"held {session_id}\n")
    sys.stdout.flush()


def _hang(session_id: str) -> NoReturn:
    _say(session_id)
    while True:
        threading.Event().wait()


def _at_store(moment: str, name: str) -> None:
    folder, _, stem = name.partition("/")
    stem = stem.partition("/")[0]
    session_id = STEMS.get(stem) if folder == "sessions" else None
    if session_id is None or name.endswith(OPENING):
        return
    place, _, wanted = HELD[session_id].partition(" ")
    if wanted == moment and place in name.split("/"):
        _hang(session_id)


async def _at_bus(moment: str, records: Sequence[BusRecord]) -> None:
    for record in records:
        place, _, wanted = HELD.get(record.session_id, "").partition(" ")
        if wanted == moment and place == record.topic:
            _say(record.session_id)
            await asyncio.Event().wait()


class HeldEmbedder(HashEmbedder):
    """Hangs for a session that is to be held there."""

    def counts(self, text: str) -> Counts:
        session_id = activity.info().workflow_id or ""
        if HELD.get(session_id) == "embed":
            _hang(session_id)
        return super().counts(text)


async def main() -> None:
    settings = WorkerSettings()
    evidence = DirectoryStore(settings.store)
    store = TapStore(
        evidence,
        before=lambda name: _at_store("before", name),
        after=lambda name: _at_store("after", name),
    )
    bus = TapBus(
        SqliteBus(settings.bus),
        before=lambda records: _at_bus("before", records),
        after=lambda records: _at_bus("after", records),
    )
    stop = stop_on_signals()
    client = await SessionClient.connect(task_queue=settings.task_queue, store=evidence)
    workers = build_worker(client.temporal, settings, store=store, bus=bus, embedder=HeldEmbedder())
    await run_until(stop, workers, settings.grace_s)


if __name__ == "__main__":
    asyncio.run(main())
