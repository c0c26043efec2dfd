"""F: the end of a session, and what can go wrong on the way (signed sessions)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.worker import Worker

from activities.buses.base import BusRecord
from activities.embedders import HashEmbedder
from activities.embedding import EmbeddingActivity
from activities.errors import PermanentPublishError, TransientError
from activities.journaling import JournalingActivity
from activities.publishing import PublishingActivity
from activities.sealed import SealedEvidence
from affidavit.errors import SessionFailed, SessionRefused
from tests.support import proof
from tests.support.halves import bus_of, check_once, journaling, signing, store_of, until
from tests.support.rig import Rig, actions
from tests.support.taps import LIMIT_S, Gate, Outage, TapBus, TapStore
from tests.support.waiting import eventually
from workers.worker import workflow_runner
from workflows.session import AgentSession

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
RESPONSE = {
    "kind": "model_response",
    "text": "done",
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 1, "cost_usd_micros": 250},
}


async def test_f1_one_receipt_over_the_chain_then_its_event_then_closed(running: Rig) -> None:
    session = await running.open()
    await session.record(CALL, {**CALL, "call_id": "c2", "allowed": False, "stage": "budget"}, RESPONSE)
    outcome = await session.close()

    events = running.bus(session.session_id)
    assert actions(events) == ["opened", "tool_call", "tool_call", "model_response", "receipt", "closed"]
    assert [event["metadata"]["sequence"] for event in events] == [0, 1, 2, 3, 4, 5]
    check_once(running, session.session_id)

    folder = running.folder(session.session_id)
    receipt = json.loads((folder / "receipt.json").read_text())
    proof.check_signature(receipt, json.loads((running.data.evidence / "public.json").read_text()))
    head = proof.chain_head(session.session_id, events)
    assert receipt["subject"] == {"kind": "event_chain", "chain_head": head, "event_count": 4}
    assert receipt["tool_calls"] == {"total": 2, "allowed": 1, "blocked": 1}
    assert receipt["cost"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 1,
        "cost_usd_micros": 250,
    }
    assert (receipt["stop_reason_id"], receipt["stop_reason"]) == (1, "Stop")

    announced, closed = events[4], events[5]
    assert announced["class_name"] == "agent.receipt"
    assert announced["payload"] == {
        "action": "receipt",
        "receipt_id": receipt["receipt_id"],
        "key_id": receipt["key_id"],
        "subject": receipt["subject"],
        "receipt": receipt,
    }
    assert closed["payload"] == {
        "action": "closed",
        "mode": "signed",
        "outcome": "closed",
        "chain_head": head,
        "event_count": 4,
    }
    assert (outcome.status, outcome.published, outcome.steps) == ("closed", True, 3)
    assert outcome.receipt == receipt
    sealed = json.loads((folder / "outcome.json").read_text())["payload"]
    assert (sealed["status"], sealed["receipt_id"], sealed["chain_head"]) == ("closed", receipt["receipt_id"], head)


async def test_f2_closing_a_closing_or_a_finished_session_gives_the_same_receipt(rig: Rig) -> None:
    async with journaling(rig):
        session = await rig.open()
        await session.record(CALL)
        first = asyncio.create_task(session.close())
        await until(session, "sealing")
        second = asyncio.create_task(rig.client.handle(session.session_id).close())
        with pytest.raises(SessionRefused, match="session is closing"):
            await rig.open(session_id=session.session_id)
        assert not first.done()
        assert not second.done()
        async with signing(rig):
            outcomes = [await first, await second]
        outcomes.append(await rig.client.handle(session.session_id).close())
        outcomes.append(await session.close())
    receipt = json.loads((rig.folder(session.session_id) / "receipt.json").read_text())
    assert [outcome.receipt_id for outcome in outcomes] == [receipt["receipt_id"]] * 4
    assert [outcome.receipt for outcome in outcomes] == [receipt] * 4
    check_once(rig, session.session_id)


async def test_f2_32_concurrent_closes_give_one_receipt(running: Rig) -> None:
    session = await running.open()
    await session.record(CALL)
    await session.flush()
    outcomes = await asyncio.gather(*(running.client.handle(session.session_id).close() for _ in range(32)))
    assert len({outcome.receipt_id for outcome in outcomes}) == 1
    assert {outcome.status for outcome in outcomes} == {"closed"}
    assert actions(running.bus(session.session_id)) == ["opened", "tool_call", "receipt", "closed"]


async def test_f3_without_steps_a_receipt_over_the_opening_event(running: Rig) -> None:
    session = await running.open()
    outcome = await session.close()
    events = running.bus(session.session_id)
    assert actions(events) == ["opened", "receipt", "closed"]
    receipt = await session.receipt()
    assert receipt["subject"] == {
        "kind": "event_chain",
        "chain_head": proof.chain_head(session.session_id, events),
        "event_count": 1,
    }
    assert (receipt["stop_reason_id"], receipt["stop_reason"]) == (4, "Session Closed")
    assert (outcome.status, outcome.steps, outcome.event_count) == ("closed", 0, 1)


def about(topic: str, strike: Callable[[], None]) -> Callable[[Sequence[BusRecord]], None]:
    def before(records: Sequence[BusRecord]) -> None:
        if any(record.topic == topic for record in records):
            strike()

    return before


@pytest.mark.parametrize("topic", ["agent.tool_call", "agent.receipt"])
async def test_f4_with_the_bus_down_close_waits_and_then_everything_goes_out_once(rig: Rig, topic: str) -> None:
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=about(topic, outage.strike))):
        session = await rig.open()
        await session.record(CALL)
        closing = asyncio.create_task(session.close())
        await outage.met_times(3)
        assert not closing.done()
        view = await session.view()
        assert view.poisoned is None
        folder = rig.folder(session.session_id)
        signed_already = (folder / "receipt.json").exists()
        assert signed_already is (topic == "agent.receipt")
        before = json.loads((folder / "receipt.json").read_text()) if signed_already else None
        outage.end()
        outcome = await closing
    assert (outcome.status, outcome.published) == ("closed", True)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert outcome.receipt_id == receipt["receipt_id"]
    assert before in (None, receipt)
    check_once(rig, session.session_id)


async def test_f4_with_the_bus_failing_after_it_has_taken_the_records_they_are_there_once(rig: Rig) -> None:
    outage = Outage(lambda: TransientError("the answer was lost"))
    async with rig.worker(bus=TapBus(bus_of(rig), after=lambda _: outage.strike())):
        session = await rig.open()
        await session.record(CALL)
        closing = asyncio.create_task(session.close())
        await outage.met_times(2)
        assert not closing.done()
        outage.end()
        assert (await closing).published is True
    check_once(rig, session.session_id)


async def test_f4_with_the_signer_down_close_waits(rig: Rig) -> None:
    async with journaling(rig):
        session = await rig.open()
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        assert not closing.done()
        assert actions(rig.bus(session.session_id)) == ["opened"]
        async with signing(rig):
            assert (await closing).status == "closed"
    check_once(rig, session.session_id)


async def test_e4_what_the_bus_refuses_for_good_after_sealing_is_said_in_the_outcome(rig: Rig) -> None:
    def refuse() -> None:
        raise PermanentPublishError("no such topic")

    async with rig.worker(bus=TapBus(bus_of(rig), before=about("agent.receipt", refuse))):
        session = await rig.open()
        await session.record(CALL)
        outcome = await session.close()
    assert (outcome.status, outcome.published) == ("closed", False)
    assert actions(rig.bus(session.session_id)) == ["opened", "tool_call"]
    folder = rig.folder(session.session_id)
    receipt = json.loads((folder / "receipt.json").read_text())
    proof.check_signature(receipt, json.loads((rig.data.evidence / "public.json").read_text()))
    assert receipt["subject"]["chain_head"] == proof.chain_head(session.session_id, rig.journal(session.session_id))
    assert actions(proof.lifecycle(folder)) == ["receipt", "closed"]
    assert json.loads((folder / "outcome.json").read_text())["payload"]["published"] is False


async def test_e1_what_the_bus_refuses_for_good_before_sealing_quarantines(rig: Rig) -> None:
    def refuse() -> None:
        raise PermanentPublishError("no such topic")

    async with rig.worker(bus=TapBus(bus_of(rig), before=about("agent.tool_call", refuse))):
        session = await rig.open()
        await session.record(CALL)
        outcome = await session.close()
    assert (outcome.status, outcome.published) == ("quarantined", False)
    assert outcome.reason == "publishing: PermanentPublishError: no such topic"
    folder = rig.folder(session.session_id)
    assert not (folder / "receipt.json").exists()
    assert actions(rig.journal(session.session_id)) == ["opened", "tool_call"]
    assert actions(proof.lifecycle(folder)) == ["quarantined"]


async def test_e3_a_session_that_cannot_be_opened_ends_with_everything_that_waits(rig: Rig) -> None:
    """Nothing that was reported while it opened may keep it from ending."""
    gate = Gate()
    sid = "opened-twice"
    async with rig.worker():
        assert (await (await rig.open(session_id=sid)).close()).status == "closed"
    stem = rig.folder(sid).parent

    def other_metadata(name: str) -> None:
        if name.endswith("/metadata.json"):
            gate.hold()
            path = rig.data.evidence / name
            path.parent.mkdir(parents=True)
            path.write_bytes((first / "metadata.json").read_bytes())

    (first,) = stem.iterdir()
    async with rig.worker(store=TapStore(store_of(rig), before=other_metadata)):
        start = await rig.client.temporal.start_workflow(
            "AgentSession",
            {"agent": {"version": "1", "charter": "triage", "instance_uid": "agent-7"}, "reopen": True},
            id=sid,
            task_queue=rig.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        assert start.result_run_id != first.name
        await gate.reached()
        session = rig.client.handle(sid)
        await session.record(CALL)
        submitted = asyncio.create_task(session.submit(CALL))
        flushed = asyncio.create_task(rig.client.handle(sid).flush())
        await eventually(session.view, lambda view: view.queue_depth == 2)
        gate.open()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(SessionFailed, match=r"session quarantined: opening: IntegrityError: metadata\.json"):
                await rig.client.process(sid, start.result_run_id).result()
            # Of no life in particular: what the id has come to is how its first life ended.
            assert (await session.result()).generation == first.name
            with pytest.raises(SessionRefused, match="capture is incomplete"):
                await submitted
            await flushed


# -- F7 -----------------------------------------------------------------------------------------------------------


def check_cancelled(rig: Rig, session_id: str, *, events: list[str]) -> None:
    assert actions(rig.bus(session_id)) == [*events, "receipt", "closed"]
    check_once(rig, session_id)
    folder = rig.folder(session_id)
    receipt = json.loads((folder / "receipt.json").read_text())
    proof.check_signature(receipt, json.loads((rig.data.evidence / "public.json").read_text()))
    assert (receipt["stop_reason_id"], receipt["stop_reason"]) == (99, "Other")
    assert receipt["subject"] == {
        "kind": "event_chain",
        "chain_head": proof.chain_head(session_id, rig.bus(session_id)),
        "event_count": len(events),
    }
    assert rig.bus(session_id)[-1]["payload"]["outcome"] == "cancelled"


async def test_f7_a_cancel_drains_closes_and_yields_cancelled_with_a_receipt(running: Rig) -> None:
    session = await running.open()
    for place in range(20):
        await session.record({**CALL, "call_id": f"c{place}"})
    await session.cancel()
    outcome = await session.result()
    assert (outcome.status, outcome.stop_reason_id, outcome.steps, outcome.late_steps) == ("cancelled", 99, 20, 0)
    check_cancelled(running, session.session_id, events=["opened", *["tool_call"] * 20, "cancel_requested"])


async def test_f7_a_cancel_while_the_journal_activity_is_held_after_its_write(rig: Rig) -> None:
    gate = Gate()
    segment_name = "journal/000000000001.ndjson"
    store = TapStore(store_of(rig), after=lambda name: gate.hold() if name.endswith(segment_name) else None)
    async with rig.worker(store=store):
        session = await rig.open()
        await session.record(CALL, RESPONSE)
        await gate.reached()
        segment = rig.folder(session.session_id) / segment_name
        written = segment.read_bytes()
        await session.cancel()
        await eventually(session.view, lambda view: view.cancel_requested is not None)
        await session.record({**CALL, "call_id": "late"})
        gate.open()
        outcome = await session.result()
    assert (outcome.status, outcome.late_steps) == ("cancelled", 1)
    assert segment.read_bytes() == written
    assert len([name for name in store.written if name.endswith(segment_name)]) == 1
    names = sorted(file.name for file in segment.parent.iterdir())
    assert names == ["000000000000.ndjson", "000000000001.ndjson", "000000000003.ndjson"]
    check_cancelled(rig, session.session_id, events=["opened", "tool_call", "model_response", "cancel_requested"])


async def test_f7_a_cancel_of_a_closing_session(rig: Rig) -> None:
    """Close was accepted, its last events are not out yet: it may still be cancelled."""
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=about("agent.tool_call", outage.strike))):
        session = await rig.open()
        await session.record(CALL)
        closing = asyncio.create_task(session.close())
        await outage.met_times(1)
        await until(session, "closing")
        await session.cancel()
        outage.end()
        assert (await closing).status == "cancelled"
    check_cancelled(rig, session.session_id, events=["opened", "tool_call", "cancel_requested"])


async def test_f7_a_cancel_after_the_chain_was_sealed_changes_nothing(rig: Rig) -> None:
    """The receipt is being signed with its stop reason; the session ends as it was about to, not half cancelled."""
    async with journaling(rig):
        session = await rig.open()
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        await session.cancel()
        async with signing(rig):
            outcome = await closing
    assert (outcome.status, outcome.stop_reason_id) == ("closed", 4)
    assert actions(rig.bus(session.session_id)) == ["opened", "receipt", "closed"]


async def test_f7_a_cancel_before_anything_was_reported(running: Rig) -> None:
    session = await running.open()
    await session.cancel()
    assert (await session.result()).status == "cancelled"
    check_cancelled(running, session.session_id, events=["opened", "cancel_requested"])


# -- case: cancel a session as its publish completes (temporalio/sdk-python#1671) -----------------------------------


def _workflow_worker(client: Client, queue: str) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        workflows=[AgentSession],
        workflow_runner=workflow_runner(),
        max_cached_workflows=0,  # nothing sticks to the one that is taken away
    )


@asynccontextmanager
async def _activity_worker(rig: Rig, bus: TapBus) -> AsyncIterator[None]:
    store, keys = store_of(rig), rig.settings.read_journal_keys()
    journal = JournalingActivity(SealedEvidence(store, keys))
    with ThreadPoolExecutor(4) as threads:
        worker = Worker(
            rig.client.temporal,
            task_queue=rig.settings.task_queue,
            activities=[
                EmbeddingActivity(HashEmbedder()).embed,
                journal.open,
                journal.journal,
                journal.lifecycle,
                journal.outcome,
                PublishingActivity(store, bus, keys).publish,
            ],
            activity_executor=threads,
        )
        try:
            async with worker:
                yield
        finally:
            await bus.close()


@pytest.mark.parametrize("first", ["cancel", "publish"])
@pytest.mark.parametrize("closing", [True, False])
async def test_case_cancel_a_session_as_its_publish_completes(rig: Rig, first: str, closing: bool) -> None:
    """Both stand in one workflow task, in either order: the end is `cancelled`, with a receipt."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def hold(records: Sequence[BusRecord]) -> None:
        if any(record.topic == "agent.tool_call" for record in records):
            reached.set()
            await release.wait()

    queue = rig.settings.task_queue
    async with _activity_worker(rig, TapBus(bus_of(rig), before=hold)), signing(rig):
        async with _workflow_worker(rig.client.temporal, queue):
            session = await rig.open()
            await session.record(CALL)
            await reached.wait()
            if closing:
                ending = asyncio.create_task(session.close())
                await until(session, "closing")
        # No workflow task can run now; what happens is handed over as one.
        handle = rig.client.temporal.get_workflow_handle(session.session_id)
        if first == "cancel":
            await session.cancel()
        release.set()
        await _until_published(handle)
        if first == "publish":
            await session.cancel()
        async with _workflow_worker(rig.client.temporal, queue):
            outcome = await (ending if closing else session.result())
    assert outcome.status == "cancelled"
    check_cancelled(rig, session.session_id, events=["opened", "tool_call", "cancel_requested"])


async def _until_published(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the publish of event 1 stands as completed in the history."""

    async def completed() -> bool:
        events = [event async for event in handle.fetch_history_events()]
        scheduled = [
            event.event_id
            for event in events
            if event.activity_task_scheduled_event_attributes.activity_type.name == "publish"
        ]
        return scheduled[-1] in {event.activity_task_completed_event_attributes.scheduled_event_id for event in events}

    await eventually(completed, bool)
