"""A worker as a process: its settings and its connection, and a graceful end on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from affidavit.buslog import BusLogError
from affidavit.client import SessionClient
from affidavit.errors import AffidavitError
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable
from affidavit.exiting import INTERRUPTED
from affidavit.kafka.errors import KafkaRefused, KafkaSettingsError, TopicsWrong
from affidavit.stores.base import EvidenceStore
from affidavit.stores.errors import IntegrityError, StorePlaceError, StoreUnfit, TransientError
from affidavit.stores.place import Place, open_store
from affidavit.validation import first_error
from workers import collector
from workers.buses import check_bus
from workers.logs import configure
from workers.settings import SettingsError, WorkerSettings
from workers.telemetry import telemetry
from workers.worker import Workers, build_worker

logger = logging.getLogger("workers")

HAND_BACK_S = 2.0
"""Seconds after the grace in which cancelled work may end."""

EXIT_UNFINISHED = 3

CONFIGURATION_ERRORS = (
    ValidationError,
    SettingsError,
    EvidenceError,
    BusLogError,
    IntegrityError,
    KafkaSettingsError,
    KafkaRefused,
    StoreUnfit,
    TopicsWrong,
)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def run_until(
    stop: asyncio.Event, workers: Workers, grace_s: float, *, started: Callable[[], None] = lambda: None
) -> None:
    """Run workers until `stop` is set, then let them finish within their grace.

    A thread that hangs in a dead mount cannot be ended, and would keep the process for ever: a moment after the
    grace the process ends as it is. What it held is handed back by its time limit, and nothing is lost by that.
    """
    last_resort = threading.Timer(grace_s + HAND_BACK_S, _give_up)
    last_resort.daemon = True
    async with workers:
        started()
        await stop.wait()
        last_resort.start()
    last_resort.cancel()


def _give_up() -> None:
    logger.error("work under way does not end within its grace; the process ends without it")
    logging.shutdown()
    os._exit(EXIT_UNFINISHED)


async def _run() -> None:
    settings = WorkerSettings()
    configure(settings.log_format, settings.log_level)
    stop = stop_on_signals()
    async with telemetry(settings):
        await _work(settings, stop)


async def _work(settings: WorkerSettings, stop: asyncio.Event) -> None:
    store = await asyncio.to_thread(_store, settings.store)  # an object store may be slow to answer
    client = await SessionClient.connect(task_queue=settings.task_queue, store=store)
    # Asked for its errors, such as a namespace that is not there: the SDK's worker ends itself in a less readable way.
    await client.task_queue_polled()
    await check_bus(settings)
    workers = build_worker(client.temporal, settings, store=store)
    collector.spare()
    logger.info("worker for %s on task queue %s", ", ".join(settings.roles), settings.task_queue)
    await run_until(stop, workers, settings.grace_s)


def _store(place: Place) -> EvidenceStore:
    try:
        return open_store(place)
    except StorePlaceError as error:
        raise SettingsError(f"AFFIDAVIT_STORE: {error}") from None
    except OSError as error:
        why = "not a directory" if isinstance(error, FileExistsError) else error.strerror
        name = place.name if isinstance(place, Path) else str(place)
        raise SettingsError(f"AFFIDAVIT_STORE: {printable(name)}: {why}") from None


def main() -> int:
    """Exit code 0 after a signal (3 if work that hangs was left behind), 2 for a setting that does not fit, 4 where
    no server or no object store answers."""
    try:
        asyncio.run(_run())
    except KeyboardInterrupt:  # before the signal had its handler
        return INTERRUPTED
    except asyncio.CancelledError:  # what a worker that fails does to whoever runs it
        return _failed("the worker cannot go on; the log says why", 4)
    except (*CONFIGURATION_ERRORS, OSError) as error:
        return _failed(worded(error), 2)
    except (AffidavitError, TransientError) as error:
        return _failed(str(error), 4)
    return 0


def worded(error: Exception) -> str:
    """A configuration error, or one of the operating system, as one line."""
    if isinstance(error, ValidationError):
        name, _, why = first_error(error).partition(": ")
        return f"AFFIDAVIT_{name.partition('.')[0].upper()}: {why.removeprefix('Value error, ')}"
    if isinstance(error, OSError) and error.strerror:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        return f"{printable(Path(name).name)}: {error.strerror}" if name else error.strerror
    return str(error)


def _failed(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
