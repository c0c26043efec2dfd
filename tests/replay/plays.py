"""Plays the scenes of record.py and paths.py for a comparison, and tells what they have left behind."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowHistory

from affidavit.client import SessionHandle
from affidavit.contract import PLAYED_AHEAD, SessionOutcome
from affidavit.grants import GRANT_BOOK_ID
from affidavit.registering import register
from tests.replay import paths, record
from tests.support.comparing import comparable
from tests.support.rig import Rig, actions
from workers.devserver import DevServer

Scene = Callable[[Rig], Awaitable[SessionHandle | None]]

SCENES: Final[tuple[Scene, ...]] = (*record.WITH_A_WORKER, record.retried, *paths.WITH_A_WORKER, *paths.WITHOUT)
NEED_A_WORKER: Final[tuple[Scene, ...]] = (*record.WITH_A_WORKER, *paths.WITH_A_WORKER, record.granting)
"""The others start workers of their own."""

AS_TOLD: Final = (
    "status",
    "stop_reason_id",
    "steps",
    "event_count",
    "rejected",
    "repeated",
    "late_steps",
    "unprocessed",
    "published",
    "totals",
)
"""Of an outcome: what two plays share."""

FAILED: Final = "workflow_task_failed_event_attributes"

OF_ONE_PLAY: Final = ("producer", "capture_sha256", "sha256", "key_id", "wake_id", "source")
"""Of a payload: keys and the names that handles and wakes are given, and what is computed over them."""


@dataclass(frozen=True, slots=True)
class Play:
    """One play: the histories of each of its workflows, first run first, and how its sessions have ended."""

    rig: Rig
    runs: dict[str, list[WorkflowHistory]]
    outcomes: dict[str, SessionOutcome]
    grants: list[Any]

    @property
    def histories(self) -> list[WorkflowHistory]:
        return [history for runs in self.runs.values() for history in runs]

    def left(self) -> dict[str, Any]:
        """By workflow: the last event of its history and, of a session, outcome and events on the bus.

        Without what two plays never share.
        """
        return {
            workflow_id.partition("#")[0]: (EventType.Name(runs[-1].events[-1].event_type), self._told(workflow_id))
            for workflow_id, runs in self.runs.items()
        }

    def _told(self, session_id: str) -> Any:
        outcome = self.outcomes.get(session_id)
        if outcome is None:
            return None
        return {name: getattr(outcome, name) for name in AS_TOLD}, [
            _shared(event) for event in self.rig.bus(session_id)
        ]

    def actions(self, session_id: str) -> list[str]:
        return actions(self.rig.bus(session_id))

    def failed_tasks(self) -> list[str]:
        """Why workflow tasks of its runs have failed, but for a query that came first."""
        events = [event for history in self.histories for event in history.events]
        failed = [each.workflow_task_failed_event_attributes for each in events if each.HasField(FAILED)]
        return [
            WorkflowTaskFailedCause.Name(each.cause)
            for each in failed
            if not each.failure.message.startswith(PLAYED_AHEAD)
        ]


def _shared(event: dict[str, Any]) -> dict[str, Any]:
    kept = comparable(event)
    return {**kept, "payload": {name: value for name, value in kept["payload"].items() if name not in OF_ONE_PLAY}}


Servers = tuple[DevServer, DevServer]


async def without_and_with_a_cache(servers: Servers, folder: Path, scene: Scene) -> tuple[Play, Play]:
    """Play a scene twice, beside each other: its sessions have ids of their own, so each on a server of its own."""

    async def not_saved(*_: object) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "save", not_saved)  # scenes of several workflows save the others themselves
        patch.setattr(record, "save_run", not_saved)
        one, other = await asyncio.gather(
            _played(servers[0], folder / "without", scene, max_cached_workflows=0),
            _played(servers[1], folder / "with", scene),
        )
    return one, other


async def _played(server: DevServer, folder: Path, scene: Scene, **settings: Any) -> Play:
    rig = await Rig.make(server.address, folder, **settings)
    grants: list[Any] = []
    async with rig.worker() if scene in NEED_A_WORKER else nullcontext():
        session = await scene(rig)
        if session is None:
            grants = [await rig.client.grants.list(holder) for holder in ("ann", "bob", "eve")]
    sessions = _published(rig)
    workflow_ids = [*sessions, GRANT_BOOK_ID if session is None else session.session_id]
    runs = {workflow_id: await _runs(rig, workflow_id) for workflow_id in dict.fromkeys(workflow_ids)}
    outcomes = {session_id: await rig.client.handle(session_id).result() for session_id in sessions}
    return Play(rig, runs, outcomes, grants)


def _published(rig: Rig) -> list[str]:
    """The sessions of which there is something on the bus."""
    if not rig.data.bus.exists():
        return []
    with sqlite3.connect(f"file:{rig.data.bus}?mode=ro", uri=True) as connection:
        return sorted(row[0] for row in connection.execute("SELECT DISTINCT session FROM records"))


async def _runs(rig: Rig, workflow_id: str) -> list[WorkflowHistory]:
    ids = await record.runs(rig, workflow_id)
    temporal = rig.client.temporal
    return [await temporal.get_workflow_handle(workflow_id, run_id=run_id).fetch_history() for run_id in ids]


@asynccontextmanager
async def started(log: Path, **dynamic_config: str) -> AsyncIterator[DevServer]:
    """A dev server with our search attributes."""
    server = await DevServer.start(log=log, headless=True, dynamic_config=dynamic_config)
    try:
        await register(await Client.connect(server.address, namespace=server.namespace))
        yield server
    finally:
        await server.stop()
