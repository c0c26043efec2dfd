"""Finds the sessions that others wake, and sends them their wakes (process.md P18).

A client of Temporal does it, not the workflow by an external signal: a signal to a workflow id goes to whichever life
runs under it by then, and is reported back without a word on which that was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.errors import IntegrityError, told_to_temporal
from affidavit.contract import SESSION_WORKFLOW
from affidavit.converter import raw_json
from affidavit.errors import AffidavitError, SessionNotFound
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.capture import normalise_step, read_reported
from affidavit.granting import Grants
from affidavit.grants import holder_of
from affidavit.rpc import SHORT_CALL, Line
from affidavit.waking_api import (
    ACTIVITY_DELIVER,
    ACTIVITY_LOCATE,
    SIGNAL_WOKEN,
    DeliverRequest,
    DeliverResult,
    Found,
    LocateRequest,
    LocateResult,
    WakeToDeliver,
)

BOOK_LIMIT_S = 3.0
"""The book of grants may be without a worker; no wake waits for that."""
SIGNAL_LIMIT_S = 2.0
ROUND_LIMIT_S = 10.0
"""Less than the time limit of the activity, so that what went out is told."""


class WakingActivity:
    """Around a client of the namespace in which the sessions run."""

    def __init__(self, temporal: Client, task_queue: str) -> None:
        self._temporal = temporal
        self._grants = Grants(temporal, task_queue, BOOK_LIMIT_S)

    @activity.defn(name=ACTIVITY_LOCATE)
    async def locate(self, request: LocateRequest) -> LocateResult:
        """The life that runs under each target, if any does and the holder of that name was not deleted."""
        with told_to_temporal():
            _caller()
            found = LocateResult()
            for target in request.targets:
                where = await self._locate(target)
                if where in ("missing", "deleted"):
                    found.absent[target] = where
                else:
                    found.generations[target] = where
            return found

    @activity.defn(name=ACTIVITY_DELIVER)
    async def deliver(self, request: DeliverRequest) -> DeliverResult:
        """Send wakes in order. A target that does not take one gets no later one in this round."""
        with told_to_temporal():
            session_id = _caller()
            result, silent = DeliverResult(), set[tuple[str | None, str]]()
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND_LIMIT_S):
                    for wake in request.wakes:
                        # Not the target as given: `id` and `id#generation` are two ways to spell one life.
                        life = (holder_of(wake.target), wake.generation)
                        if life in silent:
                            continue
                        try:
                            await self._send(wake, _woken(session_id, request.generation, wake))
                            result.delivered.append(wake.wake_id)
                        except SessionNotFound:
                            result.missing.append(wake.wake_id)
                        except AffidavitError as error:
                            activity.logger.warning("a wake is tried again later: %s", error)
                            silent.add(life)
            return result

    async def _locate(self, target: str) -> str | Found:
        session_id = holder_of(target)
        if session_id is None:
            return "missing"
        with suppress(AffidavitError, TimeoutError):
            async with asyncio.timeout(BOOK_LIMIT_S):
                if await self._grants.deleted(session_id):
                    return "deleted"
        try:
            found = await self._temporal.get_workflow_handle(session_id).describe(rpc_timeout=SHORT_CALL)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return "missing"
            raise
        generation: str = found.raw_description.workflow_execution_info.first_run_id
        wanted = target.partition("#")[2]
        runs = found.workflow_type == SESSION_WORKFLOW and found.status is WorkflowExecutionStatus.RUNNING
        return generation if runs and wanted in ("", generation) else "missing"

    async def _send(self, wake: WakeToDeliver, message: bytes) -> None:
        session_id = holder_of(wake.target)
        assert session_id is not None
        # Aimed at runs of the one life, so that a later life of the id never gets it.
        line = Line(self._temporal, session_id, wake.generation, SIGNAL_LIMIT_S)
        await line.send(SIGNAL_WOKEN, raw_json(message))


def _caller() -> str:
    """The session that wakes, by Temporal's word."""
    info = activity.info()
    if info.workflow_id is None or info.workflow_type != SESSION_WORKFLOW:
        raise IntegrityError("only a session wakes another one")
    return info.workflow_id


def _woken(session_id: str, generation: str, wake: WakeToDeliver) -> bytes:
    """The step that the target gets: the input as the sender's capture has it."""
    captured = normalise_step(read_reported(wake.step))
    return canonicalize(
        {
            "kind": "wake",
            "input": captured["input"],
            "wake_id": wake.wake_id,
            "source": {"session_id": session_id, "generation": generation, "sequence": wake.sequence},
        }
    )
