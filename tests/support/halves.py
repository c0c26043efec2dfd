"""One product run by workers that do a part of its work, and the faulty stores and buses under them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from activities.buses.sqlite import SqliteBus
from affidavit.client import SessionHandle
from affidavit.stores.local import DirectoryStore
from tests.support import proof
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually


def bus_of(rig: Rig) -> SqliteBus:
    """The rig's bus, to be wrapped; the worker that gets it closes it."""
    return SqliteBus(rig.data.bus)


def store_of(rig: Rig) -> DirectoryStore:
    """The rig's store, to be wrapped."""
    return DirectoryStore(rig.data.evidence)


@asynccontextmanager
async def signing(rig: Rig, *, settings: dict[str, Any] | None = None, **overrides: Any) -> AsyncIterator[None]:
    """A worker that signs and does nothing else."""
    changed = rig.settings.model_copy(update={"roles": ("signing",), **(settings or {})})
    async with Rig(rig.client, rig.data, changed).worker(**overrides):
        yield


@asynccontextmanager
async def journaling(rig: Rig, **overrides: Any) -> AsyncIterator[None]:
    """A worker that does everything but sign, and knows no seed: a session stops before its seal."""
    changed = rig.settings.model_copy(update={"roles": ("session",), "signing_seed_file": None})
    async with Rig(rig.client, rig.data, changed).worker(**overrides):
        yield


async def until(session: SessionHandle, state: str) -> None:
    """Wait until the session says it is in a state."""
    await eventually(session.view, lambda view: view.state == state, within=LIMIT_S)


def check_once(rig: Rig, session_id: str) -> None:
    """Every event of the session stands on the bus once, in order, and is the one that was journaled."""
    journaled = rig.journal(session_id) + proof.lifecycle(rig.folder(session_id))
    assert proof.bus_uids(rig.data.bus, session_id) == proof.uids(journaled)
    assert rig.bus(session_id) == journaled
