"""One dev server in memory, and on it a worker process for each shape that is measured, side by side."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from temporalio.client import Client, WorkflowHandle

from affidavit.client import SessionHandle
from affidavit.converter import data_converter, raw_json
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig
from workers.devserver import DevServer

Shape = Literal["floor", "naive", "product"]
SHAPES: Final[tuple[Shape, ...]] = ("floor", "naive", "product")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_WORKER: Final = ("-m", "benchmarks.worker")


@dataclass(frozen=True)
class Bench:
    """Where to measure. `pids` are those of the workers."""

    rig: Rig
    folder: Path
    server: DevServer
    client: Client
    pids: Mapping[Shape, int]

    async def start(self, shape: Shape) -> WorkflowHandle[object, object] | SessionHandle:
        """A session of the product, or a workflow of one of the other shapes, ready to take signals."""
        if shape == "product":
            return await self.rig.open()
        handle = await self.client.start_workflow(
            shape.title(), raw_json(b"{}"), id=f"{shape}-{uuid.uuid4()}", task_queue=self.queue(shape)
        )
        await handle.execute_update("flush")
        return handle

    def raw(self, handle: WorkflowHandle[object, object] | SessionHandle) -> WorkflowHandle[object, object]:
        """What signals and updates are sent to: the same client for all shapes."""
        return self.client.get_workflow_handle(handle.session_id) if isinstance(handle, SessionHandle) else handle

    def queue(self, shape: Shape) -> str:
        return f"{self.rig.settings.task_queue}-{shape}"

    def cpu_s(self, shape: Shape) -> float:
        """Processor time that a worker has used."""
        return cpu_s(self.pids[shape])


def cpu_s(pid: int) -> float:
    """User and system time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def rss(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    """Everything up; ended with the block."""
    async with AsyncExitStack() as stack:
        server = await DevServer.start(log=folder / "server.log", headless=True)
        stack.push_async_callback(server.stop)
        rig = await Rig.make(server.address, folder / "data")
        rig.client.admit_timeout = 120
        client = await Client.connect(server.address, data_converter=data_converter())
        pids: dict[Shape, int] = {}
        queue = rig.settings.task_queue
        for shape in SHAPES:
            changes = {"BENCH_SHAPE": shape, "BENCH_FOLDER": str(folder)}
            if shape != "product":
                changes["AFFIDAVIT_TASK_QUEUE"] = f"{queue}-{shape}"
            env = environment(rig, server.address, **changes)
            arguments = WORKERS if shape == "product" else _WORKER
            running = await stack.enter_async_context(process(arguments, env, folder / f"{shape}.log"))
            pids[shape] = running.pid
        yield Bench(rig, folder, server, client, pids)
