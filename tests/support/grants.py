"""A grant book of a test's own: tests share a namespace, and there is one book in a namespace."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from temporalio.service import RPCError

from affidavit import grants
from affidavit.client import SessionClient
from tests.support.rig import Rig


@pytest_asyncio.fixture
async def book(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The id of the book that clients and workers of this process use; it is ended with the test."""
    book_id = f"grants#{uuid.uuid4()}"
    monkeypatch.setattr(grants, "GRANT_BOOK_ID", book_id)
    yield book_id
    with contextlib.suppress(RPCError):  # the test never needed it
        await rig.client.temporal.get_workflow_handle(book_id).terminate()


def client_of(rig: Rig, holder: str | None) -> SessionClient:
    """A client of the same product that addresses as a holder."""
    return SessionClient(
        rig.client.temporal, task_queue=rig.settings.task_queue, admit_timeout=20, retry_timeout=20, holder=holder
    )
