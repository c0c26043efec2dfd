"""Which activations an instance takes that may have been played ahead of its task by a query."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance

from workers.runner import _Careful
from workers.tasks import was_completed

REFUSED = "a query has played the workflow ahead of this task; it begins anew"


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
    """An instance, what it played, and of which lengths of the history was asked."""

    def __init__(self) -> None:
        self.played = Played()
        self.asked: list[tuple[str, int]] = []
        self.completed = False
        self._careful = _Careful(self.played, self._was_completed)

    def _was_completed(self, run_id: str, length: int) -> bool:
        self.asked.append((run_id, length))
        return self.completed

    def replayed(self) -> None:
        """A task, as history has it."""
        assert self.told("initialize_workflow", 3, replaying=True) == ""

    def told(self, kind: str, length: int, *, replaying: bool = False) -> str:
        """Activate with one job at a length of the history; returns why it was refused, or nothing."""
        job = WorkflowActivationJob()
        getattr(job, kind).SetInParent()
        return self._told(job, length, replaying)

    def queried(self, query_id: str, length: int) -> str:
        """Activate with a query."""
        job = WorkflowActivationJob()
        job.query_workflow.query_id = query_id
        return self._told(job, length, True)

    def _told(self, job: WorkflowActivationJob, length: int, replaying: bool) -> str:
        act = WorkflowActivation(run_id="r", is_replaying=replaying, jobs=[job], history_length=length)
        return self._careful.activate(act).failed.failure.message


@pytest.fixture
def instance() -> Instance:
    return Instance()


def test_what_a_query_has_played_ahead_is_shown_and_takes_no_task(instance: Instance) -> None:
    instance.replayed()
    assert instance.told("resolve_activity", 8) == ""
    assert instance.queried("legacy_query", 8) == ""
    assert instance.told("do_update", 12) == REFUSED
    assert instance.asked == [("r", 8)]
    assert instance.played.kinds == ["initialize_workflow", "resolve_activity", "query_workflow"]


def test_a_task_that_was_completed_is_followed_by_the_next(instance: Instance) -> None:
    instance.completed = True
    instance.replayed()
    assert instance.told("resolve_activity", 9) == ""
    assert instance.queried("legacy_query", 9) == ""
    assert instance.told("signal_workflow", 14) == ""
    assert instance.queried("legacy_query", 14) == ""
    assert instance.told("do_update", 20) == ""
    assert instance.told("signal_workflow", 26) == ""
    assert instance.asked == [("r", 9), ("r", 14)]


def test_nothing_is_asked_where_no_query_can_have_played_it(instance: Instance) -> None:
    instance.replayed()
    assert instance.told("resolve_activity", 9) == ""
    assert instance.queried("of-a-task", 9) == ""
    assert instance.told("signal_workflow", 14) == ""
    assert instance.told("remove_from_cache", 14) == ""
    assert instance.asked == []


def test_an_update_comes_with_a_task(instance: Instance) -> None:
    instance.replayed()
    assert instance.told("do_update", 9) == ""
    assert instance.queried("legacy_query", 9) == ""
    assert instance.told("signal_workflow", 14) == ""
    assert instance.asked == []


def test_one_that_was_in_the_cache_may_have_been_played_ahead_too(instance: Instance) -> None:
    assert instance.told("initialize_workflow", 3) == ""
    assert instance.told("resolve_activity", 8) == ""
    assert instance.queried("legacy_query", 8) == ""
    assert instance.told("do_update", 9) == REFUSED
    assert instance.asked == [("r", 8)]


@pytest.mark.parametrize(
    ("behind", "completed"),
    [
        (["TASK_COMPLETED"], True),
        (["TASK_COMPLETED", "TASK_SCHEDULED", "TASK_STARTED", "TASK_COMPLETED", "EXECUTION_UPDATE_ACCEPTED"], True),
        (["TASK_COMPLETED", "EXECUTION_UPDATE_COMPLETED", "TASK_SCHEDULED", "TASK_STARTED"], True),
        (["TASK_COMPLETED", "EXECUTION_UPDATE_ACCEPTED", "TASK_SCHEDULED", "TASK_STARTED"], False),
        (["TASK_STARTED", "TASK_COMPLETED"], False),
        (["TASK_TIMED_OUT", "TASK_SCHEDULED", "TASK_STARTED"], False),
        (["TASK_FAILED", "TASK_SCHEDULED", "TASK_STARTED"], False),
        (["TASK_STARTED"], False),
        (["TASK_SCHEDULED", "TASK_STARTED", "TASK_COMPLETED"], False),
        (["TASK_STARTED", "TASK_TIMED_OUT", "TASK_SCHEDULED", "TASK_STARTED", "TASK_COMPLETED"], False),
        ([], False),
    ],
)
def test_a_task_was_completed_as_it_was_played_where_that_follows_and_no_update_came_with_it(
    behind: list[str], completed: bool
) -> None:
    kinds = [EventType.Value(f"EVENT_TYPE_WORKFLOW_{name}") for name in behind]
    assert was_completed([HistoryEvent(event_type=kind) for kind in kinds]) is completed
