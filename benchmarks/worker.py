"""Runs the floor or the naive shape, with the settings of the product's worker: `python -P -m benchmarks.worker`.

BENCH_SHAPE says which, BENCH_FOLDER where the naive shape writes, TEMPORAL_ADDRESS and AFFIDAVIT_TASK_QUEUE where.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from affidavit.converter import data_converter
from benchmarks.floor import Floor
from benchmarks.naive import Naive
from benchmarks.naive_stages import NaiveStages
from workers.running import stop_on_signals
from workers.settings import WorkerSettings
from workers.worker import workflow_runner


async def main() -> None:
    settings = WorkerSettings()
    stop = stop_on_signals()
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], data_converter=data_converter())
    naive = os.environ["BENCH_SHAPE"] == "naive"
    async with Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[Naive] if naive else [Floor],
        activities=NaiveStages(Path(os.environ["BENCH_FOLDER"])).all() if naive else [],
        activity_executor=ThreadPoolExecutor(settings.threads),
        workflow_runner=workflow_runner(),
        max_concurrent_activities=settings.threads,
        max_cached_workflows=settings.max_cached_workflows,
    ):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
