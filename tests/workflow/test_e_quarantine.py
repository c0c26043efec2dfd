"""E: what poisons a session, what it still does then, and how it ends. For what never does see tests/e2e/test_stall."""

from __future__ import annotations

import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from activities.buses.base import BusRecord
from activities.errors import PermanentPublishError, TransientError
from affidavit.client import SessionHandle
from affidavit.evidence.scalars import MAX_INTEGER
from tests.support import proof
from tests.support.bare import Bare, Json, call, said
from tests.support.foreign import SPEC, failure, json_payload
from tests.support.halves import bus_of, store_of, until
from tests.support.proof import chain_heads
from tests.support.rig import Rig, actions
from tests.support.taps import Gate, Outage, TapBus, TapStore
from tests.support.waiting import eventually

ORPHAN = said("who asked?", attempt_id="nobody")
ORPHANED = "attempt nobody ends without an opening"


async def poisoned(bare: Bare) -> str:
    view = await eventually(bare.view, lambda view: view["poisoned"] is not None)
    return str(view["poisoned"])


def check_quarantined(rig: Rig, session_id: str, reason: str) -> None:
    """A critical event is the last word; there is neither receipt nor trajectory, and what was journaled stays."""
    folder = rig.folder(session_id)
    chained = rig.journal(session_id)
    (last,) = proof.lifecycle(folder)
    assert (last["severity_id"], last["status_id"], last["class_name"]) == (5, 2, "agent.session")
    assert last["metadata"]["sequence"] == len(chained)
    assert last["payload"] == {
        "action": "quarantined",
        "reason": reason,
        "chain_head": chain_heads(session_id, chained)[-1],
        "event_count": len(chained),
    }
    assert not (folder / "receipt.json").exists()
    assert not (folder / "trajectory.json").exists()
    sealed = json.loads((folder / "outcome.json").read_text())["payload"]
    assert (sealed["status"], sealed["reason"], sealed.get("receipt")) == ("quarantined", reason, None)


# -- E1, E3 ---------------------------------------------------------------------------------------------


def altered_segment(rig: Rig) -> dict[str, Any]:
    def before(name: str) -> None:
        if name.endswith("/captures/000000000002.ndjson"):
            (rig.data.evidence / name).write_bytes(b"another\n")

    return {"store": TapStore(store_of(rig), before=before)}


def refusing_bus(rig: Rig) -> dict[str, Any]:
    def before(records: Sequence[BusRecord]) -> None:
        if any(b'"poison"' in record.value for record in records):
            raise PermanentPublishError("no such topic")

    return {"bus": TapBus(bus_of(rig), before=before)}


def nothing_special(rig: Rig) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("worker", "steps", "journaled", "reason"),
    [
        (
            altered_segment,
            [call("c2")],
            1,
            "journaling: IntegrityError: 000000000002.ndjson exists with other content",
        ),
        (
            nothing_special,
            [said("1", usage={"prompt_tokens": MAX_INTEGER}), said("2", usage={"prompt_tokens": 1})],
            2,
            "overflow of prompt_tokens",
        ),
        (nothing_special, [ORPHAN], 1, ORPHANED),
        (refusing_bus, [call("poison")], 2, "publishing: PermanentPublishError: no such topic"),
    ],
    ids=["integrity error", "overflow", "inconsistent attempts", "permanent publish failure"],
)
async def test_e1_e3_what_no_retry_mends_poisons_and_close_ends_it_quarantined(
    rig: Rig, worker: Callable[[Rig], dict[str, Any]], steps: list[Json], journaled: int, reason: str
) -> None:
    async with rig.worker(**worker(rig)):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.submit(call("c1"))
        await bare.record(*steps)
        assert await poisoned(bare) == reason
        assert (await bare.view())["state"] == "open"
        closed = await session.close()
    assert (closed.status, closed.reason, closed.receipt_id) == ("quarantined", reason, None)
    assert (closed.steps, closed.event_count) == (journaled, journaled + 1)
    assert closed.unprocessed == len(steps) - (journaled - 1)
    assert closed.published is (worker is not refusing_bus)
    check_quarantined(rig, session.session_id, reason)
    # Red in the Web UI, with the outcome as details.
    handle = rig.client.temporal.get_workflow_handle(session.session_id)
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    error = await failure(handle)
    assert (error.type, error.message) == ("SessionQuarantined", f"session quarantined: {reason}")
    assert error.details[0]["chain_head"] == closed.chain_head


async def test_e1_what_is_out_of_order_for_a_while_poisons_nothing(rig: Rig) -> None:
    """Journal segments, receipt and outcome are written, and events published, at the second try only."""
    failed: list[str] = []

    def at_first(error: Exception) -> Callable[[object], None]:
        def strike(what: object) -> None:
            name = what if isinstance(what, str) else what[0].uid  # type: ignore[index]
            due = "/" not in name or "/journal/" in name or name.endswith(("/receipt.json", "/outcome.json"))
            if due and name != "public.json" and name not in failed:
                failed.append(name)
                raise error

        return strike

    store = TapStore(store_of(rig), before=at_first(OSError(5, "Input/output error")))
    bus = TapBus(bus_of(rig), before=at_first(TransientError("the bus is down")))
    async with rig.worker(store=store, bus=bus):
        session = await rig.open()
        await session.submit(call("c1"))
        outcome = await session.close()
    assert (outcome.status, outcome.steps, outcome.published) == ("closed", 1, True)
    assert actions(rig.bus(session.session_id)) == ["opened", "tool_call", "receipt", "closed"]
    objects = sorted(name.rpartition("/")[2] for name in failed if "/" in name)
    assert objects == ["000000000000.ndjson", "000000000001.ndjson", "outcome.json", "receipt.json"]
    assert len(failed) >= 4 + 2


async def test_e1_what_is_journaled_when_the_bus_refuses_for_good_is_no_loss(rig: Rig) -> None:
    """The publisher poisons the session while the loop waits for a journal write that succeeds."""
    gate = Gate()
    written = asyncio.Event()

    async def refuse(records: Sequence[BusRecord]) -> None:
        await written.wait()
        raise PermanentPublishError("no such topic")

    def hold(name: str) -> None:
        if name.endswith("/journal/000000000001.ndjson"):
            gate.hold()

    async with rig.worker(store=TapStore(store_of(rig), after=hold), bus=TapBus(bus_of(rig), before=refuse)):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        submitted = await bare.start_update("submit", {"steps": [call("c1"), call("c2")]})
        await gate.reached()
        written.set()
        await poisoned(bare)
        gate.open()
        assert (await submitted)["last_sequence"] == 2
        outcome = await session.close()
    assert (outcome.status, outcome.steps, outcome.unprocessed) == ("quarantined", 2, 0)


# -- E2 -------------------------------------------------------------------------------------------------


async def test_e2_updates_are_refused_but_for_what_ends_it(running: Rig) -> None:
    session = await running.open()
    bare = Bare(running, session.session_id)
    await bare.record(ORPHAN)
    await poisoned(bare)
    incomplete = ("CaptureIncomplete", f"capture is incomplete: {ORPHANED}")
    assert await bare.refusal("admit", {}) == incomplete
    assert await bare.refusal("submit", {"steps": [call("c1")]}) == incomplete
    assert await bare.refusal("refresh_identity", SPEC["agent"]) == incomplete
    assert await bare.refusal("reset_breaker", {"by": "me", "reason": "please"}) == incomplete
    assert await bare.refusal("attach", SPEC) == incomplete
    assert (await bare.update("flush"))["event_count"] == 1
    assert (await bare.update("close"))["generation"] == session.generation
    assert (await session.result()).status == "quarantined"


async def test_e2_messages_are_counted_and_digested_and_not_processed(running: Rig) -> None:
    session = await running.open()
    bare = Bare(running, session.session_id)
    await bare.submit(call("c1"))
    first = [call("c2"), ORPHAN, call("c3")]
    await bare.record(*first)
    await poisoned(bare)
    later: list[tuple[str, Any]] = [
        ("tool_call", call("c4")),
        ("record", {"steps": [call("c5"), call("c6"), said("anything")]}),
        ("tool_call", {"nonsense": True}),
        ("nobody knows it", 17),
    ]
    for name, value in later:
        await bare.handle.signal(name, json_payload(value))
    flushed = await bare.update("flush")
    assert flushed["event_count"] == 3
    view = await bare.view()
    assert (view["unprocessed"], view["steps"], view["rejected"], view["queue_depth"]) == (8, 2, 0, 0)
    outcome = await session.close()

    digest = ""
    for data in [*(json.dumps(step) for step in first[1:]), *(json.dumps(value) for _, value in later)]:
        digest = hashlib.sha256(digest.encode() + hashlib.sha256(data.encode()).digest()).hexdigest()
    # Two of the record with the fault, one, three, and one for each message that holds no step.
    assert (outcome.unprocessed, outcome.unprocessed_sha256) == (8, digest)
    assert actions(running.journal(session.session_id)) == ["opened", "tool_call", "tool_call"]
    assert running.journal(session.session_id)[2]["payload"]["call_id"] == "c2"


async def test_e2_what_comes_while_a_quarantined_close_waits_for_the_bus_is_counted(rig: Rig) -> None:
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=lambda _: outage.strike())):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.record(ORPHAN)
        await poisoned(bare)
        closing = asyncio.create_task(session.close())
        await until(session, "closing")
        await bare.record(call("c1"), call("c2"))
        # No update waits for the bus.
        assert (await bare.update("flush"))["published_through"] == -1
        assert (await bare.view())["unprocessed"] == 3
        assert not closing.done()
        outage.end()
        outcome = await closing
    assert (outcome.status, outcome.unprocessed, outcome.published) == ("quarantined", 3, True)
    check_quarantined(rig, session.session_id, ORPHANED)


async def test_e2_updates_are_refused_also_those_of_a_process(running: Rig) -> None:
    """What it waited for and what it was called before stays as it was, and is still seen."""
    session = await running.open()
    bare = Bare(running, session.session_id)
    await bare.update("set_wait", {"kind": "approval", "name": "manager"})
    await bare.update("set_external_ref", {"external_ref": "order 7"})
    await bare.record(ORPHAN)
    await poisoned(bare)
    incomplete = ("CaptureIncomplete", f"capture is incomplete: {ORPHANED}")
    assert await bare.refusal("set_wait", {"kind": "timer", "name": "tomorrow"}) == incomplete
    assert await bare.refusal("clear_wait") == incomplete
    # Whether it would be the same again or a conflict.
    for external_ref in ("order 7", "order 8"):
        assert await bare.refusal("set_external_ref", {"external_ref": external_ref}) == incomplete
    view = await bare.view()
    assert (view["waiting"]["kind"], view["waiting"]["name"]) == ("approval", "manager")
    assert (view["external_ref"], view["queue_depth"], view["event_count"]) == ("order 7", 0, 2)
    # To say that its owner is gone is what ends it, and works.
    assert (await bare.update("request_abandon", {"by": "operator", "reason": "gone"}))["by"] == "operator"
    assert (await bare.view())["abandon_requested"]["reason"] == "gone"
    outcome = await session.close()
    assert (outcome.status, outcome.reason, outcome.abandonment) == ("quarantined", ORPHANED, None)
    assert actions(running.journal(session.session_id)) == ["opened", "waiting"]


async def test_e2_request_cancel_is_taken_and_ends_it_quarantined(rig: Rig) -> None:
    """The bus is held, so that the session is still there to be asked twice."""
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=lambda _: outage.strike())):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.record(call("c1"), ORPHAN, call("c2"))
        await poisoned(bare)
        first = await bare.update("request_cancel", {"reason": "the customer has left"})
        assert first["reason"] == "the customer has left"
        assert await bare.update("request_cancel", {"reason": "another"}) == first
        view = await bare.view()
        assert (view["state"], view["cancel_requested"]) == ("open", first)  # as P11 has it until the chain is complete
        assert await bare.refusal("submit", {"steps": [call("c3")]}) == ("SessionClosing", "session is closing")
        outage.end()
        outcome = await session.result()
    # Not `cancelled`, which would be an end in order: it says why the capture is incomplete, and has no receipt.
    assert (outcome.status, outcome.reason, outcome.receipt_id) == ("quarantined", ORPHANED, None)
    assert (outcome.steps, outcome.unprocessed) == (1, 2)
    # Nothing is chained any more, the request neither.
    assert actions(rig.journal(session.session_id)) == ["opened", "tool_call"]
    check_quarantined(rig, session.session_id, ORPHANED)


async def test_e2_a_poisoned_session_can_be_cancelled(running: Rig) -> None:
    session = await running.open()
    bare = Bare(running, session.session_id)
    await bare.record(ORPHAN)
    await poisoned(bare)
    await session.cancel()
    outcome = await session.result()
    assert (outcome.status, outcome.reason) == ("quarantined", ORPHANED)


# -- E4 -------------------------------------------------------------------------------------------------


async def test_e4_bad_sessions_never_delay_another(rig: Rig) -> None:
    """One hangs in the store, one at the bus, one is refused by it, one is poisoned and flooded: the good one does as
    well beside them as alone."""
    ids = {name: f"e4-{name}" for name in ("store", "bus", "refused", "flooded", "good")}
    stems = {name: hashlib.sha256(session_id.encode()).hexdigest()[:32] for name, session_id in ids.items()}
    store_gate, bus_gate, bus_reached = Gate(), asyncio.Event(), asyncio.Event()

    def store(name: str) -> None:
        if stems["store"] in name and name.endswith("/journal/000000000001.ndjson"):
            store_gate.hold()

    async def bus(records: Sequence[BusRecord]) -> None:
        session_id = records[0].session_id
        if session_id == ids["refused"]:
            raise PermanentPublishError("no such topic")
        if session_id == ids["bus"]:
            bus_reached.set()
            await bus_gate.wait()

    async def speed(name: str) -> tuple[float, SessionHandle]:
        session = await rig.open(session_id=name)
        took = []
        for number in range(10):
            begun = time.monotonic()
            await session.submit(call(f"c{number}"))
            took.append(time.monotonic() - begun)
        return statistics.median(took), session

    async with rig.worker(store=TapStore(store_of(rig), before=store), bus=TapBus(bus_of(rig), before=bus)):
        alone, session = await speed("e4-alone")
        assert (await session.close()).status == "closed"
        bad = {name: await rig.open(session_id=ids[name]) for name in ("store", "bus", "refused", "flooded")}
        await bad["store"].record(call("c1"))
        await store_gate.reached()
        await bus_reached.wait()
        flooded = Bare(rig, ids["flooded"])
        await flooded.record(ORPHAN)
        await poisoned(flooded)
        flood = asyncio.create_task(_flood(flooded))
        try:
            beside, session = await speed(ids["good"])
            good = await session.close()
        finally:
            flood.cancel()
        stuck = {name: await Bare(rig, ids[name]).view() for name in ("store", "bus")}
        store_gate.open()
        bus_gate.set()
        outcomes = {name: (await session.close()).status for name, session in bad.items()}
    assert (good.status, good.steps, good.published) == ("closed", 10, True)
    # Nobody waited for the bad ones: they stood still all the while.
    assert (stuck["store"]["event_count"], stuck["bus"]["published_through"]) == (1, -1)
    assert beside < max(10 * alone, 2), (alone, beside)  # a machine is not equally fast at both moments
    assert outcomes == {"store": "closed", "bus": "closed", "refused": "quarantined", "flooded": "quarantined"}


async def _flood(bare: Bare) -> None:
    while True:
        await bare.record(*(call(f"c{number}") for number in range(20)))
        await asyncio.sleep(0.05)
