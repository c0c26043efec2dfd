"""P11-P14: cancel, abandon, external reference and the wait facet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey

from affidavit.contract import Limits
from affidavit.errors import SessionRefused
from affidavit.evidence.schemas import load
from tests.support import proof
from tests.support.bare import Bare, call, failed, said
from tests.support.commands import command
from tests.support.foreign import failure
from tests.support.halves import journaling, signing, until
from tests.support.processes import environment, line, process
from tests.support.proof import chain_heads
from tests.support.rig import Rig, actions
from tests.support.waiting import eventually

# -- P11 ------------------------------------------------------------------------------------------------


async def test_p11_cancel_is_an_event_the_view_says_open_and_the_first_reason_wins(running: Rig) -> None:
    session = await running.open(session_id="p11")
    await session.admit("a1")
    first = await running.client.process("p11").request_cancel("the customer has left")
    second = await session.request_cancel("another reason")
    assert (first.reason, second) == ("the customer has left", first)
    view = await session.view()
    assert view.state == "open"
    assert view.cancel_requested == first
    # The terminal follows once the attempt has ended.
    await Bare(running, "p11").step(failed(attempt_id="a1"))
    outcome = await session.result()
    assert (outcome.status, outcome.reason, outcome.stop_reason) == ("cancelled", "the customer has left", "Other")
    events = running.journal("p11")
    assert actions(events) == ["opened", "cancel_requested", "model_failure"]
    assert events[1]["payload"] == {"action": "cancel_requested", "reason": "the customer has left"}
    assert outcome.receipt_id is not None


async def test_p11_temporals_own_cancel_does_the_same_without_a_reason(running: Rig) -> None:
    session = await running.open(session_id="p11-temporal")
    await session.admit("a1")
    await running.client.temporal.get_workflow_handle("p11-temporal").cancel()
    view = await eventually(session.view, lambda view: view.cancel_requested is not None)
    assert view.state == "open"
    assert (await session.request_cancel("too late")).reason is None
    await Bare(running, "p11-temporal").step(failed(attempt_id="a1"))
    outcome = await session.result()
    assert (outcome.status, outcome.reason) == ("cancelled", None)
    assert running.journal("p11-temporal")[1]["payload"] == {"action": "cancel_requested"}


async def test_p11_a_long_reason_is_cut_and_one_that_comes_after_the_chain_is_refused(rig: Rig) -> None:
    async with journaling(rig):
        session = await rig.open(session_id="p11-late")
        other = await rig.open(session_id="p11-long")
        await other.request_cancel("x" * 1000)
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        with pytest.raises(SessionRefused, match="session has ended") as refused:
            await session.request_cancel("late")
        assert refused.value.type == "SessionEnded"
        async with signing(rig):
            assert (await closing).status == "closed"
            assert (await other.result()).reason == "x" * 256
    assert rig.journal("p11-long")[1]["payload"]["reason"] == "x" * 256


# -- P12 ------------------------------------------------------------------------------------------------


async def test_p12_abandon_is_marked_while_silent_and_ends_it_after_the_lapse(running: Rig) -> None:
    session = await running.open(session_id="p12", limits=Limits(owner_lapse_s=6, idle_close_s=2))
    await session.submit(call("c1"))
    first = await running.client.process("p12").request_abandon(by="operator", reason="its host is gone")
    second = await session.request_abandon(by="somebody else", reason="me too")
    assert (first.by, second) == ("operator", first)
    # Longer than idle close, which would have ended it with a receipt as if all were well.
    await asyncio.sleep(2.3)
    view = await session.view()
    assert (view.state, view.abandon_requested) == ("open", first)
    outcome = await session.result()
    assert (outcome.status, outcome.reason, outcome.receipt) == ("abandoned", "its host is gone", None)
    evidence = outcome.abandonment
    assert evidence is not None
    assert (evidence.by, evidence.why, evidence.requested_at) == ("operator", "its host is gone", first.time)
    assert evidence.at - first.time >= 6000
    # Red in the Web UI, under a type of its own, with the outcome as details.
    handle = running.client.temporal.get_workflow_handle("p12")
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    error = await failure(handle)
    assert (error.type, error.message) == ("SessionAbandoned", "session abandoned: its host is gone")
    assert error.details[0]["abandonment"]["by"] == "operator"
    # The evidence so far stays, without a receipt; the last word is an event of its own.
    folder, events = running.folder("p12"), running.journal("p12")
    assert actions(events) == ["opened", "tool_call", "abandon_requested"]
    assert events[2]["payload"] == {"action": "abandon_requested", "by": "operator", "reason": "its host is gone"}
    (last,) = proof.lifecycle(folder)
    valid = Draft202012Validator(load("event"))
    assert [error.message for event in [*events, last] for error in valid.iter_errors(event)] == []
    assert (last["metadata"]["sequence"], last["status_id"], last["severity_id"]) == (3, 2, 1)
    assert last["payload"] == {
        "action": "abandoned",
        "reason": "its host is gone",
        "chain_head": chain_heads("p12", events)[-1],
        "event_count": 3,
    }
    assert not (folder / "receipt.json").exists()
    sealed = json.loads((folder / "outcome.json").read_text())["payload"]
    assert (sealed["status"], sealed["abandonment"]["at"]) == ("abandoned", evidence.at)
    assert actions(running.bus("p12"))[-1] == "abandoned"
    with pytest.raises(SessionRefused):
        await running.client.open({"agent": {"version": "1", "charter": "c", "instance_uid": "i"}}, session_id="p12")


async def test_p12_a_report_before_the_lapse_keeps_it_alive(running: Rig) -> None:
    session = await running.open(session_id="p12-alive", limits=Limits(owner_lapse_s=3))
    bare = Bare(running, "p12-alive")
    first = await session.request_abandon(by="operator", reason="no sign of it")
    for number in range(4):
        await asyncio.sleep(1)
        await bare.step(call(f"c{number}"))
    assert (await session.view()).state == "open"  # four seconds after the request
    outcome = await session.result()
    assert outcome.abandonment is not None
    # The lapse began anew with each report.
    last = running.journal("p12-alive")[-1]
    assert last["payload"]["call_id"] == "c3"
    assert outcome.abandonment.at - last["time"] >= 3000
    assert outcome.abandonment.at - first.time >= 6500


async def test_p12_time_alone_never_abandons_and_a_report_gives_idle_close_back(running: Rig) -> None:
    limits = Limits(owner_lapse_s=1, idle_close_s=2)
    silent = await running.open(limits=limits)
    back = await running.open(limits=Limits(owner_lapse_s=30, idle_close_s=3))
    await back.request_abandon(by="operator", reason="no sign of it")
    await back.submit(call("c1"))
    assert [(await session.result()).status for session in (silent, back)] == ["closed", "closed"]


async def test_p12_open_attempts_of_an_owner_that_is_gone_are_not_waited_for(running: Rig) -> None:
    session = await running.open(limits=Limits(owner_lapse_s=1, drain_timeout_s=60))
    await session.admit("a1")
    await session.request_abandon(by="operator", reason="gone")
    assert (await session.result()).status == "abandoned"


async def test_p12_it_is_refused_on_a_closing_session_and_hides_no_quarantine(running: Rig) -> None:
    closing = await running.open()
    await closing.admit("a1")
    await Bare(running, closing.session_id).update("close")
    assert await Bare(running, closing.session_id).refusal("request_abandon", {"by": "me", "reason": "x"}) == (
        "SessionClosing",
        "session is closing",
    )
    poisoned = await running.open(limits=Limits(owner_lapse_s=1))
    await Bare(running, poisoned.session_id).record(said("who asked?", attempt_id="nobody"))
    await poisoned.request_abandon(by="operator", reason="gone")
    outcome = await poisoned.result()
    assert (outcome.status, outcome.abandonment) == ("quarantined", None)
    await Bare(running, closing.session_id).step(failed(attempt_id="a1"))
    assert (await closing.result()).status == "closed"


async def test_p11_p12_the_commands(running: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = await running.open(session_id="p11-command")
    await one.submit(call("c1"))
    code, out, _ = await command(running, monkeypatch, "cancel", "p11-command", "--reason", "enough", "--json")
    assert (code, json.loads(out)["reason"]) == (0, "enough")
    code, out, _ = await command(running, monkeypatch, "wait", "p11-command", "--timeout", "30s", "--json")
    assert (code, json.loads(out)["status"]) == (0, "cancelled")
    await running.open(session_id="p12-command", limits=Limits(owner_lapse_s=8))
    env = environment(running, running.client.temporal.service_client.config.target_host)
    async with process(
        ("-m", "affidavit.cli", "tail", "p12-command", "--follow"), env, tmp_path / "tail.log"
    ) as follower:
        assert (await line(follower)).endswith("opened")
        code, out, _ = await command(
            running, monkeypatch, "abandon", "p12-command", "--by", "me", "--reason", "gone", "--json"
        )
        assert (code, json.loads(out)["by"]) == (0, "me")
        code, _, errors = await command(running, monkeypatch, "wait", "p12-command", "--timeout", "1s")
        assert (code, "has not ended within 1 s" in errors) == (1, True)
        code, _, errors = await command(running, monkeypatch, "wait", "p12-command", "--timeout", "30s")
        assert (code, "ended abandoned: gone" in errors) == (1, True)
        assert (await line(follower)).endswith("abandon_requested")
        assert await follower.wait() == 0
    code, out, _ = await command(running, monkeypatch, "tail", "p12-command")
    assert [row.split()[-1] for row in out.splitlines()] == ["opened", "abandon_requested", "abandoned"]


# -- P13 ------------------------------------------------------------------------------------------------


async def test_p13_external_ref_is_write_once(running: Rig) -> None:
    session = await running.open(session_id="p13")
    assert (await session.view()).external_ref is None
    assert await running.client.process("p13").set_external_ref("ticket-7") == "ticket-7"
    assert await session.set_external_ref("ticket-7") == "ticket-7"
    with pytest.raises(SessionRefused, match="has another external_ref already") as refused:
        await session.set_external_ref("ticket-8")
    assert refused.value.type == "ExternalRefConflict"
    assert (await session.view()).external_ref == "ticket-7"
    declared = await running.open(session_id="p13-declared", external_ref="ticket-9")
    assert await declared.set_external_ref("ticket-9") == "ticket-9"
    with pytest.raises(SessionRefused):
        await declared.set_external_ref("ticket-10")
    # No event of its own; when it first started is when its opening event was.
    view = await session.view()
    (opened,) = running.journal("p13")
    assert (opened["payload"]["action"], view.opened_at) == ("opened", opened["time"])
    await session.close()
    await declared.close()


# -- P14 ------------------------------------------------------------------------------------------------


async def test_p14_the_wait_facet_is_in_the_view_an_event_each_and_gone_at_terminal(rig: Rig) -> None:
    async with journaling(rig):
        session = await rig.open(session_id="p14")
        await session.set_wait(kind="approval", name="manager")
        await session.set_wait(kind="approval", name="manager")
        waiting = (await session.view()).waiting
        assert waiting is not None
        assert (waiting.kind, waiting.name) == ("approval", "manager")
        await session.clear_wait()
        assert (await session.view()).waiting is None
        await session.clear_wait()
        await session.set_wait(kind="timer", name="tomorrow")
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        assert (await session.view()).waiting is None
        with pytest.raises(SessionRefused, match="session is closing"):
            await session.set_wait(kind="approval", name="late")
        async with signing(rig):
            assert (await closing).status == "closed"
    events = rig.journal("p14")
    valid = Draft202012Validator(load("event"))
    assert [error.message for event in events for error in valid.iter_errors(event)] == []
    assert actions(events) == ["opened", "waiting", "resumed", "waiting"]
    assert events[1]["payload"] == {"action": "waiting", "kind": "approval", "name": "manager"}
    assert events[2]["payload"] == {"action": "resumed", "kind": "approval", "name": "manager"}
    assert waiting.since == events[1]["time"]


async def test_p14_the_wait_facet_as_a_search_attribute(running: Rig) -> None:
    session = await running.open(session_id="p14-found")
    temporal = running.client.temporal

    async def shown() -> str | None:
        described = await temporal.get_workflow_handle("p14-found").describe()
        return described.typed_search_attributes.get(SearchAttributeKey.for_keyword("AffidavitWaiting"))

    async def found(value: str) -> list[str]:
        return [each.id async for each in temporal.list_workflows(f'AffidavitWaiting = "{value}"')]

    assert await shown() is None
    await session.set_wait(kind="approval", name="p14-manager")
    await eventually(shown, lambda value: value == "approval: p14-manager")
    await eventually(lambda: found("approval: p14-manager"), lambda ids: ids == ["p14-found"])
    await session.set_wait(kind="timer", name="p14-tomorrow")
    await eventually(shown, lambda value: value == "timer: p14-tomorrow")
    await session.clear_wait()
    await eventually(shown, lambda value: value is None)
    await eventually(lambda: found("approval: p14-manager"), lambda ids: ids == [])
    # Gone at terminal, though nobody has cleared it.
    await session.set_wait(kind="approval", name="p14-late")
    await eventually(lambda: found("approval: p14-late"), lambda ids: ids == ["p14-found"])
    assert (await session.close()).status == "closed"
    assert await shown() is None
    await eventually(lambda: found("approval: p14-late"), lambda ids: ids == [])
