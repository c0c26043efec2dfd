"""Spans, metrics and log lines of sessions: one of each for each event, and nothing doubled by a replay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError

from activities.embedders import HashEmbedder
from affidavit.contract import SIGNAL_RECORD
from affidavit.errors import SessionRefused
from tests.support.bare import Bare, failed
from tests.support.halves import store_of
from tests.support.measured import Measured, measured, tree
from tests.support.oracle import attested
from tests.support.rig import Rig, actions, signal_text
from tests.support.stand_ins import HeldStore
from tests.support.taps import Outage, TapStore
from tests.support.waiting import eventually
from workers.devserver import DevServer

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
RESPONSE = {"kind": "model_response", "text": "the same again", "finish_reason": "stop"}


@pytest_asyncio.fixture
async def product(rig: Rig, server: DevServer) -> AsyncIterator[Measured]:
    async with measured(rig, server.address) as found:
        yield found


@pytest_asyncio.fixture
async def uncached(rig: Rig, server: DevServer) -> AsyncIterator[Measured]:
    """Every workflow task replays its session from the start."""
    async with measured(rig, server.address, max_cached_workflows=0) as found:
        yield found


def ranges(product: Measured, name: str) -> list[tuple[Any, Any]]:
    return [
        (span.attributes["affidavit.sequence.first"], span.attributes["affidavit.sequence.last"])
        for span in product.spans()
        if span.name == name and span.attributes is not None
    ]


async def test_case12_no_cache_and_two_restarts_one_line_one_count_one_span_for_each_event(
    uncached: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    rig = uncached.rig
    with caplog.at_level(logging.INFO, "affidavit.stages"):
        async with uncached.worker():
            session = await rig.open()
            for _ in range(6):
                await session.submit(CALL)
        async with uncached.worker():
            for _ in range(2):
                await session.submit(CALL, CALL, CALL, CALL)
            await rig.client.temporal.get_workflow_handle(session.session_id).signal(SIGNAL_RECORD, signal_text("no"))
            await session.flush()
        async with uncached.worker():
            for _ in range(5):
                await session.submit(CALL)
            outcome = await session.close()
    events = attested(rig, outcome)
    assert actions(events) == ["opened"] + ["tool_call"] * 14 + ["message_rejected"] + ["tool_call"] * 5
    each = [(n, n) for n in range(1, 7)] + [(7, 10), (11, 14)] + [(n, n) for n in range(15, 21)]
    assert ranges(uncached, "affidavit.journal") == each
    assert ranges(uncached, "affidavit.open") == [(0, 0)]
    told = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [(line["first"], line["last"]) for line in told if line["stage"] == "journal"] == each
    assert {line["session"] for line in told} == {session.session_id}
    assert uncached.count("affidavit_steps") == 19
    assert uncached.count("affidavit_messages_rejected") == 1
    assert uncached.count("affidavit_sessions_opened", mode="signed") == 1
    assert uncached.count("affidavit_sessions_ended", status="closed") == 1
    assert uncached.count("affidavit_receipts", kind="session") == 1
    assert uncached.count("affidavit_quarantines") == 0
    assert len(uncached.values("affidavit_stage_duration", stage="journal")) == 14


async def test_the_spans_of_a_session_are_one_tree(product: Measured, capsys: pytest.CaptureFixture[str]) -> None:
    """Over two workers and all stages; printed for whoever looks."""
    rig = product.rig
    async with product.worker(embedder=HashEmbedder()):  # one that is passed in is a stage
        session = await rig.open()
        await session.submit(RESPONSE)
    async with product.worker():
        await session.submit(CALL, CALL)
        assert (await session.close()).status == "closed"
    spans = product.spans()
    assert len({span.context.trace_id for span in spans}) == 1
    assert {span.attributes["affidavit.session.id"] for span in spans if span.attributes} == {session.session_id}
    lines = tree(spans)
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert lines[0] == "session 0-3"
    published = [line for line in lines if line.startswith("  affidavit.publish")]
    assert [line for line in lines[1:] if line not in published] == [
        "  affidavit.open 0-0",
        "  affidavit.embed 1-1",
        "  affidavit.journal 1-1",
        "  affidavit.journal 2-3",
        "  affidavit.seal 0-3",
        "  affidavit.lifecycle 4-5",
        "  affidavit.outcome 0-3",
    ]
    assert published[-1] == "  affidavit.publish 4-5"
    root = next(span for span in spans if span.name == "session")
    assert root.parent is None
    assert root.end_time is not None
    assert all((span.end_time or 0) <= root.end_time for span in spans)
    assert root.attributes is not None
    assert root.attributes["affidavit.status"] == "closed"


async def test_under_a_provider_of_another_making_the_stages_are_one_trace_and_no_root_strays(
    product: Measured,
) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(product.kept))
    async with product.rig.worker(tracers=tracers):
        session = await product.rig.open()
        await session.close()
    spans = product.spans()
    assert {span.name for span in spans} >= {"affidavit.open", "affidavit.seal", "affidavit.outcome"}
    assert len({span.context.trace_id for span in spans}) == 1
    assert "session" not in {span.name for span in spans}


async def test_two_sessions_are_two_traces(product: Measured) -> None:
    async with product.worker():
        for _ in range(2):
            session = await product.rig.open()
            await session.submit(CALL)
            await session.close()
    assert len({span.context.trace_id for span in product.spans()}) == 2


async def test_c2_refusals_are_counted_by_stage_and_once_without_a_cache(uncached: Measured) -> None:
    """A refused update leaves no history, so nothing but the validator itself can count it."""
    rig = uncached.rig
    async with uncached.worker():
        session = await rig.open(limits={"response_slots": 1, "queue": 1}, breaker={"action": "reject"})
        workflow = rig.client.temporal.get_workflow_handle(session.session_id)
        await session.submit(CALL)
        first = await session.admit()
        assert first.accepted
        for _ in range(3):
            with pytest.raises(WorkflowUpdateFailedError):
                await workflow.execute_update("admit", {})
        assert uncached.count("affidavit_refused", stage="response_slot") == 3
        assert uncached.count("affidavit_refused", stage="queue") == 0
        with pytest.raises(WorkflowUpdateFailedError):
            await workflow.execute_update("submit", {"steps": [{"kind": "nonsense"}]})
        assert uncached.count("affidavit_refused", stage="bad_request") == 1
        # An enforcement refusal is an accepted update, and counted where it is decided.
        await workflow.execute_update("refresh_identity", {"version": "1", "charter": "other", "instance_uid": "x"})
        assert uncached.count("affidavit_refused", stage="identity") == 1
        await session.record({"kind": "model_response", "attempt_id": first.attempt_id, "text": "x"})
        await session.close()
        assert uncached.count("affidavit_refused") == 5


async def test_c2_queue_response_slots_and_busy_are_counted_each_for_itself(uncached: Measured) -> None:
    """One bound is exhausted after the other, and stays so; only the counter of the one that refuses goes up."""
    rig = uncached.rig
    store = HeldStore(store_of(rig))

    def refused() -> dict[str, float]:
        return {stage: uncached.count("affidavit_refused", stage=stage) for stage in ("response_slot", "busy", "queue")}

    async with uncached.worker(store=store):
        session = await rig.open(limits={"response_slots": 1, "queue": 16})
        bare = Bare(rig, session.session_id)
        assert (await bare.admit("a1"))["accepted"]
        assert (await bare.refusal("admit", {}))[0] == "ResponseSlotsFull"
        assert refused() == {"response_slot": 1, "busy": 0, "queue": 0}
        with store.held():
            waiting = [await bare.start_update("submit", {"steps": [CALL]}) for _ in range(8)]
            for name, argument in (("submit", {"steps": [CALL]}), ("flush", None)):
                assert (await bare.refusal(name, argument))[0] == "Busy"
            assert refused() == {"response_slot": 1, "busy": 2, "queue": 0}
            await bare.record(*[CALL] * 16)
            await eventually(bare.view, lambda view: view["queue_depth"] >= 16)
            for _ in range(3):
                assert (await bare.refusal("admit", {}))[0] == "QueueFull"
            assert refused() == {"response_slot": 1, "busy": 2, "queue": 3}
        await asyncio.gather(*waiting)
        await bare.step(failed(attempt_id="a1"))
        assert (await session.close()).steps == 25
    assert refused() == {"response_slot": 1, "busy": 2, "queue": 3}
    assert uncached.count("affidavit_refused") == 6


async def test_a_refusal_inside_a_handler_is_counted_once_without_a_cache(uncached: Measured) -> None:
    """It stands in the history, so every later task meets it again; Temporal's own meter is silent then."""
    rig = uncached.rig
    async with uncached.worker():
        session = await rig.open(event_types={"paid": {"type": "object", "required": ["cents"]}})
        with pytest.raises(SessionRefused) as refused:
            await session.submit({"kind": "event", "type": "paid", "payload": {}})
        assert refused.value.type == "EventRefused"
        for _ in range(3):
            await session.submit(CALL)
        assert uncached.count("affidavit_refused") == 1
    async with uncached.worker():
        await session.submit(CALL)
        await session.close()
    assert uncached.count("affidavit_refused") == 1


async def test_a_query_that_is_refused_is_no_refused_update(uncached: Measured) -> None:
    rig = uncached.rig
    async with uncached.worker():
        session = await rig.open()
        workflow = rig.client.temporal.get_workflow_handle(session.session_id)
        for arguments in ({"generation": "another"}, {"sequence": "none"}):
            with pytest.raises(WorkflowQueryFailedError):
                await workflow.query("events_after", arguments)
        with pytest.raises(WorkflowQueryFailedError):
            await workflow.query("count_events", {})
        # An update that is refused in the same way is one.
        with pytest.raises(WorkflowUpdateFailedError):
            await workflow.execute_update("set_wait", {})
        await session.close()
    assert uncached.values("affidavit_refused", stage="bad_request") == [1]
    assert uncached.count("affidavit_refused") == 1


async def test_a_full_queue_is_counted_apart(product: Measured) -> None:
    outage = Outage(lambda: OSError(5, "Input/output error"))
    store = TapStore(store_of(product.rig), before=lambda name: outage.strike() if name.endswith("01.ndjson") else None)
    async with product.worker(store=store):
        session = await product.rig.open(limits={"queue": 2})
        workflow = product.rig.client.temporal.get_workflow_handle(session.session_id)
        await workflow.signal(SIGNAL_RECORD, {"steps": [CALL]})
        await outage.met_times(1)
        await workflow.signal(SIGNAL_RECORD, {"steps": [CALL, CALL]})
        for _ in range(2):
            with pytest.raises(WorkflowUpdateFailedError):
                await workflow.execute_update("admit", {})
        assert product.count("affidavit_refused", stage="queue") == 2
        assert product.count("affidavit_refused", stage="response_slot") == 0
        assert product.count("affidavit_stage_failures", stage="journal", type="OSError") >= 1
        outage.end()
        await session.close()
    failed = [span for span in product.spans() if not span.status.is_ok and span.name == "affidavit.journal"]
    assert {span.attributes["error.type"] for span in failed if span.attributes} == {"OSError"}


async def test_trips_repeats_and_quarantines_are_counted(product: Measured) -> None:
    rig = product.rig
    async with product.worker():
        session = await rig.open(breaker={"min_tokens": 0})
        for _ in range(4):
            await session.submit(RESPONSE)
        workflow = rig.client.temporal.get_workflow_handle(session.session_id)
        for _ in range(3):
            await workflow.signal(SIGNAL_RECORD, {"steps": [{**CALL, "producer": "p", "producer_seq": 1}]})
        await session.close()
        bad = await rig.open()
        (rig.folder(bad.session_id) / "journal/000000000001.ndjson").write_bytes(b"spoilt\n")
        await bad.record(CALL)
        assert (await bad.close()).status == "quarantined"
    trips = actions(rig.journal(session.session_id)).count("breaker_tripped")
    assert trips >= 1
    assert product.count("affidavit_breaker_trips") == trips
    assert product.count("affidavit_steps_repeated") == 2
    assert product.count("affidavit_quarantines", mode="signed") == 1
    assert product.count("affidavit_sessions_ended", status="quarantined") == 1


async def test_the_sdks_own_metrics_are_on_the_same_exporter(product: Measured) -> None:
    async with product.worker():
        session = await product.rig.open()
        await session.close()
    names = product.names()
    assert {"affidavit_sessions_ended", "temporal_activity_execution_latency", "temporal_request"} <= names
