"""A worker of the campaign: the product's own wiring, with a failpoint around what it is given.

It is given an embedder only where it is to stop at a stage of embedding: the sessions that any other opens have their
responses measured as shipped, in the workflow task.

`python -P -m tests.crash.worker`; CRASH_AT is a JSON list of [stage, passages], CRASH_RELEASE the prefix of the files
that let go.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

from activities.buses.sqlite import SqliteBus
from affidavit.client import SessionClient
from affidavit.stores.local import DirectoryStore
from tests.crash.failpoints import FailingEmbedder, Failpoint, fail_in_workflow_code, failing_bus, failing_store
from tests.crash.stages import EMBEDDING
from workers.running import run_until, stop_on_signals
from workers.settings import WorkerSettings
from workers.worker import build_worker


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    stages = [(str(stage), int(passages)) for stage, passages in json.loads(os.environ["CRASH_AT"])]
    failpoint = Failpoint(stages, Path(os.environ["CRASH_RELEASE"]))
    fail_in_workflow_code(failpoint)
    settings = WorkerSettings()
    evidence = DirectoryStore(settings.store)
    stop = stop_on_signals()
    client = await SessionClient.connect(task_queue=settings.task_queue, store=evidence)
    workers = build_worker(
        client.temporal,
        settings,
        store=failing_store(evidence, failpoint),
        bus=failing_bus(SqliteBus(settings.bus), failpoint),
        embedder=FailingEmbedder(failpoint) if any(stage in EMBEDDING for stage, _ in stages) else None,
    )
    await run_until(stop, workers, settings.grace_s)


if __name__ == "__main__":
    asyncio.run(main())
