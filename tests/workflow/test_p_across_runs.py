"""P2, P6-P8 and P10 over many runs of a session, restarts of whoever waits, and after Temporal has forgotten it.

The server of this module suggests to continue as new after 120 events, and deletes executions soon after it is asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from affidavit.client import Cursor, SessionClient, SessionEvent
from affidavit.errors import EvidenceNeeded, SessionNotFound, SessionRefused
from tests.support.bare import Bare, call
from tests.support.commands import command
from tests.support.processes import environment, line, process
from tests.support.rig import Rig, actions
from tests.support.waiting import eventually
from workers.devserver import DevServer

DONE = {"done": {"type": "object"}}


def done(number: int) -> dict[str, object]:
    return {"kind": "event", "type": "done", "payload": {"number": number}}


@pytest_asyncio.fixture(scope="module")
async def short_runs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    started = await DevServer.start(
        log=tmp_path_factory.mktemp("short-runs") / "server.log",
        headless=True,
        dynamic_config={
            "limit.historyCount.suggestContinueAsNew": "120",
            "history.transferProcessorUpdateAckInterval": '"1s"',
            "history.visibilityProcessorUpdateAckInterval": '"1s"',
        },
    )
    try:
        yield started
    finally:
        await started.stop()


@pytest_asyncio.fixture
async def rig(short_runs: DevServer, tmp_path: Path) -> Rig:
    return await Rig.make(short_runs.address, tmp_path / "data")


def stranger_to(rig: Rig) -> SessionClient:
    """A client that does not share the evidence store."""
    return SessionClient(rig.client.temporal, task_queue=rig.settings.task_queue)


async def in_run(bare: Bare, number: int) -> None:
    """Report until the session is in its run of that number, the first one being 1."""
    while (await bare.view())["runs"] < number:
        await bare.rig.client.handle(bare.session_id).submit(call("c"))


async def forget(rig: Rig, session_id: str) -> None:
    """Delete the execution, and wait until Temporal knows nothing of it."""
    temporal = rig.client.temporal
    await temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=temporal.namespace, workflow_execution=WorkflowExecution(workflow_id=session_id)
        )
    )

    async def known() -> bool:
        try:
            await temporal.get_workflow_handle(session_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    await eventually(known, lambda found: not found, within=30)


# -- P2 -------------------------------------------------------------------------------------------------


async def test_p2_one_that_has_ended_is_told_at_once_without_a_worker_and_after_temporal_forgot_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.worker():
        session = await rig.open(session_id="p2")
        await session.submit(call("c1"))
        closed = await session.close()
    assert (closed.status, closed.event_count) == ("closed", 2)
    stranger = await SessionClient.connect(address=rig.client.temporal.service_client.config.target_host)
    async with asyncio.timeout(20):
        assert await rig.client.await_terminal("p2") == closed
        assert await rig.client.terminal_state("p2") == closed
        assert await stranger.await_terminal("p2") == closed
        assert await stranger.terminal_state("p2") == closed
        code, out, _ = await command(rig, monkeypatch, "wait", "p2", "--json")
        assert (code, json.loads(out)["receipt_id"]) == (0, closed.receipt_id)
    await forget(rig, "p2")
    async with asyncio.timeout(20):
        assert await rig.client.await_terminal("p2") == closed
        assert await rig.client.terminal_state("p2") == closed
        code, out, _ = await command(rig, monkeypatch, "wait", "p2", "--json")
        assert (code, json.loads(out)["receipt_id"]) == (0, closed.receipt_id)
        code, out, _ = await command(rig, monkeypatch, "tail", "p2", "-n", "2")
        assert [row.split()[-1] for row in out.splitlines()] == ["receipt", "closed"]
        with pytest.raises(SessionNotFound):  # it has no store to look into
            await stranger.await_terminal("p2")


async def test_p2_waiters_are_told_the_end_across_two_rollovers(running: Rig) -> None:
    session = await running.open(session_id="p2-runs")
    waiting = [asyncio.create_task(running.client.await_terminal("p2-runs")) for _ in range(2)]
    await in_run(Bare(running, "p2-runs"), 3)
    closed = await session.close()
    assert await asyncio.gather(*waiting) == [closed, closed]
    assert (await running.client.await_terminal("p2-runs")).receipt_id == closed.receipt_id


# -- P6, P7 ---------------------------------------------------------------------------------------------


async def test_p6_p7_the_log_is_complete_however_long_the_session(rig: Rig) -> None:
    stranger = stranger_to(rig)
    async with rig.worker():
        session = await rig.open(session_id="p7", event_types=DONE)
        for number in range(4):
            await session.submit(*(call(f"c{number}-{place}") for place in range(50)), done(number))
        expected = actions(rig.journal("p7"))
        assert len(expected) == 205
        events = [event async for event in session.events()]
        assert [event.action for event in events] == expected
        assert [event.sequence for event in events] == list(range(205))
        assert {event.generation for event in events} == {session.generation}

        # Strictly after, ascending, of one action, empty past the end.
        customs = [event.sequence async for event in session.events(action="event:done")]
        assert customs == [51, 102, 153, 204]
        assert [event.sequence async for event in session.events(events[51].cursor, action="event")] == [102, 153, 204]
        assert [event async for event in session.events(events[204].cursor)] == []
        with pytest.raises(SessionRefused, match="another life"):
            await anext(session.events(Cursor("another", 3)))

        # The last ones, and counts, below and inside of what the session remembers itself.
        assert [event.sequence for event in await session.recent_events(3)] == [202, 203, 204]
        assert [event.sequence for event in await session.recent_events(200)] == list(range(5, 205))
        assert await session.count_events("tool_call") == 200
        assert await session.count_events("tool_call", events[60].cursor) == 59
        assert await session.count_events("tool_call", events[160].cursor) == 157
        assert await session.count_events("event:done", events[160].cursor) == 3
        assert await session.count_events("nothing like it") == 0

        # Without the store, what the session has forgotten is not passed over in silence.
        outside = stranger.process("p7")
        assert [event.sequence for event in await outside.recent_events(128)] == list(range(77, 205))
        with pytest.raises(EvidenceNeeded, match="events before 77"):
            await anext(outside.events())
        with pytest.raises(EvidenceNeeded):
            await outside.count_events("tool_call", events[60].cursor)
        assert [event.sequence async for event in outside.events(events[76].cursor)] == list(range(77, 205))
        await session.close()
    # No worker: from the store alone, with what comes after the chain.
    ended = [event async for event in rig.client.process("p7").events(events[203].cursor)]
    assert [(event.sequence, event.action) for event in ended] == [(204, "event"), (205, "receipt"), (206, "closed")]
    assert [event.action for event in await rig.client.process("p7").recent_events(2)] == ["receipt", "closed"]
    assert await rig.client.process("p7").count_events("tool_call") == 200


# -- P8 -------------------------------------------------------------------------------------------------


async def test_p8_await_event_history_included_across_two_rollovers_and_a_restart(rig: Rig) -> None:
    stranger = stranger_to(rig)
    async with rig.worker():
        session = await rig.open(session_id="p8", event_types=DONE)
        first = await session.await_event("opened")
        assert first is not None
        assert first.cursor == (session.generation, 0)
        waiting = [
            asyncio.create_task(client.process("p8").await_event("event:done", first.cursor))
            for client in (stranger, stranger_to(rig))
        ]
        await in_run(Bare(rig, "p8"), 3)
        assert not any(waiter.done() for waiter in waiting)
    async with rig.worker():
        await session.submit(done(1))
        found = await asyncio.gather(*waiting)
        assert found[0] is not None
        assert found[0] == found[1]
        assert (found[0].action, found[0].type, found[0].generation) == ("event", "done", session.generation)
        # Strictly after: the next one, or the end without one.
        another = asyncio.create_task(session.await_event("event:done", found[0].cursor))
        await session.submit(done(2))
        second = await another
        assert second is not None
        assert second.sequence == found[0].sequence + 1
        none = asyncio.create_task(session.await_event("event:done", second.cursor))
        await session.close()
        assert await none is None


WAITER = """
import asyncio, sys
from affidavit.client import Cursor, SessionClient

async def main():
    session = (await SessionClient.connect()).process("p8-restart")
    after = Cursor(sys.argv[1], int(sys.argv[2]))
    print("waiting", flush=True)
    event = await session.await_event("event:done", after)
    print(event.sequence, flush=True)
    print((await session.result()).status, flush=True)

asyncio.run(main())
"""


async def test_p8_p2_a_waiter_whose_process_restarts_misses_nothing(rig: Rig, tmp_path: Path) -> None:
    async with rig.worker():
        session = await rig.open(session_id="p8-restart", event_types=DONE)
        assert session.generation is not None
        env = environment(rig, rig.client.temporal.service_client.config.target_host, PYTHONPATH=str(Path.cwd()))
        arguments = ("-c", WAITER, session.generation, "0")
        async with process(arguments, env, tmp_path / "waiter.log") as waiter:
            assert await line(waiter) == "waiting"
            waiter.kill()
            await waiter.wait()
        await session.submit(call("c1"), done(1), call("c2"))
        async with process(arguments, env, tmp_path / "waiter.log") as waiter:
            assert await line(waiter) == "waiting"
            assert await line(waiter) == "2"
            await session.close()
            assert await line(waiter) == "closed"


# -- P10 ------------------------------------------------------------------------------------------------


async def test_p10_watchers_that_drop_half_block_or_fail_slow_nothing_and_events_has_it_all(running: Rig) -> None:
    session = await running.open(session_id="p10")
    process, first = running.client.process("p10"), Cursor(session.generation or "", 0)
    dropping, seen = list[SessionEvent](), list[SessionEvent]()
    blocked, unblock = asyncio.Event(), asyncio.Event()

    async def drop_half() -> None:
        async for event in process.watch(Cursor(first.generation, -1)):
            if event.sequence % 2 == 0:
                dropping.append(event)

    async def block() -> None:
        async for event in process.watch(first):
            seen.append(event)
            blocked.set()
            await unblock.wait()

    async def fail() -> None:
        async for _ in process.watch(first):
            raise OSError("a sink that is full")

    async with asyncio.TaskGroup() as watchers:
        watchers.create_task(drop_half())
        blocking = watchers.create_task(block())
        failing = asyncio.ensure_future(fail())
        await eventually(_answer(dropping), lambda events: len(events) == 1)
        await session.submit(call("c0"))
        async with asyncio.timeout(30):
            await blocked.wait()
            with pytest.raises(OSError, match="a sink that is full"):
                await failing
        # One is blocked, one has failed: what is reported is journaled all the same, and waits for nobody.
        for number in range(4):
            await session.submit(*(call(f"c{number}-{place}") for place in range(50)))
        assert (await session.view()).event_count == 202
        assert not blocking.done()
        unblock.set()
        closed = await session.close()
    # In order, none twice, nothing of the end; what each has missed is in the log.
    log = {event.cursor: event async for event in session.events()}
    assert len(log) == closed.event_count + 2
    for events in (dropping, seen):
        cursors = [event.cursor for event in events]
        assert cursors == sorted(set(cursors))
        assert all(log[event.cursor] == event for event in events)
        assert {"receipt", "closed"}.isdisjoint(event.action for event in events)
    # The blocked one missed what the session had forgotten by then: 202 events, of which it remembers 128.
    assert seen[0].sequence == 1
    assert len(seen) < 201
    assert seen[-1].sequence == 201


async def test_p10_a_feed_without_a_cursor_begins_now(running: Rig) -> None:
    session = await running.open(session_id="p10-now")
    await session.submit(call("c1"), call("c2"))
    feed = session.watch()
    coming = asyncio.ensure_future(anext(feed))
    # It begins where it first asks: whatever is reported after that comes, and nothing of before.
    while not coming.done():
        await session.submit(call("c3"))
        await asyncio.sleep(0.1)
    assert (await coming).sequence >= 3
    await session.close()


def _answer(value: list[SessionEvent]):  # type: ignore[no-untyped-def]
    async def answer() -> list[SessionEvent]:
        return value

    return answer
