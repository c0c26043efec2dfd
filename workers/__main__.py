"""`python -m workers`: run a worker until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from pydantic import ValidationError

from affidavit.buslog import BusLogError
from affidavit.client import SessionClient
from affidavit.errors import AffidavitError
from affidavit.evidence.errors import EvidenceError
from affidavit.validation import first_error
from workers.settings import SettingsError, WorkerSettings
from workers.worker import Workers, build_worker

logger = logging.getLogger("workers")

HAND_BACK_S = 2.0
"""Seconds after the grace in which cancelled work may end."""

EXIT_UNFINISHED = 3

CONFIGURATION_ERRORS = (SettingsError, EvidenceError, BusLogError, AffidavitError)


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
    stop = stop_on_signals()
    client = await SessionClient.connect(task_queue=settings.task_queue)
    workers = build_worker(client.temporal, settings)
    logger.info("worker for %s on task queue %s", ", ".join(settings.roles), settings.task_queue)
    await run_until(stop, workers, settings.grace_s)


def main() -> int:
    """Exit code 0 after a signal (3 if work that hangs was left behind), 2 for a setting that does not fit, 4 where
    no server answers."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_run())
    except ValidationError as error:
        print(f"error: settings: {first_error(error)}", file=sys.stderr)
        return 2
    except AffidavitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    except CONFIGURATION_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
