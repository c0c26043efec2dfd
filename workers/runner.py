"""Runs workflows, and keeps a query from playing one ahead of its next workflow task.

A query that reaches a worker without the workflow in its cache brings the history along, with events that no task has
taken up yet. The SDK's core (temporalio 1.35) plays those too, and goes on from there when the task comes: what was
there before the query and what came after it make two activations now, and one in every replay. Where an update came
with the task, commands then stand in history in an order that no replay gives, and no worker can go on with the
workflow. So what would be played ahead is refused: the query fails, core forgets the workflow, and the task, which is
on its way, begins with all of it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from affidavit.contract import ASK_AGAIN

PATIENCE_S: Final = 3.0
_REMEMBERED: Final = 1000
_FORGOTTEN_S: Final = 60.0
_QUIET: Final = frozenset({"query_workflow", "remove_from_cache"})


class CarefulRunner(UnsandboxedWorkflowRunner):
    """The SDK's runner without its sandbox, of instances that are not played ahead. Where there are no updates, being
    played ahead changes nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._waiting = _Waiting(clock)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner.create_instance`."""
        instance = super().create_instance(det)
        return _Careful(instance, self._waiting) if det.defn.updates else instance


class _Waiting:
    """Since when runs have kept queries waiting. After a while they are let in all the same: nothing takes up the
    events behind the last task of a run that was terminated."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """When the first query was refused, and the last one."""

    def is_over(self, run_id: str) -> bool:
        with self._lock:
            now = self._clock()
            since, last = self._since.pop(run_id, (now, now))
            if now - last > _FORGOTTEN_S:  # another worker took the task: this is another wait
                since = now
            self._since[run_id] = since, now
            if len(self._since) > _REMEMBERED:
                self._since.popitem(last=False)
            return now - since >= PATIENCE_S

    def ends(self, run_id: str) -> None:
        with self._lock:
            self._since.pop(run_id, None)


class _Careful(WorkflowInstance):
    """An instance that was let ahead after all takes no task any more: the next one fails, and begins anew."""

    def __init__(self, instance: WorkflowInstance, waiting: _Waiting) -> None:
        self._instance = instance
        self._waiting = waiting
        self._task_time: int | None = None
        self._is_ahead = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if all(job.WhichOneof("variant") in _QUIET for job in act.jobs):
            return self._instance.activate(act)
        if self._is_ahead:
            return _refusal()
        # A task has a time of its own: that of its start.
        task_time = act.timestamp.ToNanoseconds()
        if not act.is_replaying and task_time == self._task_time:
            if not self._waiting.is_over(act.run_id):
                return _refusal()
            self._is_ahead = True
        elif not act.is_replaying:
            self._waiting.ends(act.run_id)
        self._task_time = task_time
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


def _refusal() -> WorkflowActivationCompletion:
    completion = WorkflowActivationCompletion()
    completion.failed.failure.message = ASK_AGAIN
    return completion
