"""Has Temporal forget the executions of one life of a session: every run of it, and its promotion (process.md P19)."""

from __future__ import annotations

import re
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from affidavit.contract import promotion_id

_PLAIN: Final = re.compile(r"[^'\"\\]+")
"""Ids that stand in a query of the visibility store as they are."""


async def lives(temporal: Client, session_id: str, generation: str) -> bool:
    """Whether that life of a session, or its promotion, still runs, by Temporal's word."""
    executions: list[tuple[str, str | None]] = [(promotion_id(session_id, generation), None)]
    executions += [(session_id, run_id) for run_id in (await runs_of(temporal, session_id, generation))[-1:]]
    for workflow_id, run_id in executions:
        try:
            found = await temporal.get_workflow_handle(workflow_id, run_id=run_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                continue
            raise
        if found.status is WorkflowExecutionStatus.RUNNING:
            return True
    return False


async def forget(temporal: Client, session_id: str, generation: str) -> int:
    """Delete every run of a life that has ended, and its promotion. Temporal does it a moment later.

    The last run goes first: what is left after a crash is then still found from the first one on.

    Returns:
        How many executions were known.
    """
    known = [(session_id, run_id) for run_id in reversed(await runs_of(temporal, session_id, generation))]
    known.append((promotion_id(session_id, generation), ""))
    deleted = 0
    for workflow_id, run_id in known:
        try:
            await temporal.workflow_service.delete_workflow_execution(
                DeleteWorkflowExecutionRequest(
                    namespace=temporal.namespace,
                    workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
                )
            )
            deleted += 1
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    return deleted


async def runs_of(temporal: Client, session_id: str, generation: str) -> list[str]:
    """Ids of the runs of one life that Temporal still knows, the first one first."""
    found: list[str] = []
    run_id = generation
    while run_id:
        next_id = await _next_run(temporal, session_id, run_id)
        if next_id is None:
            break
        found.append(run_id)
        run_id = next_id
    if not found and _PLAIN.fullmatch(session_id):
        # The first runs are forgotten first; later ones stand in the visibility store alone.
        async for execution in temporal.list_workflows(f"WorkflowId = '{session_id}'"):
            if execution.run_id not in found and await _first_run(temporal, session_id, execution.run_id) == generation:
                found.insert(0, execution.run_id)
    return found


async def _next_run(temporal: Client, session_id: str, run_id: str) -> str | None:
    """The run that a run was continued as, "" for the last one; None if there is no such run (any more)."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=temporal.namespace,
        execution=WorkflowExecution(workflow_id=session_id, run_id=run_id),
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
    )
    try:
        found = await temporal.get_workflow_handle(session_id, run_id=run_id).describe()
        if found.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return ""  # of one that runs the server would wait for the last event
        answer = await temporal.workflow_service.get_workflow_execution_history(request)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    continued = [each.workflow_execution_continued_as_new_event_attributes for each in answer.history.events]
    return next((each.new_execution_run_id for each in continued if each.new_execution_run_id), "")


async def _first_run(temporal: Client, session_id: str, run_id: str) -> str | None:
    try:
        found = await temporal.get_workflow_handle(session_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    first: str = found.raw_description.workflow_execution_info.first_run_id
    return first
