"""A client that knows Temporal but not the product: raw names, raw payloads, other converters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from tests.support.rig import AGENT, Rig

SPEC: dict[str, Any] = {"agent": AGENT.model_dump()}


def payload(data: bytes | str, encoding: str | None = "json/plain") -> RawValue:
    """An argument of just these bytes; no encoding metadata at all with None."""
    metadata = {} if encoding is None else {"encoding": encoding.encode()}
    return RawValue(Payload(metadata=metadata, data=data.encode() if isinstance(data, str) else data))


def json_payload(value: Any) -> RawValue:
    return payload(json.dumps(value))


async def start(rig: Rig, session_id: str, *args: Any, **options: Any) -> WorkflowHandle[Any, Any]:
    """Start a session with whatever arguments."""
    handle: WorkflowHandle[Any, Any] = await rig.client.temporal.start_workflow(
        "AgentSession", args=args, id=session_id, task_queue=rig.settings.task_queue, **options
    )
    return handle


async def failure(handle: WorkflowHandle[Any, Any]) -> ApplicationError:
    """What a workflow failed with, following it to its last run."""
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause
