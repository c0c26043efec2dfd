"""Behaviours B1-B4, B8, B10, B11 and the bounds of the queue: reporting steps, against the real dev server."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError

from activities.embedders import HashEmbedder
from affidavit.contract import Agent, BreakerConfig, Limits, SubmitResult
from affidavit.errors import SessionRefused
from affidavit.stores.local import DirectoryStore
from tests.support.foreign import SPEC, json_payload
from tests.support.oracle import attested
from tests.support.proof import chain_heads
from tests.support.rig import Rig, actions
from tests.support.stand_ins import HeldStore, WatchedEmbedder
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually

Step = dict[str, Any]


def call(call_id: str, **fields: Any) -> Step:
    return {"kind": "tool_call", "call_id": call_id, "tool": "search", "allowed": True, **fields}


def said(text: str, **fields: Any) -> Step:
    return {"kind": "model_response", "text": text, **fields}


def used(**usage: Any) -> Step:
    return said("done", usage=usage)


# -- order ----------------------------------------------------------------------------------------------


async def test_b1_order_is_arrival_order_also_when_an_embedding_is_slow(rig: Rig) -> None:
    free = threading.Event()
    embedding = threading.Event()

    def slow(text: str) -> None:
        if text == "slow":
            embedding.set()
            assert free.wait(8)

    async with rig.worker(embedder=WatchedEmbedder(slow)):
        session = await rig.open()
        await session.record(said("slow"))
        await asyncio.to_thread(embedding.wait, 5)
        handle = rig.client.temporal.get_workflow_handle(session.session_id)
        for number in range(5):
            steps = [call(f"a{number}"), said(f"quick {number}"), call(f"b{number}")]
            await handle.signal("record", json_payload({"steps": steps}))
        # The server has all of them, and the slow one is not through.
        free.set()
        outcome = await session.close()

    events = attested(rig, outcome)
    captures = rig.captures(session.session_id)
    assert actions(events)[:3] == ["opened", "model_response", "tool_call"]
    expected = ["slow"] + [name for n in range(5) for name in (f"a{n}", f"quick {n}", f"b{n}")]
    assert [capture.get("call_id", capture.get("text")) for capture in captures[1:]] == expected
    assert outcome.steps == 16


async def test_b1_many_records_of_many_steps_keep_their_order(running: Rig) -> None:
    session = await running.open()
    names = [f"c{number}" for number in range(300)]
    # 300 steps are five messages of at most 64, and more batches than one.
    await session.record(*(call(name) for name in names))
    outcome = await session.close()
    events = attested(running, outcome)
    assert [event["payload"]["call_id"] for event in events[1:]] == names
    assert outcome.totals.tool_calls == 300


@pytest.mark.parametrize("embedder", [None, HashEmbedder()], ids=["built in", "passed in"])
async def test_b2_the_stages_of_a_step_follow_each_other(rig: Rig, embedder: HashEmbedder | None) -> None:
    """The built-in embedder leaves nothing in history; one that is passed in is a stage of its own."""
    async with rig.worker(embedder=embedder):
        await check_stages(rig, [] if embedder is None else ["embed", "embed done"])


async def check_stages(running: Rig, embedded: list[str]) -> None:
    session = await running.open()
    # The opening event is out, so what follows in the history belongs to the step.
    await eventually(session.view, lambda view: view.published_through == 0)
    await session.submit(said("Looking at the logs"))
    await eventually(session.view, lambda view: view.published_through == 1)

    handle = running.client.temporal.get_workflow_handle(session.session_id)
    stages: list[str] = []
    scheduled: dict[int, str] = {}
    async for event in handle.fetch_history_events():
        if event.HasField("workflow_execution_update_accepted_event_attributes"):
            stages.append("accepted")
        elif event.HasField("workflow_execution_update_completed_event_attributes"):
            stages.append("answered")
        elif event.HasField("activity_task_scheduled_event_attributes"):
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
            stages.append(scheduled[event.event_id])
        elif event.HasField("activity_task_completed_event_attributes"):
            stages.append(scheduled[event.activity_task_completed_event_attributes.scheduled_event_id] + " done")
    of_the_step = stages[stages.index("publish done") + 1 :]
    until_journaled = 3 + len(embedded)
    # An accepted update is written with the first command that follows it.
    first, *others = [*embedded, "journal", "journal done"]
    assert sorted(of_the_step[:2]) == ["accepted", first]
    assert of_the_step[2:until_journaled] == others
    assert sorted(of_the_step[until_journaled : until_journaled + 2]) == ["answered", "publish"]
    assert of_the_step[until_journaled + 2 :] == ["publish done"]
    assert actions(attested(running, await session.close())) == ["opened", "model_response"]


# -- accounting -----------------------------------------------------------------------------------------


async def test_b3_a_sum_beyond_the_limit_poisons_and_the_counter_keeps_its_value(running: Rig) -> None:
    session = await running.open()
    await session.submit(used(prompt_tokens=9_007_199_254_740_991, completion_tokens=4))
    with pytest.raises(SessionRefused) as refused:
        await session.submit(call("c1"), used(prompt_tokens=1), call("c2"))
    reason = "capture is incomplete: overflow of prompt_tokens"
    assert (refused.value.type, refused.value.reason) == ("CaptureIncomplete", reason)

    view = await session.view()
    assert view.poisoned == "overflow of prompt_tokens"
    assert (view.totals.prompt_tokens, view.totals.completion_tokens) == (9_007_199_254_740_991, 4)
    # What stood before the sum that failed is on disk; that and what came after is counted, not processed.
    assert (view.event_count, view.steps, view.unprocessed) == (3, 2, 2)
    with pytest.raises(SessionRefused) as refused:
        await session.submit(call("c3"))
    assert refused.value.type == "CaptureIncomplete"
    await session.record(call("c4"), call("c5"))
    await eventually(session.view, lambda view: view.unprocessed == 4)

    outcome = await session.close()
    assert (outcome.status, outcome.reason) == ("quarantined", "overflow of prompt_tokens")
    assert outcome.receipt is None
    assert outcome.totals.prompt_tokens == 9_007_199_254_740_991
    assert actions(running.journal(session.session_id)) == ["opened", "model_response", "tool_call"]
    assert outcome.chain_head == chain_heads(session.session_id, running.journal(session.session_id))[-1]


async def test_b4_terminal_records_and_verdicts_are_what_counts(running: Rig) -> None:
    session = await running.open()
    await session.record(
        # "Fix the build" is 3 + "now" 1 + "!" 1: five by the estimate of formats.md 1, the copied one is free.
        {
            "kind": "model_request",
            "messages": [
                {"role": "system", "content": "You were told this before", "copied": True},
                {"role": "user", "content": "Fix the build now!"},
            ],
        },
        said("Reading", usage={"completion_tokens": 7}),  # no prompt from the provider: the estimate, 6
        {"kind": "model_request", "messages": [{"role": "user", "content": "abcd"}], "prompt_tokens": 50},
        used(prompt_tokens=60, completion_tokens=5, cached_tokens=20, cost_usd=0.1 + 0.2),
        said("again", usage={"prompt_tokens": 1_000_000}, copied=True),  # counted when it happened
        {"kind": "model_failure", "reason": "timeout"},
        used(prompt_tokens=1, cost_usd_micros=11),
        call("c1"),
        call("c2", allowed=False, stage="policy", reason="not on the list"),
        call("c3", allowed=False, stage="budget"),
        {"kind": "tool_result", "call_id": "c1", "content": {"usage": {"prompt_tokens": 5}}},
    )
    outcome = await session.close()
    events = attested(running, outcome)
    assert outcome.totals.model_dump() == {
        "tool_calls": 3,
        "tool_allowed": 1,
        "tool_blocked": 2,
        "prompt_tokens": 6 + 60 + 1,
        "completion_tokens": 12,
        "cached_tokens": 20,
        "cost_usd_micros": 300_011,
    }
    assert [event["metrics"].get("prompt_tokens") for event in events[1:5]] == [6, 6, 50, 60]
    assert outcome.steps == 11


# -- submit and flush -----------------------------------------------------------------------------------


async def test_b8_submits_answer_with_their_range_and_the_head_of_their_count(running: Rig) -> None:
    session = await running.open()
    handles = [running.client.handle(session.session_id) for _ in range(6)]
    batches = [[call(f"{who}-{n}") for n in range(1 + who % 3)] for who in range(6)]

    results = await asyncio.gather(*(handle.submit(*batch) for handle, batch in zip(handles, batches, strict=True)))

    ranges = [range(result.first_sequence, result.last_sequence + 1) for result in results]
    assert [len(taken) for taken in ranges] == [1, 2, 3, 1, 2, 3]
    assert sorted(sequence for taken in ranges for sequence in taken) == list(range(1, 13))
    flushed = await session.flush()
    view = await eventually(session.view, lambda view: view.published_through == 12)
    outcome = await session.close()

    events = attested(running, outcome)
    heads = chain_heads(session.session_id, events)
    for batch, taken, result in zip(batches, ranges, results, strict=True):
        assert [events[n]["payload"]["call_id"] for n in taken] == [step["call_id"] for step in batch]
        assert result.event_count > result.last_sequence
        assert result.chain_head == heads[result.event_count]
        assert (result.verdict, result.breaker_open, result.repeated) == (None, False, 0)
    assert (flushed.event_count, flushed.chain_head) == (13, heads[13])
    assert (view.event_count, view.chain_head) == (13, heads[13])


async def test_b8_a_submit_says_what_the_breaker_thinks(running: Rig) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0, window=2))
    verdicts: list[SubmitResult] = []
    for text in ("Polling the server", "Polling the server", "Polling the server", ""):
        verdicts.append(await session.submit(said(text) if text else said("", tool_calls=[])))
    assert [result.verdict for result in verdicts] == ["progressing", "suspicious", "tripped", "not_assessed"]
    assert [result.breaker_open for result in verdicts] == [False, False, True, True]
    attested(running, await session.close())


async def test_b8_a_flush_answers_when_what_was_reported_before_is_journaled(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session = await rig.open()
        with store.held():
            await session.record(call("c1"))
            assert await asyncio.to_thread(store.waiting.wait, LIMIT_S)
            await session.record(call("c2"))
            await eventually(session.view, lambda view: view.queue_depth == 1)
            handle = rig.client.temporal.get_workflow_handle(session.session_id)
            flushing = await handle.start_update("flush", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
            waiting = asyncio.create_task(flushing.result())
            assert (await session.view()).event_count == 1
            assert not waiting.done()
        assert (await waiting)["event_count"] == 3
        attested(rig, await session.close())


async def test_b10_eight_results_in_parallel_are_one_chain_of_eight_consecutive_numbers(running: Rig) -> None:
    session = await running.open()
    await session.submit(*(call(f"c{number}") for number in range(8)))

    async def report(number: int) -> None:
        # Each from a handle of its own: signals of one handle go one after the other.
        handle = running.client.handle(session.session_id)
        await handle.record({"kind": "tool_result", "call_id": f"c{number}", "content": f"result {number}"})
        await handle.flush()

    await asyncio.gather(*(report(number) for number in range(8)))
    outcome = await session.close()
    events = attested(running, outcome)
    assert [event["metadata"]["sequence"] for event in events[9:]] == list(range(9, 17))
    assert {event["payload"]["call_id"] for event in events[9:]} == {f"c{number}" for number in range(8)}
    assert outcome.event_count == 17


# -- time -----------------------------------------------------------------------------------------------


async def test_b11_claimed_times_order_nothing_and_one_far_off_is_flagged(running: Rig) -> None:
    session = await running.open()
    now = datetime.now(UTC)
    close_by = (now - timedelta(minutes=4)).isoformat()
    far = (now + timedelta(hours=1)).isoformat()
    claims: list[str | int | None] = [far, close_by, 0, None, "0001-01-01T00:00:00+14:00", 253_402_300_799_999]
    await session.record(*(call(f"c{n}", **({} if c is None else {"claimed_time": c})) for n, c in enumerate(claims)))
    outcome = await session.close()

    events = attested(running, outcome)[1:]  # `attested` has checked that their own times never run backward
    assert [event["payload"]["call_id"] for event in events] == [f"c{n}" for n in range(6)]
    assert [event["payload"].get("claimed_time") for event in events] == claims
    assert [event["payload"].get("skewed") for event in events] == [True, None, True, None, True, True]
    assert all(abs(event["time"] - now.timestamp() * 1000) < 60_000 for event in events)


# -- bounds ---------------------------------------------------------------------------------------------


async def refusal(update: Any) -> tuple[str | None, str]:
    with pytest.raises(WorkflowUpdateFailedError) as failed:
        await update
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause.type, failed.value.cause.message


async def test_a_full_queue_refuses_submits_and_still_takes_signals(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session = await rig.open(limits=Limits(queue=3))
        with store.held():
            await session.record(call("held"))
            assert await asyncio.to_thread(store.waiting.wait, LIMIT_S)
            await session.record(call("a"), call("b"))
            assert (await session.view()).queue_depth == 2
            await session.record(call("c"), call("d"))  # a signal is taken though it goes beyond the bound
            for _ in range(2):
                with pytest.raises(SessionRefused) as refused:
                    async with asyncio.timeout(LIMIT_S):
                        await session.submit(call("too much"))
                assert (refused.value.type, refused.value.reason) == ("QueueFull", "queue full: 4 steps waiting")
        await eventually(session.view, lambda view: view.queue_depth == 0)
        assert (await session.submit(call("e"))).event_count == 7
        outcome = await session.close()
    events = attested(rig, outcome)
    # A refusal for capacity leaves nothing behind.
    assert [event["payload"]["call_id"] for event in events[1:]] == ["held", "a", "b", "c", "d", "e"]


async def test_the_ninth_waiting_update_is_refused_and_attach_and_close_still_get_in(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session = await rig.open()
        handle = rig.client.temporal.get_workflow_handle(session.session_id)
        with store.held():
            waiting = [
                await handle.start_update(
                    "submit",
                    json_payload({"steps": [call(f"c{number}")]}),
                    wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                )
                for number in range(8)
            ]
            async with asyncio.timeout(LIMIT_S):
                busy = ("Busy", "8 updates are waiting already")
                ninth = json_payload({"steps": [call("ninth")]})
                assert await refusal(handle.execute_update("submit", ninth)) == busy
                assert await refusal(handle.execute_update("flush")) == busy
                assert await refusal(handle.execute_update("refresh_identity", json_payload(SPEC["agent"]))) == busy
                joined = await rig.open(session_id=session.session_id)
                assert joined.generation == session.generation
                with pytest.raises(SessionRefused, match="bound to a different agent"):
                    await rig.open(
                        session_id=session.session_id, agent=Agent(version="9", charter="x", instance_uid="y")
                    )
                accepted = await handle.execute_update("close")
                assert accepted["generation"] == session.generation
        results = [await update.result() for update in waiting]
        outcome = await session.result()
    assert [result["first_sequence"] for result in results] == list(range(1, 9))
    assert actions(attested(rig, outcome)) == ["opened", *["tool_call"] * 8]


async def test_steps_after_close_are_counted_as_late(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session = await rig.open()
        with store.held():
            await session.record(call("c1"))
            closing = asyncio.create_task(session.close())
            await eventually(session.view, lambda view: view.state == "closing")
            late = rig.client.handle(session.session_id)
            await late.record(call("c2"), call("c3"))
            with pytest.raises(SessionRefused) as refused:
                await late.submit(call("c4"))
            assert refused.value.type == "SessionClosing"
            # A message is read when its turn comes; until then it waits.
            await eventually(session.view, lambda view: view.queue_depth == 2)
        outcome = await closing
        assert (await session.view()).late_steps == 2
    assert outcome.late_steps == 2
    assert actions(attested(rig, outcome)) == ["opened", "tool_call"]
