"""A running product for a test: a worker on a task queue of its own, a store and a bus in a folder of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.common import RawValue

from affidavit.client import SessionClient, SessionHandle
from affidavit.contract import Agent, SessionSpec
from affidavit.converter import raw_json
from affidavit.stores.local import DirectoryStore
from workers.dev import DataDir
from workers.settings import WorkerSettings
from workers.worker import build_worker

AGENT = Agent(version="1", charter="triage", instance_uid="agent-7", ttl_remaining_s=600)


@dataclass
class Rig:
    """One product instance. `worker()` runs it; several may run one after the other on the same evidence."""

    client: SessionClient
    data: DataDir
    settings: WorkerSettings
    overrides: dict[str, Any] = field(default_factory=dict)

    @classmethod
    async def make(cls, address: str, root: Path, **settings: Any) -> Rig:
        queue = f"test-{uuid.uuid4()}"
        data = DataDir(root)
        store = DirectoryStore(data.evidence)
        client = await SessionClient.connect(address=address, task_queue=queue, admit_timeout=20, store=store)
        return cls(client, data, data.settings().model_copy(update={"task_queue": queue, "grace_s": 2.0, **settings}))

    @asynccontextmanager
    async def worker(self, **overrides: Any) -> AsyncIterator[None]:
        async with build_worker(self.client.temporal, self.settings, **{**self.overrides, **overrides}):
            yield

    async def open(self, *, session_id: str | None = None, **spec: Any) -> SessionHandle:
        return await self.client.open(SessionSpec(**{"agent": AGENT, **spec}), session_id=session_id)

    def folder(self, session_id: str) -> Path:
        """The only generation's folder of a session, found by the independent rule: sha256 of the id, 32 digits."""
        import hashlib

        stem = hashlib.sha256(session_id.encode()).hexdigest()[:32]
        folders = (self.data.evidence / "sessions" / stem).iterdir()
        (generation,) = (folder for folder in folders if folder.name != "payloads")
        return generation

    def payloads(self, session_id: str) -> list[Path]:
        """Payloads of a session that were kept out of the history, the smallest first."""
        folder = self.folder(session_id).parent / "payloads"
        return sorted(folder.iterdir(), key=lambda file: file.stat().st_size) if folder.exists() else []

    def journal(self, session_id: str) -> list[dict[str, Any]]:
        """Events in the journal, read without the product's code."""
        # By name: what a writer that was killed has left half written is no part of the evidence.
        files = sorted((self.folder(session_id) / "journal").glob("*.ndjson"))
        return [json.loads(line)["payload"]["event"] for file in files for line in file.read_text().splitlines()]

    def captures(self, session_id: str) -> list[dict[str, Any]]:
        files = sorted((self.folder(session_id) / "captures").glob("*.ndjson"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def bus(self, session_id: str) -> list[dict[str, Any]]:
        """Events on the bus, by sequence; read from SQLite without the product's code."""
        import sqlite3

        with sqlite3.connect(f"file:{self.data.bus}?mode=ro", uri=True) as connection:
            rows = connection.execute("SELECT value FROM records WHERE session = ?", (session_id,)).fetchall()
        return sorted((json.loads(row[0]) for row in rows), key=lambda event: event["metadata"]["sequence"])


def actions(events: list[dict[str, Any]]) -> list[str]:
    return [event["payload"]["action"] for event in events]


def signal_text(text: str) -> RawValue:
    """A JSON text as a signal's argument, whatever it says."""
    return raw_json(text.encode())
