"""`python -m workers.health`: whether the worker of this host asks Temporal for work; a health check for containers.

It needs no port and nothing beside the worker: Temporal lists who has polled a task queue of late, by the identity that
the SDK makes of process and host. In a container the host's name is the container's own.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import ValidationError
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.client import Client
from temporalio.service import RPCError

from affidavit.client import SessionClient
from affidavit.contract import signing_queue
from affidavit.errors import AffidavitError
from affidavit.exiting import leave
from affidavit.pollers import ACTIVITIES, WORKFLOWS, pollers
from workers.settings import WorkerSettings

SEEN_WITHIN: Final = timedelta(seconds=150)
"""A poll waits for a minute before it is asked again, and Temporal remembers one for five."""

LIMIT_S: Final = 10.0


async def missing(settings: WorkerSettings, host: str, client: Client) -> list[str]:
    """The task queues that nobody on this host has polled of late, though its roles say so."""
    queues = {
        "session": (settings.task_queue, WORKFLOWS),
        "signing": (signing_queue(settings.task_queue), ACTIVITIES),
    }
    found = []
    for role in settings.roles:
        name, kind = queues[role]
        if not _polled(await pollers(client, name, kind), host):
            found.append(name)
    return found


def _polled(pollers: Iterable[PollerInfo], host: str) -> bool:
    since = datetime.now(UTC) - SEEN_WITHIN
    return any(
        poller.identity.endswith(f"@{host}") and poller.last_access_time.ToDatetime(UTC) >= since for poller in pollers
    )


async def _check() -> str | None:
    settings = WorkerSettings()
    async with asyncio.timeout(LIMIT_S):
        client = await SessionClient.connect(task_queue=settings.task_queue)
        lacking = await missing(settings, socket.gethostname(), client.temporal)
    return f"no worker of this host polls {' and '.join(lacking)}" if lacking else None


def main() -> int:
    """Exit code 0 where the worker polls all of its task queues, else 1 with one line."""
    try:
        wrong = asyncio.run(_check())
    except (AffidavitError, RPCError, TimeoutError) as error:
        wrong = str(error) or "Temporal does not answer in time"
    except ValidationError:
        wrong = "the worker's settings do not fit; its own log says which"
    if wrong is not None:
        print(f"unhealthy: {wrong}", file=sys.stderr)
    return 0 if wrong is None else 1


if __name__ == "__main__":
    leave(main())
