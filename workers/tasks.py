"""What became of a workflow task, asked of Temporal from a workflow's thread."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import takewhile
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client

ANSWER_LIMIT_S: Final = 1.0
"""The SDK gives a workflow task up that holds its thread for two seconds."""
PAGE: Final = 20


class CompletedTasks:
    """Whether a task was completed with certain events alone, by the history of its run."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` runs the client, in another thread than the one that asks."""
        self._client = client
        self._loop = loop

    def __call__(self, workflow_id: str, run_id: str, length: int) -> bool:
        """Whether the last of the first `length` events began a task that was completed and took no update up. No,
        where Temporal does not answer at once."""
        if asyncio._get_running_loop() is self._loop:  # the SDK's debug mode has no other thread
            return False
        asking = asyncio.run_coroutine_threadsafe(self._ask(workflow_id, run_id, length), self._loop)
        try:
            return asking.result(ANSWER_LIMIT_S)
        except Exception:  # noqa: BLE001 - whatever it is: the task that asks fails, and begins anew
            asking.cancel()
            return False

    async def _ask(self, workflow_id: str, run_id: str, length: int) -> bool:
        return was_completed(await self._events_behind(workflow_id, run_id, length))

    async def _events_behind(self, workflow_id: str, run_id: str, length: int) -> list[HistoryEvent]:
        """The events after the first `length`, in order; from the end, because they are the last ones."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            maximum_page_size=PAGE,
        )
        found: list[HistoryEvent] = []
        while True:
            page = await self._client.workflow_service.get_workflow_execution_history_reverse(
                request, timeout=timedelta(seconds=ANSWER_LIMIT_S)
            )
            found += page.history.events
            if not page.next_page_token or (found and found[-1].event_id <= length + 1):
                return [event for event in reversed(found) if event.event_id > length]
            request.next_page_token = page.next_page_token


def was_completed(behind: list[HistoryEvent]) -> bool:
    """Whether these events follow those of a task that was completed, and that took no update up.

    One that core has answered by itself, because all of it was played before it began, was not: what a task says
    with its beginning was not heard.
    """
    if not behind or behind[0].event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
        return False
    own = takewhile(lambda event: event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, behind)
    return all(event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED for event in own)
