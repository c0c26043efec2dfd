"""C and D4: what `admit` answers and in which order, its bounds, and the attempts that it opens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from activities.errors import TransientError
from affidavit.contract import BreakerConfig, Limits
from affidavit.stores.local import DirectoryStore
from tests.support.bare import Bare, Json, asked, call, failed, said
from tests.support.halves import bus_of, until
from tests.support.oracle import attested
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig, actions
from tests.support.stand_ins import HeldStore
from tests.support.taps import Outage, TapBus
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workflows.attempts import Attempts, Inconsistent
from workflows.inbox import Arrival, Inbox, Item

STRANGER = {"version": "1", "charter": "triage", "instance_uid": "somebody else"}
ENOUGH = BreakerConfig(window=1, min_tokens=0)
"""Trips on the second answer of two equal ones."""
LOOP = [said("the same again"), said("the same again")]
LOOPING = {"accepted": False, "flagged": False, "refused": {"type": "LoopDetected", "reason": "loop detected"}}


def answered(answer: Json) -> Json:
    """An answer without what is absent."""
    return {key: value for key, value in answer.items() if value is not None}


async def opened(rig: Rig, **spec: Any) -> tuple[Any, Bare]:
    session = await rig.open(**spec)
    return session, Bare(rig, session.session_id)


async def timed(call: Awaitable[Any]) -> float:
    begun = time.monotonic()
    await call
    return time.monotonic() - begun


# -- C1 -------------------------------------------------------------------------------------------------


async def test_c1_the_first_that_stands_against_it_is_told(rig: Rig) -> None:
    """Each check is made while everything that is checked after it fails as well."""
    bus_down = Outage(lambda: TransientError("the bus is down"))
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store, bus=TapBus(bus_of(rig), before=lambda _: bus_down.strike())):
        session, bare = await opened(rig, breaker=ENOUGH, limits=Limits(queue=1, response_slots=1))

        async def full() -> None:
            await bare.step(call("held"))
            assert await asyncio.to_thread(store.waiting.wait, 5)
            await bare.step(call("queued"))
            await eventually(bare.view, lambda view: view["queue_depth"] == 1)

        await bare.admit("a1")
        assert await bare.refusal("admit", {}) == ("ResponseSlotsFull", "response slots full: 1 attempts open")
        with store.held():
            await full()
            assert await bare.refusal("admit", {}) == ("QueueFull", "queue full: 1 steps waiting")
        await bare.record(*LOOP)
        await eventually(bare.view, lambda view: view["breaker_open"])
        store.waiting.clear()
        with store.held():
            await full()
            assert answered(await bare.admit()) == LOOPING
            refused = (await bare.admit(agent=STRANGER))["refused"]
            assert refused == {"type": "IdentityConflict", "reason": "identity"}
        await bare.step(said("who asked?", attempt_id="nobody"))
        await eventually(bare.view, lambda view: view["poisoned"] is not None)
        assert await bare.refusal("admit", {"agent": STRANGER}) == (
            "CaptureIncomplete",
            "capture is incomplete: attempt nobody ends without an opening",
        )
        await bare.update("close")
        assert (await bare.view())["state"] == "closing"
        assert await bare.refusal("admit", {"agent": STRANGER}) == ("SessionClosing", "session is closing")
        bus_down.end()
        assert (await session.result()).status == "quarantined"


async def test_c1_a_refusal_for_capacity_leaves_no_history_and_consumes_nothing(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session, bare = await opened(rig, limits=Limits(queue=2, response_slots=1))
        await bare.admit("a1")
        await eventually(bare.view, lambda view: view["published_through"] == 0)
        length = await bare.history_length()
        for _ in range(10):
            assert (await bare.refusal("admit", {}))[0] == "ResponseSlotsFull"
        assert await bare.history_length() == length
        with store.held():
            await bare.step(call("held"))
            assert await asyncio.to_thread(store.waiting.wait, 5)
            await bare.record(call("c1"), call("c2"))
            await eventually(bare.view, lambda view: view["queue_depth"] == 2)
            length = await bare.history_length()
            for _ in range(5):
                assert (await bare.refusal("admit", {}))[0] == "QueueFull"
                assert (await bare.refusal("submit", {"steps": [call("too much")]}))[0] == "QueueFull"
            assert await bare.history_length() == length
            assert (await bare.view())["queue_depth"] == 2
        await bare.step(said("done", attempt_id="a1"))
        outcome = await session.close()
    assert actions(attested(rig, outcome)) == ["opened", *["tool_call"] * 3, "model_response"]


async def test_c1_enforced_refusals_are_events_at_most_one_a_second_and_they_add_up(running: Rig) -> None:
    session, bare = await opened(running, breaker=ENOUGH)
    await bare.record(*LOOP)
    await eventually(bare.view, lambda view: view["breaker_open"])
    made = {"loop detected": 0, "identity": 0}
    told = list[str]()
    while told.count("refused") < 3 or made["identity"] < 8:
        told = [event["action"] for event in (await bare.view())["recent"]]
        assert answered(await bare.admit()) == LOOPING
        made["loop detected"] += 1
        for _ in range(2):
            assert (await bare.admit(agent=STRANGER))["accepted"] is False
            made["identity"] += 1
    await bare.update("flush")
    told_before = [event["action"] for event in (await bare.view())["recent"]].count("refused")
    outcome = await session.close()

    refused = [event for event in attested(running, outcome) if event["payload"]["action"] == "refused"]
    counted = dict.fromkeys(made, 0)
    for event in refused:
        counted[event["payload"]["reason"]] += event["payload"]["count"]
        caption = {"loop detected": (91, "Loop Detected"), "identity": (94, "Identity Rejected")}
        assert (event["stop_reason_id"], event["stop_reason"]) == caption[event["payload"]["reason"]]
        assert (event["class_name"], event["status_id"]) == ("agent.stop_reason", 2)
    assert counted == made
    in_time = [event["time"] for event in refused[:told_before]]
    assert len(in_time) >= 3
    assert min(after - before for before, after in pairwise(in_time)) >= 1000
    # What was not told by then is told at the end, an event for each reason.
    assert {event["payload"]["reason"] for event in refused[told_before:]} <= set(made)
    assert len(refused) - told_before <= 2


# -- C2 -------------------------------------------------------------------------------------------------


async def test_c2_queue_and_response_slots_are_exhausted_separately(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session, bare = await opened(rig, limits=Limits(queue=2, response_slots=2))
        await bare.admit("a1")
        await bare.admit("a2")
        assert await bare.refusal("admit", {}) == ("ResponseSlotsFull", "response slots full: 2 attempts open")
        # No slot is left, and the queue does not know of it.
        assert (await bare.submit(call("c1"), call("c2"), call("c3")))["last_sequence"] == 3
        await bare.record(said("one", attempt_id="a1"), failed(attempt_id="a2"))
        view = await eventually(bare.view, lambda view: view["event_count"] == 6)
        assert view["open_attempts"] == 0
        with store.held():
            await bare.step(call("held"))
            assert await asyncio.to_thread(store.waiting.wait, 5)
            await bare.record(call("c4"), call("c5"))
            await eventually(bare.view, lambda view: view["queue_depth"] == 2)
            full = ("QueueFull", "queue full: 2 steps waiting")
            assert await bare.refusal("admit", {}) == full
            assert await bare.refusal("submit", {"steps": [call("c6")]}) == full
            # The queue is full, and no slot was taken by who was refused.
            assert (await bare.view())["open_attempts"] == 0
        await eventually(bare.view, lambda view: view["queue_depth"] == 0)
        assert [(await bare.admit(name))["accepted"] for name in ("a3", "a4")] == [True, True]
        await bare.record(failed(attempt_id="a3"), failed(attempt_id="a4"))
        assert (await session.close()).status == "closed"


async def test_c2_a_refusal_is_immediate_while_the_bus_is_down_and_eight_updates_wait(rig: Rig) -> None:
    bus_down = Outage(lambda: TransientError("the bus is down"))
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store, bus=TapBus(bus_of(rig), before=lambda _: bus_down.strike())):
        session, bare = await opened(rig, limits=Limits(response_slots=1))
        await bare.admit("a1")
        await bus_down.met_times(1)
        with store.held():
            waiting = [await bare.start_update("submit", {"steps": [call(f"c{n}")]}) for n in range(8)]
            for name, argument, type_ in (
                ("admit", {}, "ResponseSlotsFull"),
                ("submit", {"steps": [call("ninth")]}, "Busy"),
                ("flush", None, "Busy"),
            ):
                took = [await timed(bare.refusal(name, argument)) for _ in range(3)]
                assert (await bare.refusal(name, argument))[0] == type_
                assert min(took) < 1.0, (name, took)
            assert (await bare.admit("a1"))["accepted"]
            assert not any(update.done() for update in waiting)
        answers = await asyncio.gather(*waiting)
        assert [answer["first_sequence"] for answer in answers] == list(range(1, 9))
        # The places are free again.
        await bare.submit(call("c8"))
        await bare.step(failed(attempt_id="a1"))
        bus_down.end()
        assert (await session.close()).steps == 10


# -- C3 -------------------------------------------------------------------------------------------------


async def test_c3_an_attempt_that_was_admitted_outlives_the_worker(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    env = environment(rig, server.address)
    async with process(WORKERS, env, tmp_path / "worker.log") as worker:
        session, bare = await opened(rig)
        # With nothing under way at the kill, nothing has to time out first.
        await eventually(bare.view, lambda view: view["published_through"] == 0)
        answer = await bare.admit("a1")
        worker.kill()
        await worker.wait()
    assert answered(answer) == {"accepted": True, "attempt_id": "a1", "flagged": False}
    async with rig.worker():
        # Had the admission been lost, this would end an attempt that nobody has opened.
        await bare.step(said("done", attempt_id="a1"))
        outcome = await session.close()
    events = attested(rig, outcome)
    assert [event["payload"].get("attempt_id") for event in events] == [None, "a1"]
    assert outcome.status == "closed"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([said("done", attempt_id="a1")], "attempt a1 ends without an opening"),
        ([failed(attempt_id="a1")], "attempt a1 ends without an opening"),
        ([asked(attempt_id="a1"), asked(attempt_id="a1")], "attempt a1 is opened twice"),
        (
            [asked(attempt_id="a1"), said("done", attempt_id="a1"), failed(attempt_id="a1")],
            "attempt a1 ends without an opening",
        ),
    ],
    ids=["response", "failure", "second opening", "second terminal"],
)
async def test_c3_inconsistent_attempts_poison(running: Rig, steps: list[Json], reason: str) -> None:
    session, bare = await opened(running)
    await bare.record(call("before"), *steps, call("after"))
    await eventually(bare.view, lambda view: view["poisoned"] is not None)
    outcome = await session.close()
    assert (outcome.status, outcome.reason, outcome.receipt) == ("quarantined", reason, None)
    # What stood before the fault is kept; the fault and what came with it are counted.
    expected = ["opened", "tool_call", *(step["kind"] for step in steps[:-1])]
    assert actions(running.journal(session.session_id)) == expected
    assert (outcome.steps, outcome.unprocessed) == (len(steps), 2)


async def test_c3_steps_without_an_attempt_and_copied_ones_open_and_end_none(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.record(asked(), said("done"), said("old news", attempt_id="a1", copied=True), failed())
    outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 4)


async def test_c3_an_admit_is_repeated_with_its_id_until_its_request_came(running: Rig) -> None:
    session, bare = await opened(running, limits=Limits(response_slots=1))
    first = await bare.update("admit", {"attempt_id": "a1"}, update_id="once")
    assert await bare.update("admit", {"attempt_id": "a1"}, update_id="once") == first
    assert await bare.admit("a1") == first  # though no slot is left for another one
    assert (await bare.view())["open_attempts"] == 1
    await bare.submit(asked(attempt_id="a1"))
    assert await bare.refusal("admit", {"attempt_id": "a1"}) == (
        "BadRequest",
        "the attempt is open and has had its request",
    )
    await bare.submit(said("done", attempt_id="a1"))
    assert (await bare.admit("a1"))["accepted"]  # the id is free again
    await bare.submit(failed(attempt_id="a1"))
    assert (await session.close()).status == "closed"


async def test_c3_an_admit_without_an_id_gets_one_of_its_own(running: Rig) -> None:
    session, bare = await opened(running)
    answers = await asyncio.gather(*(bare.admit() for _ in range(6)))
    ids = {answer["attempt_id"] for answer in answers}
    assert len(ids) == 6
    assert (await bare.view())["open_attempts"] == 6
    await bare.record(*(failed(attempt_id=attempt_id) for attempt_id in sorted(ids)))
    assert (await session.close()).status == "closed"


# -- C4 -------------------------------------------------------------------------------------------------


async def test_c4_close_waits_for_open_attempts(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.admit("a1")
    await bare.admit("a2")
    await bare.step(asked(attempt_id="a1"))
    closing = asyncio.create_task(session.close())
    await until(session, "closing")
    assert (await bare.refusal("admit", {}))[0] == "SessionClosing"
    await bare.step(call("too late"))
    await bare.step(said("done", attempt_id="a1"))
    view = await eventually(bare.view, lambda view: view["event_count"] == 3)
    assert (view["state"], view["open_attempts"], view["late_steps"]) == ("closing", 1, 1)
    assert not closing.done()
    await bare.step(failed(attempt_id="a2"))
    outcome = await closing
    events = attested(running, outcome)
    assert actions(events) == ["opened", "model_request", "model_response", "model_failure"]
    assert (outcome.status, outcome.late_steps) == ("closed", 1)


async def test_c4_what_ends_an_attempt_is_known_by_what_came_before_it(rig: Rig) -> None:
    """The request is not even read when close is accepted and its answer arrives."""
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session, bare = await opened(rig)
        with store.held():
            await bare.step(call("held"))
            assert await asyncio.to_thread(store.waiting.wait, 5)
            await bare.step(asked(attempt_id="a1"))
            closing = asyncio.create_task(session.close())
            await until(session, "closing")
            await bare.record(said("done", attempt_id="a1"), call("too late"))
        outcome = await closing
    assert actions(attested(rig, outcome)) == ["opened", "tool_call", "model_request", "model_response"]
    assert (outcome.status, outcome.late_steps) == ("closed", 1)


async def test_c4_an_attempt_that_is_open_when_the_drain_timeout_ends_quarantines(running: Rig) -> None:
    session, bare = await opened(running, limits=Limits(drain_timeout_s=1))
    await bare.admit("a1")
    await bare.admit("a2")
    await bare.step(said("done", attempt_id="a1"))
    begun = time.monotonic()
    outcome = await session.close()
    assert time.monotonic() - begun >= 1.0
    assert (outcome.status, outcome.reason) == (
        "quarantined",
        "1 attempts were open when the drain timeout ended",
    )
    folder = running.folder(session.session_id)
    assert outcome.receipt is None
    assert {file.name for file in folder.iterdir()} == {
        "captures",
        "journal",
        "lifecycle",
        "metadata.json",
        "outcome.json",
    }
    assert actions(running.bus(session.session_id)) == ["opened", "model_response", "quarantined"]


# -- C5 -------------------------------------------------------------------------------------------------


def test_c5_a_thousand_cycles_of_filling_and_draining_attempts_lose_nothing() -> None:
    attempts = Attempts()
    for cycle in range(1000):
        names = [f"{cycle}.{number}" for number in range(64)]
        for name in names[:32]:
            attempts.admit(name, cycle)
        for name in names[16:]:
            attempts.request(name, cycle)
        assert sorted(attempts.open) == sorted(names)
        with pytest.raises(Inconsistent):
            attempts.admit(names[0], cycle)
        with pytest.raises(Inconsistent):
            attempts.request(names[16], cycle)
        attempts = Attempts.model_validate_json(attempts.model_dump_json()) if cycle % 100 == 0 else attempts
        for name in names:
            attempts.end(name)
        assert attempts.open == {}
        with pytest.raises(Inconsistent):
            attempts.end(names[0])


def test_c5_a_thousand_cycles_of_filling_and_draining_the_queue_lose_nothing() -> None:
    def receive(arrival: Arrival) -> list[Item]:
        assert isinstance(arrival, Item)
        return [] if arrival.action == "repeat" else [arrival]

    inbox = Inbox(receive)
    for cycle in range(1000):
        inbox.put(Item("repeat" if number % 3 == 0 else "kept", cycle) for number in range(100))
        assert inbox.depth == 100
        if cycle % 2:
            kept = 0
            while batch := inbox.cut():
                kept += len(batch)
            assert kept == 66
        else:
            assert len(list(inbox.discard())) == 100
        assert (inbox.depth, inbox.bytes, inbox.empty) == (0, 0, True)
        assert inbox.first_ticket == inbox.arrived == 100 * (cycle + 1)


async def test_c5_capacity_returns_on_every_path(running: Rig) -> None:
    session, bare = await opened(running, limits=Limits(response_slots=4))
    ends: list[Callable[[str], list[Json]]] = [
        lambda name: [said("done", attempt_id=name)],
        lambda name: [failed(attempt_id=name)],
        lambda name: [asked(attempt_id=name), said("done", attempt_id=name)],
        lambda name: [asked(attempt_id=name), failed(attempt_id=name)],
    ]
    for cycle in range(12):
        names = [f"{cycle}.{number}" for number in range(4)]
        await asyncio.gather(*(bare.admit(name) for name in names))
        assert (await bare.refusal("admit", {}))[0] == "ResponseSlotsFull"
        steps = [step for end, name in zip(ends, names, strict=True) for step in end(name)]
        await bare.submit(*steps)
        assert (await bare.view())["open_attempts"] == 0
    outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 72)


async def test_c5_the_queue_is_free_again_each_time_it_was_full(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session, bare = await opened(rig, limits=Limits(queue=3))
        for cycle in range(5):
            store.waiting.clear()
            with store.held():
                await bare.step(call(f"held{cycle}"))
                assert await asyncio.to_thread(store.waiting.wait, 5)
                updates = [await bare.start_update("submit", {"steps": [call(f"c{n}")]}) for n in range(3)]
                assert (await bare.refusal("admit", {}))[0] == "QueueFull"
            await asyncio.gather(*updates)
            assert (await bare.view())["queue_depth"] == 0
        outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 20)


# -- D4 -------------------------------------------------------------------------------------------------


async def tripped(rig: Rig, action: str) -> tuple[Any, Bare]:
    session, bare = await opened(rig, breaker=ENOUGH.model_copy(update={"action": action}))
    await bare.record(*LOOP)
    await eventually(bare.view, lambda view: view["event_count"] >= 3)
    return session, bare


async def test_d4_observe_admits_and_flags(running: Rig) -> None:
    session, bare = await opened(running, breaker=ENOUGH.model_copy(update={"action": "observe"}))
    before = await bare.admit("a1")
    assert answered(before) == {"accepted": True, "attempt_id": "a1", "flagged": False}
    await bare.record(*LOOP)
    await eventually(bare.view, lambda view: view["breaker_open"])
    assert answered(await bare.admit("a2")) == {"accepted": True, "attempt_id": "a2", "flagged": True}
    await bare.record(failed(attempt_id="a1"), failed(attempt_id="a2"))
    outcome = await session.close()
    assert "refused" not in actions(attested(running, outcome))


async def test_d4_reject_refuses_until_somebody_resets_and_tools_go_on(running: Rig) -> None:
    session, bare = await tripped(running, "reject")
    assert answered(await bare.admit("a1")) == LOOPING
    assert (await bare.view())["open_attempts"] == 0
    assert (await bare.submit(call("c1"), {"kind": "tool_result", "call_id": "c1", "content": 1}))["last_sequence"] == 5
    assert answered(await bare.admit("a1")) == LOOPING
    await bare.update("reset_breaker", {"by": "operator", "reason": "looked at it"})
    assert answered(await bare.admit("a1")) == {"accepted": True, "attempt_id": "a1", "flagged": False}
    await bare.step(said("a fresh start", attempt_id="a1"))
    outcome = await session.close()
    events = attested(running, outcome)
    assert actions(events)[:6] == [
        "opened",
        "model_response",
        "breaker_tripped",  # the answer that tripped it stays
        "refused",
        "tool_call",
        "tool_result",
    ]
    (reset,) = [event for event in events if event["payload"]["action"] == "breaker_reset"]
    assert reset["payload"] == {"action": "breaker_reset", "by": "operator", "reason": "looked at it"}
    assert sum(event["payload"]["count"] for event in events if event["payload"]["action"] == "refused") == 2


async def test_d4_close_works_under_reject(running: Rig) -> None:
    session, bare = await tripped(running, "reject")
    assert answered(await bare.admit()) == LOOPING
    outcome = await session.close()
    assert (outcome.status, outcome.stop_reason_id) == ("closed", 91)
    assert actions(attested(running, outcome)) == ["opened", "model_response", "breaker_tripped", "refused"]


async def test_d4_inject_admits_with_a_corrective_message_and_resets(running: Rig) -> None:
    session, bare = await tripped(running, "inject")
    answer = await bare.admit("a1")
    assert (answer["accepted"], answer["attempt_id"], answer["flagged"]) == (True, "a1", False)
    assert answer["message"] == (
        "You are repeating yourself: your last answers bring nothing new. Stop, say what you have tried and what you "
        "know, and take another way or ask for help."
    )
    await eventually(bare.view, lambda view: not view["breaker_open"])
    assert answered(await bare.admit("a2")) == {"accepted": True, "attempt_id": "a2", "flagged": False}
    await bare.record(said("the same again", attempt_id="a1"), failed(attempt_id="a2"))
    outcome = await session.close()
    events = attested(running, outcome)
    # The breaker has forgotten everything: the third time is a first time.
    assert actions(events)[2:5] == ["breaker_tripped", "breaker_reset", "model_response"]
    assert events[3]["payload"] == {
        "action": "breaker_reset",
        "by": "affidavit",
        "reason": "corrective message injected",
    }


async def test_d4_abort_closes_the_session_with_91_and_a_receipt(running: Rig) -> None:
    session, bare = await opened(running, breaker=ENOUGH.model_copy(update={"action": "abort"}))
    await bare.record(*(said("the same again", finish_reason="stop", usage={"prompt_tokens": 2}) for _ in range(2)))
    outcome = await session.result()
    events = attested(running, outcome)
    assert actions(events) == ["opened", "model_response", "breaker_tripped"]
    assert events[2]["payload"]["breaker_action"] == "abort"
    assert (outcome.status, outcome.stop_reason_id, outcome.stop_reason) == ("closed", 91, "Loop Detected")
    assert outcome.receipt is not None
    assert (outcome.receipt["stop_reason_id"], outcome.receipt["cost"]["prompt_tokens"]) == (91, 4)
