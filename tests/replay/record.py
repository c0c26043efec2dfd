"""Runs whole sessions on a dev server and saves their histories: `python -m tests.replay.record`.

Record anew after a change that replays of older histories do not survive, and only then: until a session recorded
before it has ended, a worker with the change cannot go on with it. The old files show that a change is safe.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowFailureError

from affidavit.client import SessionHandle
from affidavit.contract import SIGNAL_RECORD, Agent, BreakerConfig, Limits
from affidavit.errors import AffidavitError
from affidavit.grants import GRANT_BOOK_ID
from affidavit.registering import register
from tests.replay import paths
from tests.support.halves import bus_of, journaling, signing, store_of, until
from tests.support.rig import AGENT, Rig, signal_text
from tests.support.taps import LIMIT_S, Outage, TapBus, TapStore
from tests.support.waiting import eventually
from workers.devserver import DevServer

HISTORIES: Final = Path(__file__).with_name("histories")
RUN_EVENTS: Final = 60
"""Where the server that records `rolled_over` suggests a new run."""

REQUEST = {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}], "attempt_id": "a1"}
RESPONSE = {
    "kind": "model_response",
    "text": "I will look into the haystack.",
    "tool_calls": [{"call_id": "c1", "name": "search", "arguments": {"q": "needle"}}],
    "finish_reason": "tool_calls",
    "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 2, "cost_usd": 0.25},
    "attempt_id": "a1",
}
CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}}
BLOCKED = {"kind": "tool_call", "call_id": "c2", "tool": "rm", "allowed": False, "stage": "policy", "reason": "no"}
RESULT = {"kind": "tool_result", "call_id": "c1", "content": {"found": 1}, "ttl_remaining_s": 300}
FAILURE = {"kind": "model_failure", "reason": "timeout", "status": 504, "claimed_time": "2020-01-01T00:00:00Z"}
NUMBERED = {**CALL, "producer": "tools"}
SAME = {"kind": "model_response", "text": "Let me try that again.", "usage": {"prompt_tokens": 600}}


async def every_kind(rig: Rig, session_id: str = "recorded-every-kind") -> SessionHandle:
    """Steps and messages of every kind, repeats, a gap, a trip and its reset, identities, every update; closed."""
    session = await rig.open(session_id=session_id)
    workflow = rig.client.temporal.get_workflow_handle(session.session_id)
    await session.admit("a1")
    await session.record(REQUEST, RESPONSE, CALL)
    await session.view()  # they are sent before what goes past the handle
    await workflow.signal(SIGNAL_RECORD, signal_text("no json"))
    await workflow.signal(SIGNAL_RECORD, args=[1, 2])
    await workflow.signal("unheard-of", "x")
    await workflow.signal("tool_call", BLOCKED)
    await session.flush()
    await session.submit(RESULT, FAILURE)
    await session.submit({**NUMBERED, "producer_seq": 1}, {**NUMBERED, "producer_seq": 3})
    await session.submit({**NUMBERED, "producer_seq": 1})
    with suppress(AffidavitError):
        await session.submit({**NUMBERED, "producer_seq": 1, "tool": "another"})
    await session.refresh_identity(AGENT.model_copy(update={"ttl_remaining_s": 900}))
    with suppress(AffidavitError):
        await session.refresh_identity(Agent(version="1", charter="triage", instance_uid="another"))
    for _ in range(6):
        await session.record(SAME)
    assert (await session.submit(SAME)).breaker_open
    await asyncio.sleep(1.1)  # refusals less than a second apart are told at close, and order is compared
    with suppress(AffidavitError):
        await session.admit("a2")
    await session.reset_breaker(by="operator", reason="it was no loop")
    await session.admit("a2")
    await session.record({**FAILURE, "attempt_id": "a2"})
    with suppress(AffidavitError):
        await rig.open(session_id=session.session_id, mode="unsigned")
    await rig.open(session_id=session.session_id)
    await session.view()
    await session.record(*({**CALL, "call_id": f"many-{number}"} for number in range(70)))
    outcome = await session.close()
    assert (outcome.status, outcome.rejected, outcome.repeated) == ("closed", 3, 1)
    return session


async def cancelled(rig: Rig) -> SessionHandle:
    """Cancelled with work under way."""
    session = await rig.open(session_id="recorded-cancelled")
    await session.record(REQUEST, RESPONSE, CALL)
    await session.cancel()
    assert (await session.result()).status == "cancelled"
    return session


async def empty(rig: Rig) -> SessionHandle:
    """Closed with no steps."""
    session = await rig.open(session_id="recorded-empty")
    await session.close()
    return session


async def retried(rig: Rig) -> SessionHandle:
    """Store, bus and embedder fail for a while; publishing and journaling are retried beside each other."""
    outage = Outage(lambda: OSError(5, "Input/output error"))
    down = TapStore(store_of(rig), before=lambda name: outage.strike() if "journal/" in name else None)
    async with rig.worker(store=down, bus=TapBus(bus_of(rig), after=lambda _: outage.strike())):
        opening = asyncio.create_task(rig.open(session_id="recorded-retried"))
        await outage.met_times(2)
        outage.end()
        session = await opening
        await session.record(CALL, RESPONSE)
        await session.close()
    return session


async def quarantined(rig: Rig) -> SessionHandle:
    """Its journal is spoilt while it runs; steps after that are counted."""
    session = await rig.open(session_id="recorded-quarantined")
    (rig.folder(session.session_id) / "journal/000000000001.ndjson").write_bytes(b"spoilt\n")
    await session.record(CALL)
    await session.flush()
    await session.record(CALL)
    assert (await session.close()).status == "quarantined"
    return session


async def abandoned(rig: Rig) -> SessionHandle:
    """Custom events of every fate, waits, a reference; its owner is said to be gone, and is heard of once more."""
    session = await rig.open(
        session_id="recorded-abandoned", limits=Limits(owner_lapse_s=1), event_types={"paid": {"required": ["cents"]}}
    )
    good, bad = ({"kind": "event", "type": "paid", "payload": payload} for payload in ({"cents": 1}, {}))
    await session.set_wait(kind="approval", name="manager")
    await session.submit(CALL, good)
    with suppress(AffidavitError):
        await session.submit(bad)
    await session.record(good, bad, SAME, {**good, "type": "refund"})
    await session.clear_wait()
    await session.set_external_ref("ticket-7")
    await session.admit("a2")
    await session.request_abandon(by="operator", reason="gone")
    await session.submit(CALL)
    assert (await session.result()).status == "abandoned"
    return session


async def rolled_over(rig: Rig) -> SessionHandle:
    """Handed on three times: at rest, with a batch that is not journaled and messages unread, and while it seals."""
    full: list[bool] = []
    outage = Outage(lambda: OSError(28, "No space left on device"))
    store = TapStore(store_of(rig), before=lambda _: outage.strike() if full else None)

    async def in_run(number: int) -> None:
        await eventually(session.view, lambda view: view.runs >= number, within=LIMIT_S)

    async with journaling(rig, store=store):
        session = await rig.open(session_id="recorded-rolled-over")
        workflow = rig.client.temporal.get_workflow_handle(session.session_id)
        await session.admit("a1")
        await session.record(REQUEST, RESPONSE, {**NUMBERED, "producer_seq": 1})
        while (await session.view()).runs < 2:
            await session.submit(CALL)
        full.append(True)
        await workflow.signal("tool_call", BLOCKED)
        await outage.met_times(1)
        for number in range(RUN_EVENTS):
            await workflow.signal("tool_call", {**NUMBERED, "producer_seq": 3 + number})
        await in_run(3)
        outage.end()
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        for _ in range(RUN_EVENTS):
            await workflow.signal("tool_call", BLOCKED)
        await in_run(4)
        async with signing(rig):
            outcome = await closing
    assert (outcome.status, outcome.late_steps) == ("closed", RUN_EVENTS)
    return session


async def shown(rig: Rig) -> SessionHandle:
    """Its search attributes change with a trip, a reset and the close, and its memo with the end."""
    session = await rig.open(session_id="recorded-shown", breaker=BreakerConfig(window=2, min_tokens=0))
    for _ in range(3):
        await session.submit(SAME)
    assert (await session.view()).breaker_open
    await session.reset_breaker(by="operator", reason="it was no loop")
    await session.close()
    return session


async def bad_start(rig: Rig) -> SessionHandle:
    """A start argument that cannot be read."""
    handle = await rig.client.temporal.start_workflow(
        "AgentSession", "no spec", id="recorded-bad-start", task_queue=rig.settings.task_queue
    )
    with suppress(WorkflowFailureError):
        await handle.result()
    return rig.client.handle("recorded-bad-start")


async def waking(rig: Rig) -> SessionHandle:
    """Wakes a session that runs, with a repeat and an acknowledgement there, and one that does not."""
    woken = await rig.open(session_id="recorded-woken")
    session = await rig.open(session_id="recorded-waking", wake_target=woken.session_id)
    await session.wake({"n": 1})
    await session.wake({"n": 2}, "nobody")
    found = await eventually(woken.wakes_after, lambda answer: len(answer.wakes) == 1, within=LIMIT_S)
    (note,) = found.wakes
    again = {"kind": "wake", "input": {"n": 1}, "wake_id": note.wake_id, "source": note.source.model_dump()}
    await rig.client.temporal.get_workflow_handle(woken.session_id).signal("woken", again)
    await woken.ack_wake(note.sequence)
    assert (await session.close()).steps == 2
    assert (await woken.close()).repeated == 1
    await save(rig, "woken", woken)
    return session


async def granting(rig: Rig) -> None:
    """Every update of the grant book, and a hand-on."""
    book = rig.client.grants
    await book.grant("ann", "s1", "s2", descriptor="on call")
    await book.revoke("ann", "s2")
    with suppress(AffidavitError):
        await book.transfer("ann", "bob", "s2")
    await book.transfer("ann", "bob", "s1")
    await book.delete_holder("bob")
    handle = rig.client.temporal.get_workflow_handle(GRANT_BOOK_ID)
    first = (await handle.describe()).run_id
    while (await handle.describe()).run_id == first:
        await book.grant("eve", "s3")
    await book.list("eve")
    await save_run(rig, "granting_1", GRANT_BOOK_ID, first)
    await save_run(rig, "granting_2", GRANT_BOOK_ID, (await handle.describe()).run_id)


WITH_A_WORKER: Final[tuple[Callable[[Rig], Awaitable[SessionHandle]], ...]] = (
    every_kind,
    cancelled,
    empty,
    quarantined,
    shown,
    abandoned,
    bad_start,
    waking,
)


async def runs(rig: Rig, session_id: str) -> list[str]:
    """The run ids of a session, in order."""
    temporal = rig.client.temporal
    found = [(await temporal.get_workflow_handle(session_id).describe()).run_id]
    while True:
        history = await temporal.get_workflow_handle(session_id, run_id=found[0]).fetch_history()
        former = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not former:
            return found
        found.insert(0, former)


async def save(rig: Rig, name: str, session: SessionHandle) -> None:
    """Save each run of a session as a file, numbered if there are several, and what they hold by reference."""
    paths.keep_payloads(rig, session.session_id)
    ids = await runs(rig, session.session_id)
    for number, run_id in enumerate(ids, 1):
        await save_run(rig, name if len(ids) == 1 else f"{name}_{number}", session.session_id, run_id)


async def save_run(rig: Rig, name: str, session_id: str, run_id: str) -> None:
    history = await rig.client.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
    # Who and where the recorder was is nobody's business, and no part of a replay.
    text = re.sub(r'("identity": ")[^"]*', r"\1recorder", history.to_json())
    text = re.sub(r'("stackTrace": ")(?:[^"\\]|\\.)*', r"\1", text)
    document: dict[str, Any] = {"workflow_id": session_id, "history": json.loads(text)}
    (HISTORIES / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"{name}: {len(history.events)} events")


async def main() -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = await DevServer.start(log=Path(folder) / "server.log", headless=True)
        try:
            rig = await Rig.make(server.address, Path(folder) / "data")
            await register(rig.client.temporal)
            async with rig.worker():
                for scene in (*WITH_A_WORKER, *paths.WITH_A_WORKER):
                    await save(rig, scene.__name__, await scene(rig))
            for scene in (retried, *paths.WITHOUT):
                await save(rig, scene.__name__, await scene(rig))
        finally:
            await server.stop()
        suggestion = {"limit.historyCount.suggestContinueAsNew": str(RUN_EVENTS)}
        server = await DevServer.start(log=Path(folder) / "server.log", headless=True, dynamic_config=suggestion)
        try:
            rig = await Rig.make(server.address, Path(folder) / "rolled-over")
            await register(rig.client.temporal)
            await save(rig, rolled_over.__name__, await rolled_over(rig))
            async with rig.worker():
                await granting(rig)
        finally:
            await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
