"""`python -m workers`: run a worker until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from pydantic import ValidationError

from affidavit.buslog import BusLogError
from affidavit.client import SessionClient
from affidavit.errors import AffidavitError
from affidavit.evidence.errors import EvidenceError
from affidavit.validation import first_error
from workers.settings import SettingsError, WorkerSettings
from workers.worker import build_worker, run_until

CONFIGURATION_ERRORS = (SettingsError, EvidenceError, BusLogError, AffidavitError)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _run() -> None:
    settings = WorkerSettings()
    stop = stop_on_signals()
    client = await SessionClient.connect(task_queue=settings.task_queue)
    workers = build_worker(client.temporal, settings)
    logging.getLogger("workers").info("worker for %s on task queue %s", ", ".join(settings.roles), settings.task_queue)
    await run_until(stop, workers)


def main() -> int:
    """Exit code 0 after a signal, 2 for a setting that does not fit, 4 where no server answers."""
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
