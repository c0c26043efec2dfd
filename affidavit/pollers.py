"""Who asks Temporal for the work of a task queue."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

WORKFLOWS = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


async def pollers(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> Sequence[PollerInfo]:
    """Those that polled a task queue of the client's namespace within the last minutes, as Temporal remembers them.

    Args:
        kind: `WORKFLOWS` or `ACTIVITIES`: a queue's tasks of one kind are polled for apart from the other's.

    Raises:
        RPCError: the server does not answer.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind
    )
    answer = await client.workflow_service.describe_task_queue(request)
    return answer.pollers
