"""Checks of the sessions that Temporal knows: which do not get on, whether their payloads can be opened here, and in
which store they were opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Final

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract
from affidavit.activity_api import OpenResult
from affidavit.answers import readable
from affidavit.client import SessionClient
from affidavit.doctor.places import Places
from affidavit.doctor.report import Verdict, in_thread
from affidavit.doctor.stores import store_of
from affidavit.errors import AnswerUnreadable
from affidavit.evidence.text import printable
from affidavit.stores.errors import StorePlaceError, StoreUnfit, TransientError

CALL: Final = timedelta(seconds=8)
LOOKED_AT: Final = 100
"""Open sessions that are asked about one by one, the newest first; reported problems are searched among all."""
AT_ONCE: Final = 10
NAMED: Final = 5
STALLED_ATTEMPTS: Final = 5
OPENING_EVENTS: Final = 60
"""An opening activity is done within so many events of a session's first run, or the store was away for long."""


class SessionChecks:
    """Around a connected client; every check is a method."""

    def __init__(self, client: SessionClient) -> None:
        self._temporal: Client = client.temporal
        self._of_ours = f'WorkflowType = "{contract.SESSION_WORKFLOW}" AND TaskQueue = "{_quoted(client.task_queue)}"'

    async def progress(self) -> Verdict:
        """That no open session has failing workflow tasks (a bug, or a worker too old), or activities tried in vain."""
        open_now = f'{self._of_ours} AND ExecutionStatus = "Running"'
        newest = [each async for each in self._listed(open_now, LOOKED_AT)]
        reported = await self._reported(open_now)
        descriptions = await self._descriptions(newest)
        failing = list(dict.fromkeys([*reported, *(each.id for each in descriptions if _task_fails(each))]))
        if failing:
            do = "a worker's log says why; the sessions go on by themselves once a worker is mended or upgraded"
            return Verdict("failed", f"failing workflow tasks: {_named(failing)}", do)
        stalled = {each.id: found for each in descriptions if (found := _stalled(each)) is not None}
        if stalled:
            session, why = next(iter(stalled.items()))
            what = f"stalled: {_named(list(stalled))}; {printable(session)}: {why}"
            return Verdict("warning", what, "nothing is lost; they go on once what the error names is mended")
        many = f"{LOOKED_AT} or more" if len(newest) == LOOKED_AT else str(len(newest))
        return Verdict("ok", f"{many} open, none with failing tasks or a stage that does not get on")

    async def payloads(self) -> Verdict:
        """That the payloads of the newest sessions can be opened with the codec keys of this environment."""
        opened = 0
        async for session in self._listed(self._of_ours, NAMED):
            try:
                opened += await self._opened(session) is not None
            except AnswerUnreadable as error:
                do = "clients and workers need the same keys: without them answers cannot be read, and sessions stall"
                return Verdict("failed", str(error), do)
        if not opened:
            return Verdict("not checked", "no session has payloads that could be tried")
        return Verdict("ok", f"those of the newest sessions, {opened}, can be opened")

    async def same_store(self, places: Places) -> Verdict:
        """That the newest session was opened in the store of this machine: all workers must share one."""
        if not places.store.elsewhere and not places.store.path.is_dir():
            return Verdict("not checked", "no evidence store on this machine")
        try:
            here = await in_thread(lambda: store_of(places.store).store_id)
        except (StorePlaceError, StoreUnfit, TransientError):
            return Verdict("not checked", "this machine's evidence store cannot be read")
        async for session in self._listed(self._of_ours, NAMED):
            try:
                opened = await self._opened(session)
            except AnswerUnreadable:
                continue  # `payloads` says so
            if opened is None:
                continue
            if opened.store_id != here:
                what = f"session {printable(session.id)} was opened in store {opened.store_id}, this one is {here}"
                return Verdict("failed", what, "mount one store at all workers; a session waits for workers of its own")
            return Verdict("ok", f"session {printable(session.id)} was opened in this one")
        return Verdict("not checked", "no session tells in which store it was opened")

    async def _listed(self, query: str, limit: int) -> AsyncIterator[WorkflowExecution]:
        async for each in self._temporal.list_workflows(query, limit=limit, page_size=limit, rpc_timeout=CALL):
            yield each

    async def _reported(self, query: str) -> list[str]:
        """Sessions of which the server itself reports problems; older servers do not, and refuse the question."""
        try:
            problems = f"{query} AND TemporalReportedProblems IS NOT NULL"
            return [each.id async for each in self._listed(problems, AT_ONCE)]
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                return []
            raise

    async def _descriptions(self, sessions: Sequence[WorkflowExecution]) -> list[WorkflowExecutionDescription]:
        places = asyncio.Semaphore(AT_ONCE)

        async def describe(session: WorkflowExecution) -> WorkflowExecutionDescription | None:
            async with places:
                try:
                    return await self._temporal.get_workflow_handle(session.id, run_id=session.run_id).describe(
                        rpc_timeout=CALL
                    )
                except RPCError as error:
                    if error.status is RPCStatusCode.NOT_FOUND:
                        return None
                    raise

        found = await asyncio.gather(*(describe(each) for each in sessions))
        return [each for each in found if each is not None]

    async def _opened(self, session: WorkflowExecution) -> OpenResult | None:
        """What the opening activity of a session's first run said, if the server still has that.

        Raises:
            AnswerUnreadable: it cannot be opened with the keys that there are.
        """
        described = await self._temporal.get_workflow_handle(session.id, run_id=session.run_id).describe(
            rpc_timeout=CALL
        )
        first = described.raw_description.workflow_execution_info.first_run_id
        scheduled: set[int] = set()
        number = 0
        try:
            history = self._temporal.get_workflow_handle(session.id, run_id=first).fetch_history_events(
                page_size=OPENING_EVENTS, rpc_timeout=CALL
            )
            async for event in history:
                number += 1
                if event.activity_task_scheduled_event_attributes.activity_type.name == contract.ACTIVITY_OPEN:
                    scheduled.add(event.event_id)
                completed = event.activity_task_completed_event_attributes
                if completed.scheduled_event_id in scheduled:
                    (result,) = await self._temporal.data_converter.decode(completed.result.payloads, [OpenResult])
                    result = readable(result, f"what opened session {printable(session.id)}")
                    return result if isinstance(result, OpenResult) else None
                if number >= OPENING_EVENTS:
                    return None
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _task_fails(description: WorkflowExecutionDescription) -> bool:
    return description.raw_description.pending_workflow_task.attempt > 1


def _stalled(description: WorkflowExecutionDescription) -> str | None:
    """Of the activity that was tried most often: its name, how often, and what it met last."""
    tried = [
        each
        for each in description.raw_description.pending_activities
        if each.attempt >= STALLED_ATTEMPTS and each.HasField("last_failure")
    ]
    if not tried:
        return None
    worst: PendingActivityInfo = max(tried, key=lambda each: each.attempt)
    failure = worst.last_failure
    what = failure.application_failure_info.type or failure.source or "failure"
    why = f"{printable(what)}: {printable(failure.message, 120)}"
    return f"{worst.activity_type.name} tried {worst.attempt} times, {why}"


def _named(sessions: list[str]) -> str:
    more = f" and {len(sessions) - NAMED} more" if len(sessions) > NAMED else ""
    return ", ".join(printable(each) for each in sessions[:NAMED]) + more
