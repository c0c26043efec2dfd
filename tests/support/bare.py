"""A session spoken to by bare Temporal messages: nothing is batched, numbered or retried on the way."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from affidavit import rpc
from tests.support.foreign import json_payload
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S

Json = dict[str, Any]


def call(call_id: str, **fields: Any) -> Json:
    return {"kind": "tool_call", "call_id": call_id, "tool": "search", "allowed": True, **fields}


def said(text: str, **fields: Any) -> Json:
    return {"kind": "model_response", "text": text, **fields}


def asked(**fields: Any) -> Json:
    return {"kind": "model_request", "messages": [{"role": "user", "content": "go on"}], **fields}


def failed(**fields: Any) -> Json:
    return {"kind": "model_failure", "reason": "timeout", **fields}


@dataclass(frozen=True)
class Bare:
    """One session by its id; every message goes to the newest run."""

    rig: Rig
    session_id: str

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.rig.client.temporal.get_workflow_handle(self.session_id)

    # -- messages --------------------------------------------------------------------------------------

    async def step(self, step: Json) -> None:
        """One step in a signal of its own."""
        await self.handle.signal(step["kind"], json_payload(step))

    async def record(self, *steps: Json) -> None:
        await self.handle.signal("record", json_payload({"steps": list(steps)}))

    async def update(self, name: str, argument: Json | None = None, *, update_id: str | None = None) -> Json:
        """Execute an update once; raises what the client raises."""
        args = [] if argument is None else [json_payload(argument)]
        answer: Json = await self.handle.execute_update(name, args=args, id=update_id)
        return answer

    async def start_update(self, name: str, argument: Json | None = None) -> asyncio.Task[Json]:
        """Start an update, and return once the session has accepted it."""
        args = [] if argument is None else [json_payload(argument)]
        started = await self.handle.start_update(name, args=args, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        return asyncio.ensure_future(started.result())

    async def admit(self, attempt_id: str | None = None, **request: Any) -> Json:
        return await self.update("admit", {**({} if attempt_id is None else {"attempt_id": attempt_id}), **request})

    async def submit(self, *steps: Json, update_id: str | None = None) -> Json:
        return await self.update("submit", {"steps": list(steps)}, update_id=update_id)

    async def persistently(self, name: str, argument: Json | None = None) -> tuple[Json, list[str]]:
        """An update under one id, asked again for as long as that may help; with the reasons to ask again."""
        update_id, reasons = str(uuid.uuid4()), list[str]()
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    return await self.update(name, argument, update_id=update_id), reasons
                except WorkflowUpdateFailedError as error:
                    type_ = error.cause.type if isinstance(error.cause, ApplicationError) else None
                    if type_ not in ("RollingOver", "Busy", "AcceptedUpdateCompletedWorkflow", "UnprocessedUpdate"):
                        raise
                    reasons.append(type_)
                except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                    rpc.check_cancelled(error)  # else neither the limit nor the end of the test would end this
                    reasons.append("timeout")
                except RPCError as error:
                    # How the server words that the run ends in the very task in which the update came.
                    lost_race = error.message.endswith(("unexpected workflow task failure.", "workflow is closing"))
                    if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.UNAVAILABLE) and not lost_race:
                        raise
                    reasons.append(error.status.name)
                await asyncio.sleep(0.05)

    async def refusal(self, name: str, argument: Json | None = None) -> tuple[str | None, str]:
        """Type and text with which an update is refused, sooner than a store is held."""
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            async with asyncio.timeout(LIMIT_S):
                await self.update(name, argument)
        assert isinstance(refused.value.cause, ApplicationError)
        return refused.value.cause.type, refused.value.cause.message

    async def view(self) -> Json:
        # As the client asks: a worker that takes the session up may lose what comes ahead of its first task.
        answer: Json = await rpc.asked(lambda limit: self.handle.query("view", rpc_timeout=limit))
        return answer

    # -- what Temporal has of it -----------------------------------------------------------------------

    async def runs(self) -> list[list[HistoryEvent]]:
        """The histories of all its runs, the first run first."""
        temporal, run_id, found = self.rig.client.temporal, (await self.handle.describe()).run_id, []
        while run_id:
            handle = temporal.get_workflow_handle(self.session_id, run_id=run_id)
            found.insert(0, [event async for event in handle.fetch_history_events()])
            run_id = found[0][0].workflow_execution_started_event_attributes.continued_execution_run_id
        return found

    async def history_length(self) -> int:
        """Events in the history of the newest run."""
        return (await self.handle.describe()).history_length
