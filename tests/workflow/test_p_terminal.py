"""P1-P5: an id is one session, it ends once, and everybody is told the same end, with no worker left to ask."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, RetryConfig, WorkflowExecutionStatus

from affidavit.client import Cursor, SessionClient
from affidavit.contract import Limits, SessionOutcome
from affidavit.converter import data_converter
from affidavit.errors import AffidavitUnavailable, SessionNotFound, SessionRefused
from tests.support.bare import Bare, call, said
from tests.support.commands import command
from tests.support.foreign import failure
from tests.support.halves import journaling, signing, store_of, until
from tests.support.proxy import proxied
from tests.support.rig import Rig, actions
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workflows.inbox import Inbox

# -- P1 -------------------------------------------------------------------------------------------------


async def test_p1_an_equal_open_returns_the_session_and_a_conflict_leaves_it_untouched(running: Rig) -> None:
    first = await running.open(session_id="p1", external_ref="ticket-1")
    await first.submit(call("c1"))
    again = await running.open(session_id="p1", external_ref="ticket-1")
    assert again.generation == first.generation
    before = await first.view()
    with pytest.raises(SessionRefused, match="registration conflict: external_ref"):
        await running.open(session_id="p1", external_ref="ticket-2")
    after = await first.view()
    assert (after.event_count, after.chain_head, after.external_ref) == (2, before.chain_head, "ticket-1")
    assert actions(running.journal("p1")) == ["opened", "tool_call"]
    await first.close()


# -- P2 -------------------------------------------------------------------------------------------------


async def test_p2_an_unknown_id_is_an_error_at_once(rig: Rig) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(SessionNotFound):
            await rig.client.await_terminal("nobody")
        with pytest.raises(SessionNotFound):
            await rig.client.terminal_state("nobody")
        with pytest.raises(SessionNotFound):
            await rig.client.process("nobody").recent_events()


async def test_p2_sixteen_waiters_race_the_end_and_all_are_told_the_same(rig: Rig) -> None:
    async with journaling(rig):
        session = await rig.open(session_id="p2-race")
        early = [asyncio.create_task(rig.client.await_terminal("p2-race")) for _ in range(8)]
        await session.submit(call("c1"))
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        async with signing(rig):
            late = []
            for _ in range(8):
                late.append(asyncio.create_task(rig.client.await_terminal("p2-race")))
                await asyncio.sleep(0)
            outcomes = await asyncio.gather(closing, *early, *late)
    assert len(outcomes) == 17
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0].status == "closed"


@pytest.mark.failed_tasks
async def test_p2_with_a_failing_workflow_task_the_command_says_that_a_worker_is_needed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("affidavit.cli.processes.ANSWER_LIMIT_S", 3.0)
    client = SessionClient(rig.client.temporal, task_queue=rig.settings.task_queue, admit_timeout=3)
    async with rig.worker():
        await rig.open(session_id="p2-failing")

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(Inbox, "put", fail)
        async with rig.worker():
            await Bare(rig, "p2-failing").step(call("c1"))
            async with asyncio.timeout(45):
                with pytest.raises(AffidavitUnavailable, match="worker"):
                    await client.terminal_state("p2-failing")
                nowhere = ("--data-dir", "nowhere")
                for arguments in (("wait", *nowhere), ("tail", *nowhere), ("cancel",)):
                    code, _, errors = await command(rig, monkeypatch, *arguments, "p2-failing")
                    assert (code, "worker" in errors) == (4, True), (arguments, errors)
    # And with none at all.
    async with asyncio.timeout(20):
        code, _, errors = await command(rig, monkeypatch, "wait", "p2-failing")
        assert (code, "worker" in errors) == (4, True), errors
    async with rig.worker():
        await rig.client.handle("p2-failing").cancel()  # which needs no answer
        assert (await rig.client.await_terminal("p2-failing")).status == "cancelled"


async def test_p2_an_error_of_the_engine_surfaces_whatever_the_store_has(running: Rig, server: DevServer) -> None:
    """The sealed outcome is for what Temporal has forgotten. That Temporal cannot be asked is no such word of its."""
    store, queue = store_of(running), running.settings.task_queue
    session = await running.open(session_id="p2-engine")
    async with proxied(server.address) as proxy:
        temporal = await Client.connect(
            proxy.address,
            data_converter=data_converter(store),
            retry_config=RetryConfig(max_retries=1, max_elapsed_time_millis=1),
        )
        client = SessionClient(temporal, task_queue=queue, retry_timeout=0.5, store=store)
        patient = SessionClient(temporal, task_queue=queue, store=store)
        proxy.closed = True
        proxy.cut()
        waiting = asyncio.create_task(patient.await_terminal("p2-engine"))
        closed = await session.close()
        sealed = json.loads((running.folder("p2-engine") / "outcome.json").read_text())["payload"]
        assert SessionOutcome.model_validate(sealed) == closed
        life = client.process("p2-engine", session.generation)
        for ask in (
            client.process("p2-engine").result,
            client.process("p2-engine").terminal_state,
            life.result,
            life.terminal_state,
            client.handle("p2-engine").result,
        ):
            with pytest.raises(AffidavitUnavailable, match="the Temporal server does not answer"):
                await ask()
        assert life.outcome is None
        assert not waiting.done()  # it sits the outage out, for as long as its client was told to
        proxy.closed = False
        assert await waiting == closed
        assert await client.await_terminal("p2-engine") == await client.terminal_state("p2-engine") == closed
    # A server that answers, with an error: it has no such namespace, and says so of everything in it.
    elsewhere = SessionClient(
        await Client.connect(server.address, namespace="p2-nowhere", data_converter=data_converter(store)),
        task_queue=queue,
        store=store,
    )
    for ask_for in (elsewhere.await_terminal, elsewhere.terminal_state):
        with pytest.raises(AffidavitUnavailable, match="namespace p2-nowhere is not found"):
            await ask_for("p2-engine")


# -- P3 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["terminated", "timed out"])
async def test_p3_terminated_and_timed_out_executions_read_as_abandoned(
    rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporal, session_id = rig.client.temporal, f"p3-{kind.replace(' ', '-')}"
    async with rig.worker():
        if kind == "terminated":
            await rig.open(session_id=session_id, mode="unsigned")
            await temporal.get_workflow_handle(session_id).terminate(reason="the wrong one")
        else:
            spec = {"agent": {"version": "1", "charter": "c", "instance_uid": "i"}, "mode": "unsigned"}
            await temporal.start_workflow(
                "AgentSession",
                spec,
                id=session_id,
                task_queue=rig.settings.task_queue,
                execution_timeout=timedelta(seconds=2),
            )
    outcomes = await asyncio.gather(*(rig.client.await_terminal(session_id) for _ in range(3)))
    described = await temporal.get_workflow_handle(session_id).describe()
    expected = {"terminated": WorkflowExecutionStatus.TERMINATED, "timed out": WorkflowExecutionStatus.TIMED_OUT}
    assert described.status is expected[kind]
    assert outcomes[0] == outcomes[1] == outcomes[2] == await rig.client.terminal_state(session_id)
    outcome = outcomes[0]
    assert (outcome.status, outcome.mode, outcome.receipt_id) == ("abandoned", "unsigned", None)
    assert outcome.generation == described.raw_description.workflow_execution_info.first_run_id
    assert outcome.abandonment is not None
    assert outcome.abandonment.why == {"terminated": "the wrong one", "timed out": "the execution timed out"}[kind]
    assert described.close_time is not None
    assert abs(outcome.abandonment.at - described.close_time.timestamp() * 1000) < 2
    if kind == "terminated":
        assert outcome.abandonment.by != ""
        code, out, errors = await command(rig, monkeypatch, "wait", session_id)
        assert (code, "ended abandoned: the wrong one" in errors) == (1, True)
        assert "stop reason" not in out


async def test_p3_each_terminal_kind_and_what_it_says(running: Rig) -> None:
    ended: dict[str, SessionOutcome] = {}
    session = await running.open()
    ended["closed"] = await session.close()
    session = await running.open()
    await session.request_cancel("enough")
    ended["cancelled"] = await session.result()
    session = await running.open()
    await Bare(running, session.session_id).record(said("who asked?", attempt_id="nobody"))
    ended["quarantined"] = await session.close()
    quarantined = running.client.temporal.get_workflow_handle(session.session_id)
    session = await running.open(limits=Limits(owner_lapse_s=1))
    await session.request_abandon(by="operator", reason="its host is gone")
    ended["abandoned"] = await session.result()
    assert {status: outcome.status for status, outcome in ended.items()} == {status: status for status in ended}
    assert [outcome.reason for outcome in ended.values()] == [
        None,
        "enough",
        "attempt nobody ends without an opening",
        "its host is gone",
    ]
    error = await failure(quarantined)
    assert (error.type, error.message) == (
        "SessionQuarantined",
        "session quarantined: attempt nobody ends without an opening",
    )


async def test_p3_p8_p10_nobody_waits_for_events_of_an_execution_that_is_over(rig: Rig) -> None:
    stranger = SessionClient(rig.client.temporal, task_queue=rig.settings.task_queue, admit_timeout=2)
    async with rig.worker():
        session = await rig.open(session_id="p3-over")

        async def watched() -> list[int]:
            return [event.sequence async for event in session.watch(Cursor(session.generation or "", -1))]

        waiting = [asyncio.create_task(session.await_event("closed")), asyncio.create_task(watched())]
        await session.submit(call("c1"))
        await rig.client.temporal.get_workflow_handle("p3-over").terminate(reason="gone")
        async with asyncio.timeout(60):
            assert await asyncio.gather(*waiting) == [None, [0, 1]]
    # Without a worker the store tells at once what was journaled; without both it is said that nobody can.
    assert [event.action async for event in session.events()] == ["opened", "tool_call"]
    async with asyncio.timeout(60):
        with pytest.raises(AffidavitUnavailable, match="worker"):
            await stranger.process("p3-over").await_event("closed")


# -- P4 -------------------------------------------------------------------------------------------------


async def test_p4_terminal_is_immutable(running: Rig) -> None:
    session = await running.open(session_id="p4")
    await session.submit(call("c1"))
    closed = await session.close()
    assert await session.close() == closed
    assert await running.client.handle("p4").close() == closed
    for change in (
        session.request_cancel("late"),
        session.request_abandon(by="me", reason="late"),
        session.set_external_ref("late"),
        session.set_wait(kind="k", name="n"),
    ):
        with pytest.raises((SessionNotFound, SessionRefused)):
            await change
    assert await running.client.await_terminal("p4") == closed
    sealed = json.loads((running.folder("p4") / "outcome.json").read_text())["payload"]
    assert SessionOutcome.model_validate(sealed) == closed


# -- P5 -------------------------------------------------------------------------------------------------


async def test_p5_the_terminal_state_is_in_query_result_and_memo(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.worker():
        session = await rig.open(session_id="p5")
        assert await rig.client.terminal_state("p5") is None
        await session.submit(call("c1"))
        closed = await session.close()
        queried = await rig.client.temporal.get_workflow_handle("p5").query("terminal_state")
        assert SessionOutcome.model_validate(queried["outcome"]) == closed
    described = await rig.client.temporal.get_workflow_handle("p5").describe()
    memo = (await described.memo())["AffidavitOutcome"]
    assert SessionOutcome.model_validate(memo) == closed.model_copy(update={"receipt": None})
    assert memo["receipt_id"] == closed.receipt_id

    async def listed() -> list[dict[str, Any]]:
        code, out, errors = await command(rig, monkeypatch, "list", "--json", "--limit", "1000")
        assert code == 0, errors
        return [row for row in json.loads(out) if row["run_id"] == described.run_id]

    (row,) = await eventually(listed, lambda rows: [each["state"] for each in rows] == ["closed"])
    assert row["session_id"] == "p5"
