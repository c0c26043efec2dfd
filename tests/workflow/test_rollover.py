"""A session that is handed on to its next run: nothing lost, nothing doubled, whatever is away meanwhile.

The server of this module suggests to continue as new after 200 events. Tests that need a rollover at a certain place
lower the session's own limit of signals instead.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.buses.base import Ack, BusRecord
from activities.embedders import HashEmbedder
from activities.errors import TransientError
from affidavit import contract
from affidavit.contract import BreakerConfig, Limits
from tests.support.bare import Bare, Json, asked, call, failed, said
from tests.support.halves import bus_of, journaling, signing, store_of, until
from tests.support.oracle import attested
from tests.support.rig import Rig, actions
from tests.support.taps import LIMIT_S, Outage, TapBus, TapStore
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workflows import handover, stages


@pytest_asyncio.fixture(scope="module")
async def short_runs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    started = await DevServer.start(
        log=tmp_path_factory.mktemp("short-runs") / "server.log",
        headless=True,
        dynamic_config={"limit.historyCount.suggestContinueAsNew": "200"},
    )
    try:
        yield started
    finally:
        await started.stop()


@pytest_asyncio.fixture
async def rig(short_runs: DevServer, tmp_path: Path) -> Rig:
    return await Rig.make(short_runs.address, tmp_path / "data")


@pytest.fixture
def every_fifth_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes five signals, and waits half a second at its end for what is under way."""
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 5)
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 0.5)


async def in_run(bare: Bare, number: int) -> Json:
    """Wait until the session is in its run of that number, the first one being 1."""
    return await eventually(bare.view, lambda view: view["runs"] >= number)


async def flush_until_refused(bare: Bare) -> tuple[str | None, str]:
    """Type and text of the first refusal of a flush."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await bare.update("flush")
            except WorkflowUpdateFailedError as error:
                cause = error.cause
                return (cause.type, cause.message) if isinstance(cause, ApplicationError) else (None, str(cause))


def called(events: list[Json]) -> list[str | None]:
    return [event["payload"].get("call_id") for event in events[1:]]


def inputs(history: Sequence[HistoryEvent], activity_type: str) -> list[Json]:
    """First arguments of the activities of a type, as they were scheduled."""
    scheduled = [event.activity_task_scheduled_event_attributes for event in history]
    return [json.loads(each.input.payloads[0].data) for each in scheduled if each.activity_type.name == activity_type]


# -- many runs ------------------------------------------------------------------------------------------


async def test_case2_rollover_race(running: Rig) -> None:
    """1 500 numbered events of one sender, three in a signal, at 300 events a second where the machine keeps up.

    The case says 40 a second, one in a signal; so it is as steady, and over sooner.
    """
    session = await running.open()
    bare = Bare(running, session.session_id)
    begun = time.monotonic()
    for first in range(1, 1501, 3):
        await bare.record(*(call(f"c{n}", producer="sender", producer_seq=n) for n in range(first, first + 3)))
        await asyncio.sleep(max(0.0, begun + first / 300 - time.monotonic()))
    outcome = await session.close()

    events = attested(running, outcome)
    assert [event["metadata"]["sequence"] for event in events] == list(range(1501))
    assert [event["payload"].get("producer_seq") for event in events] == [None, *range(1, 1501)]
    assert (outcome.steps, outcome.repeated, outcome.rejected, outcome.late_steps) == (1500, 0, 0, 0)
    runs = await bare.runs()
    assert len(runs) >= 5
    assert max(len(run) for run in runs) <= 1000
    assert (await bare.view())["runs"] == len(runs)
    sealed = [request for run in runs for request in inputs(run, "seal")]
    assert {request["receipt_id"] for request in sealed} == {outcome.receipt_id}


async def test_updates_and_queries_are_answered_across_rollovers(running: Rig) -> None:
    """An update is asked again under its id for as long as runs change; it is done once."""
    session = await running.open()
    bare = Bare(running, session.session_id)
    seen: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def send() -> int:
        number = 0
        while not done.is_set():
            number += 1
            await bare.step(call(f"s{number}", producer="signals", producer_seq=number))
        return number

    async def ask() -> None:
        while not done.is_set():
            view = await bare.view()
            seen.append((view["runs"], view["event_count"]))
            await asyncio.sleep(0.05)

    async def submit() -> None:
        try:
            number = 0
            while not seen or seen[-1][0] < 5:
                number += 1
                steps = [call(f"u{number}", producer="updates", producer_seq=number)]
                answer, reasons = await bare.persistently("submit", {"steps": steps})
                # Taken once: a second try of one that was taken finds its number known.
                assert answer["repeated"] == 0 or "AcceptedUpdateCompletedWorkflow" in reasons
                before = answer["event_count"]
                flushed, _ = await bare.persistently("flush")
                assert flushed["event_count"] >= before
        finally:
            done.set()
        submitted.append(number)

    submitted: list[int] = []
    sent, *_ = await asyncio.gather(send(), ask(), submit())
    outcome = await session.close()
    events = attested(running, outcome)
    assert [event["payload"] for event in events if event["payload"]["action"] == "producer_gap"] == []
    numbers: dict[str, list[int]] = {"signals": [], "updates": []}
    for event in events[1:]:
        numbers[event["payload"]["producer"]].append(event["payload"]["producer_seq"])
    assert numbers == {"signals": list(range(1, sent + 1)), "updates": list(range(1, submitted[0] + 1))}
    assert seen == sorted(seen)


async def test_a_run_takes_so_many_updates(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_UPDATES", 3)
    session = await running.open()
    bare = Bare(running, session.session_id)
    for number in range(1, 8):
        steps = [call(f"c{number}", producer="updates", producer_seq=number)]
        answer, _ = await bare.persistently("submit", {"steps": steps})
        assert answer["last_sequence"] == number
    # Opening was an update too: 1 + 7 in runs of three, and perhaps the one that asked once more.
    assert (await in_run(bare, 3))["event_count"] == 8
    assert called(attested(running, await session.close())) == [f"c{number}" for number in range(1, 8)]


# -- what a run hands on --------------------------------------------------------------------------------


async def test_d6_verdicts_and_totals_are_the_same_with_a_rollover_after_each_response(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = "I looked at the invoice again and the total does not match."
    used = {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "cost_usd_micros": 5}}
    responses = [said(same, **used)] * 5 + [said("Something else altogether: a refund was made.", **used)]
    config = BreakerConfig(window=3, min_tokens=40, action="observe")
    told: dict[str, list[Any]] = {}
    views: dict[str, Json] = {}
    for name in ("one run", "a run for each"):
        if name == "a run for each":
            monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 1)
        session = await running.open(breaker=config)
        bare = Bare(running, session.session_id)
        for place, response in enumerate(responses):
            await bare.step(response)
            if name == "a run for each":
                await in_run(bare, place + 2)
        views[name] = await eventually(bare.view, lambda view: view["event_count"] == 7)
        outcome = await session.close()
        told[name] = [
            (event["payload"]["action"], event["payload"].get("streak"), event["payload"].get("tokens_consumed"))
            for event in attested(running, outcome)[1:]
        ]
        assert (outcome.totals.prompt_tokens, outcome.totals.completion_tokens) == (42, 18)
        assert (outcome.totals.cost_usd_micros, outcome.stop_reason_id) == (30, 91)

    quiet = ("model_response", None, None)
    assert told["one run"] == [quiet, quiet, quiet, ("breaker_tripped", 3, 40), ("breaker_tripped", 4, 50), quiet]
    assert told["a run for each"] == told["one run"]
    assert [views[name]["runs"] for name in views] == [1, 7]
    for view in views.values():
        assert (view["breaker_open"], view["breaker_streak"], view["breaker_tokens"]) == (True, 0, 60)


async def test_c3_attempts_survive_a_rollover(running: Rig, every_fifth_signal: None) -> None:
    session = await running.open(limits=Limits(response_slots=2))
    bare = Bare(running, session.session_id)
    await bare.admit("a1")
    await bare.admit("a2")
    for number in range(5):
        await bare.step(call(f"c{number}"))
    assert (await in_run(bare, 2))["open_attempts"] == 2
    assert await bare.refusal("admit", {"attempt_id": "a3"}) == (
        "ResponseSlotsFull",
        "response slots full: 2 attempts open",
    )
    assert (await bare.admit("a1"))["attempt_id"] == "a1"
    await bare.record(asked(attempt_id="a1"), said("done", attempt_id="a1"), failed(attempt_id="a2"))
    await eventually(bare.view, lambda view: view["open_attempts"] == 0)
    outcome = await session.close()
    events = attested(running, outcome)
    assert [event["payload"].get("attempt_id") for event in events] == [None] * 6 + ["a1", "a1", "a2"]


async def test_refusals_that_no_event_tells_of_yet_survive_a_rollover(running: Rig, every_fifth_signal: None) -> None:
    session = await running.open()
    bare = Bare(running, session.session_id)
    stranger = {"version": "1", "charter": "triage", "instance_uid": "somebody else"}
    answers = [await bare.admit(agent=stranger) for _ in range(4)]
    assert [answer["accepted"] for answer in answers] == [False] * 4
    for number in range(5):
        await bare.step(call(f"c{number}"))
    await in_run(bare, 2)
    events = attested(running, await session.close())
    counts = [event["payload"]["count"] for event in events if event["payload"]["action"] == "refused"]
    assert sum(counts) == 4
    assert counts[0] == 1


# -- what is under way, and what is away ----------------------------------------------------------------


@dataclass
class Recording(TapStore):
    """Remembers what it was asked to create as a journal segment, and in which run of the session."""

    tried: list[tuple[str, bytes, str]] = field(default_factory=list)

    def create(self, name: str, data: bytes) -> bool:
        if "/journal/" in name:
            self.tried.append((name.rpartition("/")[2], data, str(activity.info().workflow_run_id)))
        return super().create(name, data)


def at_segment(first: int, outage: Outage) -> Any:
    def before(name: str) -> None:
        if name.endswith(f"/journal/{first:012}.ndjson"):
            outage.strike()

    return before


async def test_with_the_store_out_a_batch_is_handed_on_exactly_as_it_was_cut(
    rig: Rig, every_fifth_signal: None
) -> None:
    outage = Outage(lambda: OSError(28, "No space left on device"))
    store = Recording(store_of(rig), before=at_segment(1, outage))
    async with rig.worker(store=store):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.record(call("c1"), said("seen", producer="p", producer_seq=1), call("c2"))
        await outage.met_times(1)
        waits = {"steps": [call("c3", producer="updates", producer_seq=1)]}
        submitted = asyncio.create_task(bare.persistently("submit", waits))
        await eventually(bare.view, lambda view: view["queue_depth"] == 1)
        for number in range(4, 8):
            await bare.step(call(f"c{number}"))
        view = await in_run(bare, 2)
        assert (view["event_count"], view["poisoned"]) == (1, None)
        assert view["queue_depth"] in (5, 6)  # the update that is asked again may wait behind the five
        met = outage.met
        await outage.met_times(met + 1)
        await bare.step(call("c8"))
        outage.end()
        answer, reasons = await submitted
        # The run that took the update is gone with it; the next one knows the step.
        assert "AcceptedUpdateCompletedWorkflow" in reasons
        assert (answer["repeated"], answer["first_sequence"]) == (1, None)
        outcome = await session.close()
    first_batch = [(data, run) for name, data, run in store.tried if name == "000000000001.ndjson"]
    assert len({data for data, _ in first_batch}) == 1
    assert len({run for _, run in first_batch}) == 2
    assert (rig.folder(session.session_id) / "journal" / "000000000001.ndjson").read_bytes() == first_batch[0][0]
    events = attested(rig, outcome)
    assert called(events) == ["c1", None, "c2", "c3", "c4", "c5", "c6", "c7", "c8"]
    assert (outcome.steps, outcome.repeated) == (9, 1)


@dataclass
class LookingBus(TapBus):
    """Remembers of each call: the run of the session, the attempt, and whether it was to look uids up."""

    calls: list[tuple[str, int, bool]] = field(default_factory=list)

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        info = activity.info()
        self.calls.append((str(info.workflow_run_id), info.attempt, look_up))
        return await super().publish(records, look_up=look_up)


async def test_with_the_bus_out_what_is_in_doubt_is_looked_up_by_the_next_run(
    rig: Rig, every_fifth_signal: None
) -> None:
    """The bus has taken the records, and nobody heard of it before the run was over."""
    outage = Outage(lambda: TransientError("the answer was lost"))
    bus = LookingBus(bus_of(rig), after=lambda _: outage.strike())
    async with rig.worker(bus=bus):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await outage.met_times(1)
        for number in range(5):
            await bare.step(call(f"c{number}"))
        view = await in_run(bare, 2)
        assert view["published_through"] == -1
        met = outage.met
        await outage.met_times(met + 1)
        outage.end()
        outcome = await session.close()
    runs = [run[0].workflow_execution_started_event_attributes.original_execution_run_id for run in await bare.runs()]
    by_run = [[(attempt, look_up) for run_id, attempt, look_up in bus.calls if run_id == run] for run in runs]
    assert by_run[0][0] == (1, False)
    assert by_run[1][0] == (1, True)  # a first attempt, but not the first time
    assert by_run[1][-1] == (1, False)  # the last of all are in no doubt
    assert called(attested(rig, outcome)) == [f"c{number}" for number in range(5)]


async def test_f4_a_close_with_the_signer_down_goes_on_in_later_runs(rig: Rig, every_fifth_signal: None) -> None:
    """Signals keep coming to a session that only waits for its receipt; it is asked for one and the same."""
    async with journaling(rig):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.step(call("c1"))
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        for run in (2, 3):
            for number in range(4 if run == 2 else 5):
                await bare.step(call(f"late{run}.{number}"))
            view = await in_run(bare, run)
        assert (view["state"], view["event_count"], view["late_steps"]) == ("sealing", 2, 9)
        assert not closing.done()
        assert (await bare.update("close"))["generation"] == session.generation
        async with signing(rig):
            outcome = await closing
    assert (outcome.status, outcome.late_steps, outcome.stop_reason_id) == ("closed", 9, 4)
    assert called(attested(rig, outcome)) == ["c1"]
    asked_for = [request for run in await bare.runs() for request in inputs(run, "seal")]
    assert len(asked_for) == 3
    fixed = [{key: value for key, value in request.items() if key != "run_id"} for request in asked_for]
    assert fixed == [fixed[0]] * 3
    assert fixed[0]["receipt_id"] == outcome.receipt_id


async def test_f4_a_close_with_the_bus_down_goes_on_in_later_runs(rig: Rig, every_fifth_signal: None) -> None:
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=lambda _: outage.strike())):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.step(call("c1"))
        closing = asyncio.create_task(session.close())
        await until(session, "closing")
        for number in range(4):
            await bare.step(call(f"late{number}"))
        view = await in_run(bare, 2)
        assert (view["state"], view["event_count"], view["published_through"]) == ("closing", 2, -1)
        outage.end()
        outcome = await closing
    assert (outcome.status, outcome.late_steps) == ("closed", 4)
    assert called(attested(rig, outcome)) == ["c1"]


async def test_f7_a_cancel_while_the_run_is_handed_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 5)
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 2)
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=lambda _: outage.strike())):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await outage.met_times(1)
        for number in range(5):
            await bare.step(call(f"c{number}"))
        # The publish in flight is waited for; what would have to wait is sent to the next run.
        reasons = await flush_until_refused(bare)
        assert reasons == ("RollingOver", "the run is being handed on; ask again")
        await session.cancel()
        view = await in_run(bare, 2)
        assert view["state"] == "open"  # P11: the terminal follows
        assert view["cancel_requested"]["time"] > 0
        outage.end()
        outcome = await session.result()
    assert outcome.status == "cancelled"
    events = attested(rig, outcome)
    assert actions(events) == ["opened", *["tool_call"] * 5, "cancel_requested"]


async def test_a_batch_that_is_being_assessed_is_not_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between cut and decision a batch stands neither in the inbox nor in the state."""

    async def slow(*_: object) -> None:
        await workflow.sleep(2)

    monkeypatch.setattr(stages, "embed", slow)
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 1)
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 0.2)
    async with rig.worker(embedder=HashEmbedder()):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.record(said("first"), call("c1"))
        await in_run(bare, 2)
        await eventually(bare.view, lambda view: view["event_count"] == 3)
        outcome = await session.close()
    assert actions(attested(rig, outcome)) == ["opened", "model_response", "tool_call"]


async def test_d4_a_trip_that_a_later_run_journals_aborts_the_session(rig: Rig, every_fifth_signal: None) -> None:
    outage = Outage(lambda: OSError(28, "No space left on device"))
    async with rig.worker(store=TapStore(store_of(rig), before=at_segment(1, outage))):
        session = await rig.open(breaker=BreakerConfig(window=1, min_tokens=0, action="abort"))
        bare = Bare(rig, session.session_id)
        await bare.record(said("again"), said("again"))
        await outage.met_times(1)
        for number in range(4):
            await bare.step(call(f"c{number}"))
        await in_run(bare, 2)
        outage.end()
        outcome = await session.result()
    assert (outcome.status, outcome.stop_reason_id) == ("closed", 91)
    assert actions(attested(rig, outcome))[:3] == ["opened", "model_response", "breaker_tripped"]


async def test_e1_a_fault_found_in_a_batch_is_not_forgotten(rig: Rig, every_fifth_signal: None) -> None:
    """The good part of the batch waits for its store over a rollover; the bad part has poisoned the session."""
    outage = Outage(lambda: OSError(28, "No space left on device"))
    async with rig.worker(store=TapStore(store_of(rig), before=at_segment(1, outage))):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.record(call("c1"), said("who asked?", attempt_id="nobody"), call("c2"))
        await outage.met_times(1)
        for number in range(4):
            await bare.step(call(f"x{number}"))
        await in_run(bare, 2)
        outage.end()
        outcome = await session.close()
    assert (outcome.status, outcome.reason) == ("quarantined", "attempt nobody ends without an opening")
    assert called(rig.journal(session.session_id)) == ["c1"]
    assert (outcome.steps, outcome.unprocessed) == (1, 6)


async def test_e2_a_batch_that_a_later_run_cannot_journal_is_counted(rig: Rig, every_fifth_signal: None) -> None:
    outage = Outage(lambda: OSError(28, "No space left on device"))

    def before(name: str) -> None:
        if name.endswith("/journal/000000000001.ndjson"):
            outage.strike()
            (rig.data.evidence / name).write_bytes(b"another\n")

    async with rig.worker(store=TapStore(store_of(rig), before=before)):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.record(call("c1"), call("c2"))
        await outage.met_times(1)
        for number in range(4):
            await bare.step(call(f"c{number}"))
        await in_run(bare, 2)
        outage.end()
        outcome = await session.close()
    assert outcome.status == "quarantined"
    assert (outcome.steps, outcome.event_count, outcome.unprocessed) == (0, 1, 6)


async def test_what_is_too_much_to_hand_on_is_worked_off_first(
    rig: Rig, every_fifth_signal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "HANDED_ON_BYTES", 10_000)
    outage = Outage(lambda: OSError(28, "No space left on device"))
    async with rig.worker(store=TapStore(store_of(rig), before=at_segment(1, outage))):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.step(call("c0"))
        await outage.met_times(1)
        for number in range(1, 6):
            await bare.step(call(f"c{number}", arguments={"text": "x" * 3_000}))
        # The run had to go on: 15 000 bytes wait, and more is taken.
        await eventually(bare.history_length, lambda length: length > 30)
        assert (await bare.view())["runs"] == 1
        outage.end()
        view = await in_run(bare, 2)
        assert view["event_count"] == 7
        outcome = await session.close()
    assert called(attested(rig, outcome)) == [f"c{number}" for number in range(6)]


# -- no rollover, but another run all the same ------------------------------------------------------------


@pytest.mark.parametrize("reported_after", [True, False])
async def test_a_reset_of_a_live_session_ends_quarantined(running: Rig, reported_after: bool) -> None:
    session = await running.open()
    bare = Bare(running, session.session_id)
    await session.submit(call("c1"))
    (history,) = await bare.runs()
    completed = [e.event_id for e in history if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    temporal = running.client.temporal
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=session.session_id, run_id=str(session.generation)),
            reason="an operator tries it",
            workflow_task_finish_event_id=completed[-1],
            request_id=str(uuid.uuid4()),
        )
    )
    if reported_after:
        await bare.step(call("c2"))
        why = "the session was reset; its capture cannot be continued"
        await eventually(bare.view, lambda view: view["poisoned"] == f"journaling: IntegrityError: {why}")
    # By the id alone: the run that the handle has opened was terminated by the reset.
    outcome = await running.client.handle(session.session_id).close()
    stage = "journaling" if reported_after else "sealing"
    assert outcome.status == "quarantined"
    assert outcome.reason == f"{stage}: IntegrityError: the session was reset; its capture cannot be continued"
    assert (outcome.receipt_id, outcome.unprocessed) == (None, 1 if reported_after else 0)
    assert called(running.journal(session.session_id)) == ["c1"]
    assert not (running.folder(session.session_id) / "receipt.json").exists()
