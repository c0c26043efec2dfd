"""The client against the real dev server: batches, lost answers, cut connections, rollover, reopening."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, RetryConfig

from affidavit.client import SessionClient, SessionHandle
from affidavit.contract import BATCH_STEPS, Agent, BreakerConfig, SessionSpec
from affidavit.converter import data_converter
from affidavit.errors import AffidavitUnavailable, SessionNotFound, SessionRefused, SessionStalled
from tests.support.foreign import SPEC, json_payload, start
from tests.support.oracle import attested
from tests.support.proxy import Proxy, proxied
from tests.support.rig import AGENT, Rig, actions
from tests.support.transport import call
from tests.support.waiting import eventually
from workers.devserver import DevServer

IMPATIENT = RetryConfig(max_retries=1, max_elapsed_time_millis=1)
"""The SDK's own retries carry a request id by which Temporal drops repeats; ours have to do without."""
HANDSHAKE = 2
"""Pieces of a server's answer that only make a connection."""


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "model_response", "text": text, **more}


def reported(events: list[dict[str, Any]]) -> list[str]:
    return [event["payload"]["call_id"] for event in events if event["payload"]["action"] == "tool_call"]


def numbers(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    payloads = [event["payload"] for event in events if "producer" in event["payload"]]
    return [(payload["producer"], payload["producer_seq"]) for payload in payloads]


async def signals(rig: Rig, session_id: str) -> int:
    """Signals in the history of a session's newest run."""
    handle = rig.client.temporal.get_workflow_handle(session_id)
    kinds = [event.event_type async for event in handle.fetch_history_events()]
    return kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)


async def reached_by(rig: Rig, address: str, **options: Any) -> SessionClient:
    """Another client of the rig, which gives up quickly where the SDK would go on for ten seconds."""
    temporal = await Client.connect(address, data_converter=data_converter(), retry_config=IMPATIENT)
    return SessionClient(temporal, task_queue=rig.settings.task_queue, **{"admit_timeout": 20, **options})


@asynccontextmanager
async def unreliable(rig: Rig, server: DevServer) -> AsyncIterator[tuple[Proxy, SessionHandle]]:
    """A session that is opened and reported to through a proxy; the rig's own client goes straight."""
    async with proxied(server.address) as proxy:
        client = await reached_by(rig, proxy.address)
        yield proxy, await client.open(SPEC)


# -- batches ----------------------------------------------------------------------------------------------


async def test_two_thousand_steps_of_one_handle_are_there_once_and_in_order(running: Rig) -> None:
    session = await running.open()
    names = [f"c{number}" for number in range(2_000)]
    for name in names:
        await session.record(call(name))
    flushed = await session.flush()
    assert flushed.event_count == 2_001
    sent = await signals(running, session.session_id)
    outcome = await session.close()

    events = attested(running, outcome)
    assert reported(events) == names
    assert numbers(events) == [(session.producer, number) for number in range(1, 2_001)]
    assert (outcome.repeated, outcome.steps) == (0, 2_000)
    assert 2_000 / BATCH_STEPS <= sent <= 2 * 2_000 / BATCH_STEPS


async def test_a_record_alone_is_on_its_way_after_a_moment(running: Rig) -> None:
    session = await running.open()
    await session.record(call("c1"))
    await eventually(lambda: signals(running, session.session_id), lambda sent: sent == 1, within=5)
    attested(running, await session.close())


async def test_submits_and_records_of_a_handle_keep_their_order(running: Rig) -> None:
    session = await running.open()
    await session.record(call("c0"), call("c1"))
    result = await session.submit(call("c2"), call("c3"))
    assert (result.first_sequence, result.last_sequence, result.repeated) == (3, 4, 0)
    submitting = asyncio.create_task(session.submit(call("c4")))
    await asyncio.sleep(0)
    await session.record(call("c5"))
    await submitting
    await session.refresh_identity(AGENT)
    await session.record(call("c6"))
    outcome = await session.close()
    events = attested(running, outcome)
    assert reported(events) == [f"c{number}" for number in range(7)]
    assert numbers(events) == [(session.producer, number) for number in range(1, 8)]
    assert actions(events)[7:9] == ["identity_refreshed", "tool_call"]


async def test_a_refused_submit_leaves_no_gap(running: Rig) -> None:
    session = await running.open()
    closing = running.client.handle(session.session_id)
    await session.record(call("c0"))
    await session.flush()
    await running.client.temporal.get_workflow_handle(session.session_id).execute_update("close")
    with pytest.raises((SessionRefused, SessionNotFound)):
        await session.submit(call("late"))
    outcome = await closing.result()
    assert actions(attested(running, outcome)) == ["opened", "tool_call"]


async def test_a_runtime_may_number_its_steps_itself(running: Rig) -> None:
    session = await running.open()
    await session.record(call("a", producer="mine", producer_seq=7), call("b"))
    again, new = call("a", producer="mine", producer_seq=7), call("c", producer="mine", producer_seq=8)
    result = await session.submit(again, new)
    assert (result.first_sequence, result.last_sequence, result.repeated) == (3, 3, 1)
    result = await session.submit(new)
    assert (result.first_sequence, result.last_sequence, result.repeated) == (None, None, 1)
    outcome = await session.close()
    assert numbers(attested(running, outcome)) == [("mine", 7), (session.producer, 1), ("mine", 8)]
    assert outcome.repeated == 2


# -- lost answers -----------------------------------------------------------------------------------------


async def test_a_signal_whose_answer_is_lost_is_sent_again_and_counts_as_repeated(
    running: Rig, server: DevServer
) -> None:
    async with unreliable(running, server) as (proxy, session):
        watching = running.client.handle(session.session_id)
        await session.record(call("c0"))
        await session.flush()
        proxy.mute = True
        await session.record(call("c1"), call("c2"))
        # The server has them, the client does not know.
        await eventually(watching.view, lambda view: view.steps == 3)
        proxy.mute = False
        proxy.cut()
        await session.record(call("c3"))
        await session.flush()
        view = await watching.view()
        assert (view.steps, view.repeated) == (4, 2)
        outcome = await session.close()
    events = attested(running, outcome)
    assert reported(events) == ["c0", "c1", "c2", "c3"]
    assert numbers(events) == [(session.producer, number) for number in range(1, 5)]
    assert (outcome.repeated, outcome.unverified) == (2, 0)


async def test_a_submit_whose_answer_is_lost_is_answered_by_the_first_one(running: Rig, server: DevServer) -> None:
    async with unreliable(running, server) as (proxy, session):
        watching = running.client.handle(session.session_id)
        proxy.mute = True
        submitting = asyncio.create_task(session.submit(call("c0"), call("c1")))
        await eventually(watching.view, lambda view: view.steps == 2)
        proxy.mute = False
        proxy.cut()
        result = await submitting
        assert (result.first_sequence, result.last_sequence, result.repeated) == (1, 2, 0)
        outcome = await session.close()
    assert reported(attested(running, outcome)) == ["c0", "c1"]
    assert outcome.repeated == 0


async def test_nothing_is_lost_or_doubled_while_connections_break_again_and_again(
    running: Rig, server: DevServer
) -> None:
    async with unreliable(running, server) as (proxy, session):

        async def break_it() -> None:
            while True:
                # A slow machine may take longer than this for a new connection, and would never get on.
                with suppress(TimeoutError):
                    await asyncio.wait_for(proxy.passes(HANDSHAKE + 1), 2)
                await asyncio.sleep(0.05)
                proxy.mute = True
                await asyncio.sleep(0.02)
                proxy.mute = False
                proxy.cut()

        breaking = asyncio.create_task(break_it())
        names = [f"c{number}" for number in range(1_000)]
        for place, name in enumerate(names):
            await session.record(call(name))
            if place % 250 == 100:
                await session.flush()
            if place % 8 == 0:
                await asyncio.sleep(0.01)
        breaking.cancel()
        proxy.mute = False
        proxy.cut()
        outcome = await session.close()
        assert proxy.cuts > 10
    assert reported(attested(running, outcome)) == names
    assert outcome.unverified == 0


async def test_an_outage_is_told_and_what_was_taken_is_sent_when_it_is_over(running: Rig, server: DevServer) -> None:
    async with proxied(server.address) as proxy:
        client = await reached_by(running, proxy.address, retry_timeout=0.5)
        session = await client.open(SPEC)
        client.admit_timeout = 1
        proxy.closed = True
        proxy.cut()
        await session.record(call("c0"))
        with pytest.raises(AffidavitUnavailable, match="the Temporal server does not answer"):
            await session.flush()
        with pytest.raises(AffidavitUnavailable, match="the Temporal server d"):
            await session.admit()
        await session.record(call("c1"))
        with pytest.raises(AffidavitUnavailable, match="the Temporal server does not answer"):
            await session.close()
        proxy.closed = False
        outcome = await session.close()
    assert reported(attested(running, outcome)) == ["c0", "c1"]


# -- ends -------------------------------------------------------------------------------------------------


async def test_a_cancel_takes_with_it_what_was_recorded_before(running: Rig) -> None:
    session = await running.open()

    async def agent() -> None:
        async with session:
            await session.record(call("c0"), call("c1"))
            raise ValueError("the agent broke")

    with pytest.raises(ValueError, match="the agent broke"):
        await agent()
    assert session.outcome is not None
    assert (session.outcome.status, session.outcome.late_steps) == ("cancelled", 0)
    assert actions(attested(running, session.outcome)) == ["opened", "tool_call", "tool_call", "cancel_requested"]


async def test_steps_that_go_down_with_their_block_are_noted_on_its_error(running: Rig) -> None:
    session = await running.open()

    async def agent() -> None:
        async with session:
            await running.client.handle(session.session_id).close()
            await session.record(call("too late"))
            raise ValueError("the agent broke")

    with pytest.raises(ValueError, match="the agent broke") as broken:
        await agent()
    (note,) = broken.value.__notes__
    assert note.startswith("affidavit: not all steps were reported: no running session")
    assert note.endswith("; 1 steps were not taken")


async def test_a_session_that_has_ended_refuses_by_name_and_still_tells_its_outcome(running: Rig) -> None:
    session = await running.open()
    other = running.client.handle(session.session_id)
    first = await other.close()
    await session.record(call("too late"))
    with pytest.raises(SessionNotFound, match=r"no running session .*; 1 steps were not taken"):
        await session.close()
    assert await session.close() == first
    with pytest.raises(SessionNotFound):
        await session.submit(call("too late"))
    with pytest.raises(SessionNotFound):
        await running.client.handle("never-was").close()


async def test_a4_a_later_life_gets_nothing_of_an_earlier_one(running: Rig) -> None:
    session_id = f"s-{uuid.uuid4()}"
    first = await running.client.open(SPEC, session_id=session_id)
    await first.record(call("first"))
    ended = await first.close()
    with pytest.raises(SessionRefused) as refused:
        await running.client.open(SPEC, session_id=session_id)
    assert refused.value.type == "SessionEnded"

    second = await running.client.open(SPEC, session_id=session_id, reopen=True)
    assert second.generation not in (None, first.generation)
    await first.record(call("a step never reopens"))
    with pytest.raises(SessionNotFound, match="1 steps were not taken"):
        await first.flush()
    with pytest.raises(SessionNotFound):
        await first.submit(call("nor this"))
    with pytest.raises(SessionNotFound):
        await first.cancel()
    with pytest.raises(SessionNotFound, match=r"this life of session .* has ended"):
        await first.view()
    assert await first.close() == ended
    async with running.client.session(SPEC, session_id=session_id, reopen=True) as joined:
        assert joined.generation == second.generation
        await joined.record(call("second"))
    assert joined.outcome is not None
    assert joined.outcome.generation == second.generation
    assert (joined.outcome.steps, joined.outcome.event_count) == (1, 2)


# -- admission --------------------------------------------------------------------------------------------


async def test_c3_an_admitted_attempt_is_ended_by_its_response(running: Rig) -> None:
    session = await running.open()
    admitted = await session.admit()
    assert (admitted.accepted, admitted.flagged, admitted.message) == (True, False, None)
    assert admitted.attempt_id
    assert (await session.view()).open_attempts == 1
    # The same request once more, as after a lost answer, opens no second attempt.
    again = await session.admit(admitted.attempt_id)
    assert again.attempt_id == admitted.attempt_id
    assert (await session.view()).open_attempts == 1
    await session.record(said("done", attempt_id=admitted.attempt_id))
    other = await session.admit("mine", AGENT)
    assert other.attempt_id == "mine"
    await session.record({"kind": "model_failure", "reason": "timeout", "attempt_id": "mine"})
    attested(running, await session.close())


async def test_c1_a_refused_admission_raises_with_its_type(running: Rig) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0, window=1, action="reject"))
    with pytest.raises(SessionRefused) as refused:
        await session.admit(agent=Agent(version="1", charter="triage", instance_uid="somebody else"))
    assert refused.value.type == "IdentityConflict"
    with pytest.raises(SessionRefused) as refused:
        await session.admit("x" * 129)
    assert refused.value.type == "BadRequest"
    for _ in range(3):
        await session.submit(said("the same again"))
    with pytest.raises(SessionRefused) as refused:
        await session.admit()
    assert refused.value.type == "LoopDetected"
    assert (await session.view()).open_attempts == 0
    attested(running, await session.close())


@pytest.mark.parametrize("action", ["observe", "inject"])
async def test_d4_an_open_breaker_that_lets_pass_says_so(running: Rig, action: Any) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0, window=1, action=action))
    for _ in range(3):
        await session.submit(said("the same again"))
    admitted = await session.admit("a1")
    assert admitted.accepted
    assert (admitted.flagged, admitted.message is not None) == (action == "observe", action == "inject")
    await session.record(said("something new altogether", attempt_id="a1"))
    attested(running, await session.close())


async def test_an_admission_names_the_worker_that_is_missing(rig: Rig, server: DevServer) -> None:
    await start(rig, session_id := f"s-{uuid.uuid4()}", json_payload(SPEC))
    client = await reached_by(rig, server.address, admit_timeout=1)
    before = time.monotonic()
    with pytest.raises(AffidavitUnavailable, match=f"no worker polls task queue {rig.settings.task_queue}"):
        await client.handle(session_id).admit()
    with pytest.raises(AffidavitUnavailable, match=f"no worker polls task queue {rig.settings.task_queue}"):
        await client.open(SPEC)
    assert time.monotonic() - before < 8


async def test_an_open_without_a_worker_names_the_session_that_it_has_left_behind(rig: Rig, server: DevServer) -> None:
    client = await reached_by(rig, server.address, admit_timeout=1)
    with pytest.raises(AffidavitUnavailable) as unanswered:
        await client.open(SPEC)
    left = unanswered.value.session_id
    assert left is not None
    assert str(unanswered.value) == (
        f"no worker polls task queue {rig.settings.task_queue}; `python -m workers` starts one. Session {left} is in "
        "Temporal and opens once a worker is there: open it again to join it, or cancel it by its handle"
    )
    assert unanswered.value.__cause__ is None
    assert unanswered.value.__suppress_context__
    await client.handle(left).cancel()
    async with rig.worker():
        assert (await rig.client.handle(left).result()).status == "cancelled"


async def test_an_open_names_the_server_that_is_missing(rig: Rig, server: DevServer) -> None:
    async with proxied(server.address) as proxy:
        # Not the impatient one: the SDK's own retries last longer than the time that an open may take.
        client = await SessionClient.connect(address=proxy.address, admit_timeout=1)
        proxy.closed = True
        proxy.cut()
        before = time.monotonic()
        with pytest.raises(AffidavitUnavailable, match=r"the Temporal server did not answer within 1 s"):
            await client.open(SPEC)
        assert time.monotonic() - before < 8


# -- runs that end ----------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module")
async def short_runs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A server that suggests to continue as new early, and takes few signals in a run."""
    log = tmp_path_factory.mktemp("short-runs") / "server.log"
    limits = {"limit.historyCount.suggestContinueAsNew": "120", "history.maximumSignalsPerExecution": "300"}
    started = await DevServer.start(log=log, headless=True, dynamic_config=limits)
    try:
        yield started
    finally:
        await started.stop()


async def test_case2_a_sender_over_many_runs_sees_no_error_and_nothing_is_lost(
    short_runs: DevServer, tmp_path: Path
) -> None:
    rig = await Rig.make(short_runs.address, tmp_path / "data")
    names = [f"c{number}" for number in range(500)]
    async with rig.worker():
        session = await rig.open()
        for place, name in enumerate(names):
            if place % 40 == 17:
                await session.submit(call(name))
            else:
                await session.record(call(name))
            if place % 100 == 99:
                await session.flush()
            await asyncio.sleep(0.015)
        view = await eventually(session.view, lambda view: view.state == "open")
        assert view.runs >= 5
        outcome = await session.close()
    events = attested(rig, outcome)
    assert reported(events) == names
    assert numbers(events) == [(session.producer, number) for number in range(1, len(names) + 1)]
    assert outcome.generation == session.generation


@pytest.mark.timeout(200)
async def test_many_senders_and_waiting_updates_over_many_runs(short_runs: DevServer, tmp_path: Path) -> None:
    rig = await Rig.make(short_runs.address, tmp_path / "data")
    async with rig.worker():
        session = await rig.open()

        async def report(who: int) -> list[int]:
            handle = rig.client.handle(session.session_id)
            found: list[int] = []
            for number in range(40):
                await handle.record(call(f"{who}-{number}-a"))
                result = await handle.submit(call(f"{who}-{number}-b"))
                assert result.first_sequence is not None or result.repeated
                found += [result.first_sequence] if result.first_sequence is not None else []
            return found

        found = await asyncio.gather(*(report(who) for who in range(6)))
        view = await session.view()
        assert view.runs >= 3
        outcome = await session.close()
    events = attested(rig, outcome)
    for who, sequences in enumerate(found):
        own = [name for name in reported(events) if name.startswith(f"{who}-")]
        assert own == [f"{who}-{number}-{half}" for number in range(40) for half in "ab"]
        assert sequences == sorted(sequences)
    assert outcome.steps == 480


async def test_a_run_that_takes_no_more_signals_stalls_the_session_and_loses_nothing(
    short_runs: DevServer, tmp_path: Path
) -> None:
    rig = await Rig.make(short_runs.address, tmp_path / "data")
    # No worker runs, so nothing hands the run on.
    handle = await start(rig, f"s-{uuid.uuid4()}", json_payload(SPEC))
    await asyncio.gather(*(handle.signal("tool_call", json_payload(call(f"f{n}"))) for n in range(300)))
    client = SessionClient(rig.client.temporal, task_queue=rig.settings.task_queue, retry_timeout=0.5)
    session = client.handle(handle.id)
    await session.record(call("c0"))
    with pytest.raises(SessionStalled, match="exceeded workflow execution limit for signal events"):
        await session.flush()
    await session.record(call("c1"))
    async with rig.worker():
        # As soon as the run is handed on, what was kept goes out; a caller may be told once more until then.
        await eventually(rig.client.handle(handle.id).view, lambda view: view.runs >= 2)
        outcome = await session.close()
    assert reported(attested(rig, outcome))[-2:] == ["c0", "c1"]
    assert outcome.steps == 302


def test_a_spec_may_ask_for_a_reopening_itself() -> None:
    assert SessionSpec.model_validate({**SPEC, "reopen": True}).reopen
