"""Scenes for saved histories beside those of record.py: answers of the breaker, ends of every kind, big payloads."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from activities.embedders import HashEmbedder
from affidavit.client import SessionHandle
from affidavit.contract import SIGNAL_RECORD, promotion_id
from affidavit.evidence.scalars import session_stem
from affidavit.offloading import OFFLOAD_BYTES
from affidavit.stores.base import EvidenceStore
from tests.support.rig import Rig

PAYLOADS: Final = Path(__file__).with_name("payloads")
"""What the histories hold by reference, each in a folder of its session's stem."""

SAME: Final = {"kind": "model_response", "text": "Let me try that again.", "usage": {"prompt_tokens": 600}}
CALL: Final = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}}
BIG: Final = {
    "kind": "tool_result",
    "call_id": "c1",
    "content": "straw " * (OFFLOAD_BYTES // 5),
    "producer": "agent",
    "producer_seq": 1,
}


async def _tripped(rig: Rig, name: str, action: str) -> SessionHandle:
    """A session whose breaker has tripped."""
    session = await rig.open(session_id=f"recorded-{name}", breaker={"action": action})
    for _ in range(5):
        await session.submit(SAME)
    return session


async def breaker_observes(rig: Rig) -> SessionHandle:
    """A trip is flagged, and nothing else."""
    session = await _tripped(rig, "breaker-observes", "observe")
    assert (await session.admit("a1")).flagged
    await session.record({"kind": "model_failure", "reason": "cancelled", "attempt_id": "a1"})
    assert (await session.close()).stop_reason_id == 99
    return session


async def breaker_injects(rig: Rig) -> SessionHandle:
    """A trip is answered with a corrective message, which resets it."""
    session = await _tripped(rig, "breaker-injects", "inject")
    assert (await session.admit("a1")).message
    await session.flush()
    assert not (await session.admit("a2")).message
    for attempt in ("a1", "a2"):
        await session.submit({"kind": "model_response", "text": f"Another way, {attempt}.", "attempt_id": attempt})
    await session.close()
    return session


async def breaker_aborts(rig: Rig) -> SessionHandle:
    """A trip closes the session."""
    session = await rig.open(session_id="recorded-breaker-aborts", breaker={"action": "abort"})
    await session.record(*[SAME] * 5)
    assert (await session.result()).stop_reason_id == 91
    return session


async def idle(rig: Rig) -> SessionHandle:
    """Nobody reports any more, and a number is missing; it closes itself."""
    session = await rig.open(session_id="recorded-idle", limits={"idle_close_s": 2, "gap_grace_s": 1})
    await session.record({**CALL, "producer": "tools", "producer_seq": 1})
    await session.record({**CALL, "producer": "tools", "producer_seq": 3})
    assert (await session.result()).stop_reason_id == 4
    return session


async def not_drained(rig: Rig) -> SessionHandle:
    """Closed with an attempt open: quarantined when the drain timeout ends."""
    session = await rig.open(session_id="recorded-not-drained", limits={"drain_timeout_s": 1})
    await session.admit("a1")
    await session.record(CALL)
    assert (await session.close()).status == "quarantined"
    return session


async def oversize(rig: Rig) -> SessionHandle:
    """A step that lies in the evidence store and not in history, by a signal and, said twice, by an update."""
    session = await rig.open(session_id="recorded-oversize")
    await session.record(BIG)
    await session.flush()
    assert (await session.submit(BIG)).repeated == 1
    await session.submit({**BIG, "producer_seq": 2})
    await session.close()
    return session


async def unavailable(rig: Rig) -> SessionHandle:
    """A payload that is not in the store any more, and a reference that somebody has forged."""
    session_id = "recorded-unavailable"
    async with rig.worker():
        session = await rig.open(session_id=session_id)
    workflow = rig.client.temporal.get_workflow_handle(session_id)
    await session.record(BIG)
    await session._sender.settle()
    for file in rig.payloads(session_id):
        file.unlink()
    claim = {"driver_name": "nobody", "driver_claim": {"claim_data": {"session": "x"}}}
    forged = Payload(metadata={"encoding": b"json/external-storage-reference"}, data=json.dumps(claim).encode())
    await workflow.signal(SIGNAL_RECORD, RawValue(forged))
    async with rig.worker():
        await session.submit(CALL)
        assert (await session.close()).rejected == 2
    return session


async def unsigned(rig: Rig) -> SessionHandle:
    """A trajectory at the end."""
    session = await rig.open(session_id="recorded-unsigned", mode="unsigned")
    await session.record(CALL, SAME)
    assert (await session.close()).trajectory_digest
    return session


async def unsigned_empty(rig: Rig) -> SessionHandle:
    """Nothing to make a trajectory of."""
    session = await rig.open(session_id="recorded-unsigned-empty", mode="unsigned")
    assert (await session.close()).status == "quarantined"
    return session


async def promotion(rig: Rig) -> SessionHandle:
    """Not a session: the workflow that attests an unsigned one afterwards."""
    session = await rig.open(session_id="recorded-promoted", mode="unsigned")
    await session.record(CALL)
    await session.promote()
    assert session.generation is not None
    return SessionHandle(rig.client, promotion_id(session.session_id, session.generation), None)


async def waited_for(rig: Rig) -> SessionHandle:
    """Eight updates that wait, a ninth that may not, and a close that gets in beside them."""
    session = await rig.open(session_id="recorded-waited-for")
    steps = [{**CALL, "call_id": f"c{number}"} for number in range(12)]
    others = [SessionHandle(rig.client, session.session_id, session.attached) for _ in steps]
    with suppress(Exception):
        await asyncio.gather(*(other.submit(step) for other, step in zip(others, steps, strict=True)))
    await session.close()
    return session


async def embedder_passed_in(rig: Rig) -> SessionHandle:
    """Responses measured in an activity, whose answers stand in the history."""
    async with rig.worker(embedder=HashEmbedder()):
        session = await _tripped(rig, "embedder-passed-in", "observe")
        await session.record(SAME, CALL, SAME)
        assert (await session.close()).steps == 8
    return session


Scene = Callable[[Rig], Awaitable[SessionHandle]]

WITH_A_WORKER: Final[tuple[Scene, ...]] = (
    breaker_observes,
    breaker_injects,
    breaker_aborts,
    idle,
    not_drained,
    oversize,
    unsigned,
    unsigned_empty,
    promotion,
    waited_for,
)
WITHOUT: Final[tuple[Scene, ...]] = (unavailable, embedder_passed_in)
"""Scenes that start workers of their own."""


def keep_payloads(rig: Rig, session_id: str) -> None:
    """Save what a session's history refers to."""
    folder = PAYLOADS / session_stem(session_id)
    shutil.rmtree(folder, ignore_errors=True)
    for file in rig.data.evidence.glob(f"sessions/{folder.name}/payloads/*.bin"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)


def put_payloads(store: EvidenceStore, session_id: str) -> None:
    """Put what a saved history refers to into a store, which is then one that the session was opened in."""
    stem = session_stem(session_id)
    store.create(f"sessions/{stem}/replayed/metadata.json", b"{}")
    for file in sorted((PAYLOADS / stem).glob("*.bin")):
        store.create(f"sessions/{stem}/payloads/{file.name}", file.read_bytes())
