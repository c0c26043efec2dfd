"""Runs workflows, and lets no instance go on that a query has played ahead of its next workflow task.

A query that reaches a worker without the workflow in its cache brings the history along, with events that no task has
taken up yet. The SDK's core (temporalio 1.35) plays those too, and goes on from there when the task comes: what was
there before the query and what came after it make two activations now, and one in every replay. Where an update came
with the task, commands then stand in history in an order that no replay gives, and no worker can go on with the
workflow.

The query may be answered so. But before such an instance goes on, history is asked what became of the task that it has
played: was it completed as it was played, the instance is as a replay would make it; else the next task fails, core
forgets the instance, and the task, when it comes again, begins with all there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from affidavit.contract import PLAYED_AHEAD

_QUIET: Final = frozenset({"query_workflow", "remove_from_cache"})
_ALONE: Final = "legacy_query"
"""What core calls a query that no workflow task brings along."""

WasCompleted = Callable[[str, str, int], bool]
"""Whether, of a workflow and a run, the task that takes up the events up to a number was completed with these alone."""


class CarefulRunner(UnsandboxedWorkflowRunner):
    """The SDK's runner without its sandbox, of instances that do not go on from where a query has played them to. Where
    there are no updates, being played ahead changes nothing."""

    def __init__(self, was_completed: WasCompleted) -> None:
        """`was_completed` is asked in a workflow's thread."""
        self._was_completed = was_completed

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner.create_instance`."""
        instance = super().create_instance(det)
        if not det.defn.updates:
            return instance
        return _Careful(instance, functools.partial(self._was_completed, det.info.workflow_id))


class _Careful(WorkflowInstance):
    """A worker that has the workflow in its cache may get history with a query as well, where the workflow's own queue
    was given up."""

    def __init__(self, instance: WorkflowInstance, was_completed: Callable[[str, int], bool]) -> None:
        """`was_completed`: of a run, see `WasCompleted`."""
        self._instance = instance
        self._was_completed = was_completed
        self._last: int | None = None
        """Length of the history at the last activation, if a query can have been what it was played for."""
        self._is_doubtful = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if all(job.WhichOneof("variant") in _QUIET for job in act.jobs):
            self._is_doubtful |= any(job.query_workflow.query_id == _ALONE for job in act.jobs)
            return self._instance.activate(act)
        if self._last is not None and self._is_doubtful and not self._was_completed(act.run_id, self._last):
            completion = WorkflowActivationCompletion()
            completion.failed.failure.message = PLAYED_AHEAD
            return completion
        self._last = None if act.is_replaying or _has_update(act) else act.history_length
        self._is_doubtful = False
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


def _has_update(act: WorkflowActivation) -> bool:
    """An update comes with a task, never with a query."""
    return any(job.HasField("do_update") for job in act.jobs)
