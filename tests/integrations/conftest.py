"""Fixtures of the integrations' tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from affidavit.sync import SyncSession, SyncSessionClient
from tests.support.rig import AGENT, Rig
from workers.devserver import DevServer


@pytest_asyncio.fixture
async def sync_client(running: Rig, server: DevServer) -> AsyncIterator[SyncSessionClient]:
    """A client with a loop of its own, beside the one of the test in which the worker runs."""
    connected = await asyncio.to_thread(
        SyncSessionClient.connect, address=server.address, task_queue=running.settings.task_queue, admit_timeout=20
    )
    try:
        yield connected
    finally:
        await asyncio.to_thread(connected.close)


@pytest_asyncio.fixture
async def sync_session(sync_client: SyncSessionClient) -> SyncSession:
    return await asyncio.to_thread(sync_client.open, {"agent": AGENT})
