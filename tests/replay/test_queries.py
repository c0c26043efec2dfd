"""H3: a query that reaches a worker ahead of a workflow task leaves no history that cannot be replayed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from affidavit.contract import PLAYED_AHEAD
from affidavit.rpc import asked, persist
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workers.runner import CarefulRunner
from workers.tasks import CompletedTasks

ASKED_AT_ONCE = 4
_LIMIT = timedelta(minutes=1)


@workflow.defn
class Two:
    """Two activities, one after the other, and an update that is waited for; beside them a query."""

    def __init__(self) -> None:
        self._done = 0
        self._has_told = False

    @workflow.run
    async def run(self) -> None:
        for _ in range(2):
            await workflow.execute_activity(
                "work", task_queue=self._work(), start_to_close_timeout=timedelta(minutes=1)
            )
            self._done += 1
        await workflow.wait_condition(lambda: self._has_told)

    def _work(self) -> str:
        return f"{workflow.info().task_queue}-work"

    @workflow.update
    async def done(self) -> int:
        """How many have ended."""
        self._has_told = True
        return self._done

    @workflow.query
    def asked(self) -> int:
        """The same."""
        return self._done


class Life:
    """A workflow whose worker went away; meanwhile it was asked, an activity ended, and an update was sent."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue = f"queries-{uuid.uuid4()}"
        self._may_end = asyncio.Event()

    @activity.defn(name="work")
    async def _work(self) -> None:
        await self._may_end.wait()

    @asynccontextmanager
    async def worker(self, runner: WorkflowRunner) -> AsyncIterator[None]:
        """A worker that has not seen the workflow."""
        async with Worker(self._client, task_queue=self._queue, workflows=[Two], workflow_runner=runner):
            yield

    @asynccontextmanager
    async def left_alone(self) -> AsyncIterator[WorkflowHandle[Two, None]]:
        async with Worker(self._client, task_queue=f"{self._queue}-work", activities=[self._work]):
            async with self.worker(UnsandboxedWorkflowRunner()):
                handle = await self._client.start_workflow(Two.run, id=self._queue, task_queue=self._queue)
                await handle.query(Two.asked)
            yield handle

    async def end_activity(self, handle: WorkflowHandle[Two, None]) -> None:
        """Let the first one end, and wait until the task that hears of it is on its way."""
        self._may_end.set()

        async def told() -> bool:
            history = await handle.fetch_history()
            return history.events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED

        await eventually(told, bool)


def careful(client: Client) -> CarefulRunner:
    """As a worker has it."""
    return CarefulRunner(CompletedTasks(client, asyncio.get_running_loop()))


@pytest.mark.failed_tasks  # that of an instance which a query has played ahead
async def test_h3_a_query_ahead_of_a_task_leaves_a_history_that_replays(server: DevServer) -> None:
    client = await Client.connect(server.address, namespace=server.namespace)
    for _ in range(3):  # a slow machine may not meet the case at once
        if await begun_anew(client):
            return
    raise AssertionError("no query came ahead of a task")


async def never() -> bool:
    """No run follows."""
    return False


async def begun_anew(client: Client) -> bool:
    """Live through it, and replay the history. Returns whether a task was failed for it."""
    life = Life(client)
    async with life.left_alone() as handle:
        questions = [
            asyncio.create_task(asked(lambda limit: handle.query(Two.asked, rpc_timeout=limit)))
            for _ in range(ASKED_AT_ONCE)
        ]
        await asyncio.sleep(0.5)  # nothing tells that a query waits for a worker
        await life.end_activity(handle)
        update = asyncio.create_task(persist(lambda: handle.execute_update(Two.done), within=60, goes_on=never))
        await asyncio.sleep(0.2)  # nor that an update does
        async with life.worker(careful(client)):
            await update
            assert set(await asyncio.gather(*questions)) <= {1, 2}
            await handle.result()
    history = await handle.fetch_history()
    replayer = Replayer(workflows=[Two], workflow_runner=UnsandboxedWorkflowRunner())
    assert (await replayer.replay_workflow(history)).replay_failure is None
    failed = [event.workflow_task_failed_event_attributes.failure.message for event in history.events]
    return PLAYED_AHEAD in failed


async def test_a_terminated_workflow_can_be_asked_though_events_were_left(server: DevServer) -> None:
    """No task takes up what stands behind its last one."""
    client = await Client.connect(server.address, namespace=server.namespace)
    life = Life(client)
    async with life.left_alone() as handle:
        await life.end_activity(handle)
        await handle.terminate()
        async with life.worker(careful(client)):
            assert await asked(lambda limit: handle.query(Two.asked, rpc_timeout=limit)) == 1
