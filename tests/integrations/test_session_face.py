"""The public face: blocks, keys, tools, redaction, callbacks, and the client for threads."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from affidavit.client import SessionClient, SessionHandle
from affidavit.errors import InvalidStep, SessionNotFound, SessionRefused, ToolBlocked
from affidavit.granting import Grants
from affidavit.ids import session_id_for
from affidavit.sync import SyncGrants, SyncSession, SyncSessionClient
from tests.support.agents import recorded
from tests.support.grants import book as book
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions
from tests.support.transport import call
from workers.devserver import DevServer

SAME = {"record", "submit", "flush", "admit", "refresh_identity", "reset_breaker", "close", "cancel", "result"}
SAME |= {"receipt", "promote", "view", "terminal_state", "tool", "reporter"}
SAME |= {"recent_events", "count_events", "await_event", "events", "watch", "request_cancel", "request_abandon"}
SAME |= {"set_external_ref", "set_wait", "clear_wait", "wake", "wakes_after", "ack_wake", "trajectory_ref"}
WAITING = {"result", "await_event"}


# -- blocks -----------------------------------------------------------------------------------------------


async def test_f5_leaving_a_block_closes_and_an_error_cancels(running: Rig) -> None:
    async with running.client.session({"agent": AGENT}) as left:
        await left.record({"kind": "model_response", "text": "a", "finish_reason": "end_turn"})
    assert (left.outcome.status, left.outcome.stop_reason_id, left.outcome.stop_reason) == ("closed", 1, "Stop")
    broken = await running.open()

    async def work() -> None:
        async with broken:
            await broken.record({"kind": "model_response", "text": "a", "finish_reason": "end_turn"})
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        await work()
    assert (broken.outcome.status, broken.outcome.stop_reason_id) == ("cancelled", 99)


async def test_f5_a_refusal_that_ends_a_block_is_its_reason(running: Rig) -> None:
    other = AGENT.model_copy(update={"version": "2"})
    session = await running.open()

    async def work() -> None:
        async with session:
            try:
                await session.admit(agent=other)
            except SessionRefused as refused:
                raise LookupError("a framework's own error") from refused

    with pytest.raises(LookupError):
        await work()
    assert (session.outcome.status, session.outcome.stop_reason_id) == ("closed", 94)
    attested(running, session.outcome)


async def test_d4_an_abort_ends_with_its_own_reason(running: Rig) -> None:
    session = await running.open(breaker={"min_tokens": 0, "action": "abort"})

    async def work() -> None:
        async with session:
            for _ in range(6):
                await session.submit({"kind": "model_response", "text": "I look"})

    with pytest.raises((SessionRefused, SessionNotFound)):
        await work()
    assert (session.outcome.status, session.outcome.stop_reason_id) == ("closed", 91)


async def test_a1_a_key_is_always_the_same_session(running: Rig) -> None:
    # uuid -v5 6f0d1a7e-6b1f-5d0c-9a4e-3f6c2b7d8e91 ticket-17
    assert session_id_for("ticket-17") == "b028db9b-b5cf-54a7-8a7d-573f1f3aa85d"
    async with running.client.session({"agent": AGENT}, key="ticket-18") as one:
        other = await running.client.open({"agent": AGENT}, key="ticket-18")
        assert other.generation == one.generation
    with pytest.raises(SessionRefused, match="an id or a key"):
        await running.client.open({"agent": AGENT}, key="a", session_id="b")
    with pytest.raises(ValueError, match="empty"):
        session_id_for("")


# -- reporting --------------------------------------------------------------------------------------------


async def test_what_is_redacted_never_leaves_the_process(running: Rig) -> None:
    def redact(step: dict[str, Any]) -> dict[str, Any]:
        if "arguments" in step:
            step["arguments"]["card"] = "[redacted]"
        return step

    given = call("c1", arguments={"card": "secret card 1"})
    async with running.client.session({"agent": AGENT, "content": "full"}, redact=redact) as session:
        await session.record(given)
        await session.submit(call("c2", arguments={"card": "secret card 2"}))
        session.post(call("c3", arguments={"card": "secret card 3"}))
    assert given["arguments"] == {"card": "secret card 1"}
    events = attested(running, session.outcome)
    assert [event["payload"]["arguments"] for event in events[1:]] == [{"card": "[redacted]"}] * 3
    history = await running.client.temporal.get_workflow_handle(session.session_id).fetch_history()
    assert b"secret card" not in b"".join(event.SerializeToString() for event in history.events)


async def test_b1_posted_and_recorded_steps_keep_the_order_of_their_calls(running: Rig) -> None:
    async with running.client.session({"agent": AGENT}) as session:
        submitting = asyncio.create_task(session.submit(call("c0")))
        await asyncio.sleep(0)
        session.post(call("c1"))  # behind the submission, which has the turn
        session.post(call("c2"))
        await session.record(call("c3"))
        await submitting
        session.post(call("c4"))
        assert (await session.flush()).event_count == 6
        with pytest.raises(InvalidStep):
            session.post({"kind": "nonsense"})
    events = attested(running, session.outcome)
    assert [event["payload"]["call_id"] for event in events[1:]] == ["c0", "c1", "c2", "c3", "c4"]


# -- tools ------------------------------------------------------------------------------------------------


async def test_a_tool_reports_verdict_arguments_result_and_failure(running: Rig) -> None:
    async with running.client.session({"agent": AGENT}) as session:

        @session.tool
        async def look(q: int, *, deep: bool = False) -> dict[str, int]:
            """Look."""
            return {"seen": q}

        @session.tool(name="refund", policy=lambda arguments: "too much" if arguments["amount"] > 100 else None)
        def pay(amount: int) -> str:
            if amount < 0:
                raise ValueError("negative")
            return "paid"

        assert inspect.iscoroutinefunction(look)
        assert (look.__name__, look.__doc__) == ("look", "Look.")
        assert await look(1, deep=True) == {"seen": 1}
        assert await look.call("m1", '{"q": 2}') == {"seen": 2}
        assert pay(5) == "paid"
        with pytest.raises(ValueError, match="negative"):
            pay(-1)
        for call_id, arguments in (("m2", '{"amount": 500}'), ("m3", "{"), ("m4", '{"wrong": 1}')):
            with pytest.raises(ToolBlocked):
                pay.call(call_id, arguments)
    events = attested(running, session.outcome)
    calls = [event["payload"] for event in events if event["payload"]["action"] == "tool_call"]
    assert [each["allowed"] for each in calls] == [True, True, True, True, False, False, False]
    assert [each.get("stage") for each in calls[4:]] == ["policy", "parse", "schema"]
    assert calls[4]["reason"] == "too much"
    captures = recorded(running, session.session_id, "tool_call")
    assert captures[0]["arguments"] == {"q": 1, "deep": True}
    assert (captures[2]["tool"], captures[2]["arguments"]) == ("refund", {"amount": 5})
    results = recorded(running, session.session_id, "tool_result")
    assert [(each["ok"], each["content"]) for each in results] == [
        (True, {"seen": 1}),
        (True, {"seen": 2}),
        (True, "paid"),
        (False, {"error": "ValueError", "message": "negative"}),
    ]
    totals = session.outcome.totals
    assert (totals.tool_calls, totals.tool_allowed, totals.tool_blocked) == (7, 4, 3)


async def test_a_result_that_no_json_can_hold_is_reported_all_the_same(running: Rig) -> None:
    async with running.client.session({"agent": AGENT}) as session:

        @session.tool
        def odd(kind: str) -> Any:
            return {"object": object, "big": "x" * 17_000_000, "bytes": b"\xff", "set": {1}}[kind]

        for kind in ("object", "big", "bytes", "set"):
            odd(kind)
    results = recorded(running, session.session_id, "tool_result")
    assert results[0]["content"] == "<class 'object'>"
    assert results[1]["content"].startswith("not reported: step 0: the message has 17000")
    assert results[2]["content"] == "_w=="
    assert results[3]["content"] == [1]


# -- threads ----------------------------------------------------------------------------------------------


async def test_the_sync_client_does_the_same(running: Rig, sync_client: SyncSessionClient) -> None:
    def work() -> SyncSession:
        with sync_client.session({"agent": AGENT}, key="ticket-19") as session:
            session.record(call("c1"))
            assert session.submit(call("c2")).last_sequence == 2
            assert session.admit("a1").attempt_id == "a1"
            session.record({"kind": "model_request", "messages": [], "attempt_id": "a1"})
            session.record({"kind": "model_response", "text": "a", "attempt_id": "a1"})
            assert session.flush().event_count == 5
            assert session.view().state == "open"
            assert session.terminal_state() is None
        return session

    session = await asyncio.to_thread(work)
    attested(running, session.outcome)
    assert (await asyncio.to_thread(session.receipt))["session_id"] == session_id_for("ticket-19")


async def test_a_sync_block_that_raises_cancels(sync_client: SyncSessionClient) -> None:
    def work() -> Any:
        with pytest.raises(ZeroDivisionError), sync_client.session({"agent": AGENT}) as session:
            _ = 1 // 0
        return session.outcome

    outcome = await asyncio.to_thread(work)
    assert (outcome.status, outcome.stop_reason_id) == ("cancelled", 99)


async def test_many_threads_share_a_sync_session(running: Rig, sync_session: SyncSession) -> None:
    gate = threading.Barrier(8)

    def report(thread: int) -> None:
        gate.wait()
        for number in range(25):
            sync_session.record(call(f"{thread}-{number}"))

    def all_report() -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(report, range(8)))

    await asyncio.to_thread(all_report)
    events = attested(running, await asyncio.to_thread(sync_session.close))
    names = [event["payload"]["call_id"] for event in events if event["payload"]["action"] == "tool_call"]
    assert len(names) == 200
    for thread in range(8):
        mine = [name for name in names if name.startswith(f"{thread}-")]
        assert mine == [f"{thread}-{number}" for number in range(25)]


async def test_a_closed_sync_client_says_so_and_leaves_no_thread(running: Rig, server: DevServer) -> None:
    queue = running.settings.task_queue
    client = await asyncio.to_thread(SyncSessionClient.connect, address=server.address, task_queue=queue)
    threads = [thread for thread in threading.enumerate() if thread.name == "affidavit"]
    await asyncio.to_thread(client.close)
    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(RuntimeError, match="closed"):
        client.open({"agent": AGENT})
    client.close()


async def test_a_program_that_never_closes_its_client_ends_cleanly(running: Rig, server: DevServer) -> None:
    code = (
        "from affidavit.sync import SyncSessionClient\n"
        f"client = SyncSessionClient.connect(address={server.address!r}, task_queue={running.settings.task_queue!r})\n"
        f"session = client.open({{'agent': {AGENT.model_dump(exclude_none=True)!r}}})\n"
        "print(session.close().status)\n"
    )
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(done.communicate(), 60)
    assert (done.returncode, out, err) == (0, b"closed\n", b"")


def test_the_sync_session_has_what_the_asynchronous_one_has() -> None:
    public = {name for name in dir(SyncSession) if not name.startswith("_")}
    assert public >= SAME
    for name in SAME - {"tool", "reporter", "admit"}:
        _same(SyncSession, SessionHandle, name, bounded=name in WAITING)


def test_the_sync_client_has_what_the_asynchronous_one_has() -> None:
    for name in ("open", "session", "handle", "process", "promote", "terminal_state", "await_terminal"):
        _same(SyncSessionClient, SessionClient, name, bounded=name == "await_terminal")
    for name in ("grant", "revoke", "transfer", "delete_holder", "list", "holders", "holds", "check", "deleted"):
        _same(SyncGrants, Grants, name)


def _same(ours: type, theirs: type, name: str, *, bounded: bool = False) -> None:
    """The same arguments; whoever waits in a thread may bound the wait."""
    mine = dict(inspect.signature(getattr(ours, name)).parameters)
    assert (mine.pop("timeout", None) is not None) is bounded, name
    assert mine == dict(inspect.signature(getattr(theirs, name)).parameters), name


async def test_p_a_thread_follows_controls_and_awaits_a_session(
    running: Rig, sync_client: SyncSessionClient, sync_session: SyncSession
) -> None:
    def work() -> None:
        other = sync_client.process(sync_session.session_id)
        sync_session.set_wait(kind="approval", name="manager")
        assert sync_session.view().waiting is not None
        sync_session.clear_wait()
        assert other.set_external_ref("ticket-17") == "ticket-17"
        assert [event.action for event in other.events()] == ["opened", "waiting", "resumed"]
        assert [event.action for event in other.events(action="waiting")] == ["waiting"]
        assert (other.count_events("waiting"), other.recent_events(1)[0].action) == (1, "resumed")
        feed = other.watch(other.recent_events(2)[0].cursor)
        assert next(feed).action == "resumed"
        feed.close()
        assert other.terminal_state() is None
        with pytest.raises(TimeoutError):
            other.await_event("cancel_requested", timeout=0.2)
        with pytest.raises(TimeoutError):
            sync_client.await_terminal(sync_session.session_id, timeout=0.2)
        assert other.request_cancel("enough").reason == "enough"
        event = other.await_event("cancel_requested", timeout=60)
        assert event is not None
        assert sync_client.await_terminal(sync_session.session_id, timeout=60).status == "cancelled"
        assert other.result().reason == "enough"

    await asyncio.to_thread(work)


async def test_p18_a_thread_wakes_a_session_and_acknowledges(running: Rig, sync_client: SyncSessionClient) -> None:
    def work() -> None:
        with sync_client.session({"agent": AGENT}) as woken, sync_client.session({"agent": AGENT}) as waking:
            waking.wake({"say": "go on"}, woken.session_id)
            event = woken.await_event("wake", timeout=60)
            assert event is not None
            (note,) = woken.wakes_after().wakes
            assert (note.input, note.sequence) == ({"say": "go on"}, event.sequence)
            woken.ack_wake(note.sequence)
            woken.flush()
            assert woken.wakes_after().wakes == []

    await asyncio.to_thread(work)


async def test_p15_a_thread_grants_and_revokes(running: Rig, book: str, sync_client: SyncSessionClient) -> None:
    def work() -> None:
        grants = sync_client.grants
        assert grants.grant("holder-t", "s-1", "s-2", descriptor="both") == 2
        assert [grant.session_id for grant in grants.list("holder-t")] == ["s-1", "s-2"]
        assert (grants.holds("holder-t", "s-1"), grants.holds("holder-t", "s-3")) == (True, False)
        assert grants.transfer("holder-t", "holder-u", "s-1") == 1
        assert [grant.holder for grant in grants.holders("s-1")] == ["holder-u"]
        assert grants.revoke("holder-t", "s-2") == 1
        with pytest.raises(SessionRefused):
            grants.check("holder-t", "s-2")
        assert grants.delete_holder("holder-u").revoked == ["s-1"]
        assert grants.deleted("holder-u")

    await asyncio.to_thread(work)


async def test_an_asynchronous_tool_reports_to_a_session_for_threads(running: Rig, sync_session: SyncSession) -> None:
    @sync_session.tool
    async def look(q: int) -> int:
        return q

    assert await look(3) == 3
    outcome = await asyncio.to_thread(sync_session.close)
    assert actions(attested(running, outcome)) == ["opened", "tool_call", "tool_result"]
