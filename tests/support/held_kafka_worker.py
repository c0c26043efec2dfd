"""A worker on Kafka that stops dead at a given place of a publish: says `held SESSION` and never goes on.

The environment's HELD maps session ids to places: `looking up` and `sending`, the phases of the bus, right before each
begins; `acknowledged`, after the broker's answer and before Temporal is told. Opening events are let through.
With STOPS it stops itself there as SIGSTOP does, and goes on when it is told to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence

from temporalio import activity

from activities.buses.base import BusRecord
from activities.buses.kafka import KafkaBus, Phase
from affidavit.client import SessionClient
from affidavit.stores.local import DirectoryStore
from tests.support.taps import TapBus
from workers.running import run_until, stop_on_signals
from workers.settings import WorkerSettings
from workers.worker import build_worker

HELD: dict[str, str] = json.loads(os.environ.get("HELD", "{}"))
_open: set[str] = set()


def _hang(session_id: str) -> None:
    """Holds the whole process: it is to be killed here."""
    sys.stdout.write(f"held {session_id}\n")
    sys.stdout.flush()
    if "STOPS" in os.environ:
        HELD.clear()
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    threading.Event().wait()


def _begin(records: Sequence[BusRecord]) -> None:
    if any(record.topic != "agent.session" for record in records):
        _open.add(records[0].session_id)


def _progress(phase: Phase) -> None:
    session_id = activity.info().workflow_id or ""
    if session_id in _open and HELD.get(session_id) == phase:
        _hang(session_id)
    activity.heartbeat(phase)


def _end(records: Sequence[BusRecord]) -> None:
    session_id = records[0].session_id
    if session_id in _open and HELD.get(session_id) == "acknowledged":
        _hang(session_id)
    _open.discard(session_id)


async def main() -> None:
    settings = WorkerSettings()
    assert settings.kafka is not None
    store = DirectoryStore(settings.store)
    stop = stop_on_signals()
    client = await SessionClient.connect(task_queue=settings.task_queue, store=store)
    bus = TapBus(KafkaBus(settings.kafka, progress=_progress), before=_begin, after=_end)
    await run_until(stop, build_worker(client.temporal, settings, store=store, bus=bus), settings.grace_s)


if __name__ == "__main__":
    asyncio.run(main())
