"""Which activations an instance takes: what a query plays ahead of a workflow task is refused."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance

from workers.runner import _Careful, _Waiting

REFUSED = "another worker is taking the workflow up; ask again"


class Played(WorkflowInstance):
    """Notes the first kind of job of each activation; nothing else is asked of it."""

    def __init__(self) -> None:
        self.kinds: list[str | None] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.kinds.append(act.jobs[0].WhichOneof("variant"))
        return WorkflowActivationCompletion()

    def get_serialization_context(self, command_info: Any) -> Any:
        raise NotImplementedError

    def get_external_store_context(self, command_info: Any) -> Any:
        raise NotImplementedError

    def get_info(self) -> Any:
        raise NotImplementedError


class Instance:
    """An instance, what it played, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.played = Played()
        self._waiting = _Waiting(lambda: self.now)
        self._careful = _Careful(self.played, self._waiting)

    def anew(self) -> None:
        """As after an eviction."""
        self._careful = _Careful(self.played, self._waiting)

    def told_ahead(self, task: int = 1) -> str:
        """Replay a task, and activate in its time once more."""
        self.told("initialize_workflow", task, replaying=True)
        return self.told("resolve_activity", task)

    def told(self, kind: str, task: int, *, replaying: bool = False) -> str:
        """Activate with one job in the time of a task; returns why it was refused, or nothing."""
        job = WorkflowActivationJob()
        getattr(job, kind).SetInParent()
        act = WorkflowActivation(run_id="r", is_replaying=replaying, jobs=[job])
        act.timestamp.FromNanoseconds(task)
        return self._careful.activate(act).failed.failure.message


@pytest.fixture
def instance() -> Instance:
    return Instance()


def test_tasks_queries_and_evictions_are_taken_as_they_come(instance: Instance) -> None:
    assert instance.told("initialize_workflow", 1) == ""
    assert instance.told("query_workflow", 1) == ""
    assert instance.told("signal_workflow", 2) == ""
    assert instance.told("remove_from_cache", 2) == ""
    assert instance.played.kinds == ["initialize_workflow", "query_workflow", "signal_workflow", "remove_from_cache"]


def test_a_replay_may_cut_a_task_as_it_likes(instance: Instance) -> None:
    assert instance.told("initialize_workflow", 1, replaying=True) == ""
    assert instance.told("resolve_activity", 1, replaying=True) == ""


def test_what_comes_in_the_time_of_the_task_before_is_refused(instance: Instance) -> None:
    assert instance.told_ahead() == REFUSED
    assert instance.played.kinds == ["initialize_workflow"]


def test_an_instance_that_was_let_ahead_answers_queries_and_takes_no_task(instance: Instance) -> None:
    assert instance.told_ahead() == REFUSED
    instance.anew()
    instance.now = 2.9
    assert instance.told_ahead() == REFUSED
    instance.anew()
    instance.now = 3.0
    assert instance.told_ahead() == ""
    assert instance.told("query_workflow", 1) == ""
    assert instance.told("do_update", 2) == REFUSED


def test_a_task_that_is_taken_up_begins_the_wait_anew(instance: Instance) -> None:
    assert instance.told_ahead() == REFUSED
    instance.anew()
    instance.now = 3.0
    instance.told("initialize_workflow", 1, replaying=True)
    assert instance.told("resolve_activity", 2) == ""
    instance.anew()
    instance.now = 4.0
    assert instance.told_ahead(2) == REFUSED


def test_a_wait_that_was_long_ago_is_another_one(instance: Instance) -> None:
    assert instance.told_ahead() == REFUSED
    instance.anew()
    instance.now = 60.1
    assert instance.told_ahead(2) == REFUSED
