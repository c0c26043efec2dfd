"""H4, H5: many sessions at once, and one that is long: no sequence lost, doubled or crossed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from affidavit.client import SessionHandle
from affidavit.contract import SessionOutcome
from tests.support.halves import bus_of, store_of
from tests.support.oracle import attested
from tests.support.rig import Rig
from tests.support.taps import Outage, TapBus, TapStore
from workers.devserver import DevServer

OUTAGE_S = float(os.environ.get("AFFIDAVIT_TEST_OUTAGE_S", "60"))
STEPS = 20_000
LOWERED = 400
"""The server suggests continuing as new at 4 096 history events; lowered, the same session has more runs."""


@pytest_asyncio.fixture
async def lowered(tmp_path: Path) -> AsyncIterator[Rig]:
    config = {"limit.historyCount.suggestContinueAsNew": str(LOWERED)}
    server = await DevServer.start(log=tmp_path / "server.log", headless=True, dynamic_config=config)
    try:
        yield await Rig.make(server.address, tmp_path / "data")
    finally:
        await server.stop()


def call(session: int, number: int) -> dict[str, object]:
    return {"kind": "tool_call", "call_id": f"s{session}-c{number}", "tool": "search", "allowed": True}


async def report(session: SessionHandle, which: int, steps: range) -> None:
    for number in steps:
        await session.record(call(which, number))
    await session.flush()


async def report_turns(session: SessionHandle, steps: range) -> None:
    """As a runtime does that reports turn by turn: a signal of its own for each of them."""
    for start in steps[::20]:
        await session.record(*(call(0, number) for number in range(start, start + 20)))
    await session.flush()


def check(rig: Rig, outcome: SessionOutcome, which: int, steps: int) -> None:
    events = attested(rig, outcome)
    assert [event["payload"]["call_id"] for event in events[1:]] == [f"s{which}-c{n}" for n in range(steps)]
    assert (outcome.steps, outcome.repeated, outcome.rejected) == (steps, 0, 0)
    assert outcome.totals.tool_calls == steps


async def run_lengths(rig: Rig, session_id: str) -> list[int]:
    """History events of each run, asked of Temporal run by run along the chain."""
    lengths = []
    run_id: str | None = None
    while True:
        handle = rig.client.temporal.get_workflow_handle(session_id, run_id=run_id)
        history = await handle.fetch_history()
        lengths.append(len(history.events))
        earlier = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not earlier:
            return lengths[::-1]
        run_id = earlier


async def largest_handover(rig: Rig, session_id: str) -> int:
    """Bytes of the largest state that one run handed to the next."""
    sizes = [0]
    run_id: str | None = None
    while True:
        history = await rig.client.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        if not started.continued_execution_run_id:
            return max(sizes)
        sizes.append(len(started.input.payloads[1].data))
        run_id = started.continued_execution_run_id


@pytest.mark.crowded
@pytest.mark.timeout(300)
async def test_h4_64_sessions_of_100_steps_at_once_cross_nothing(running: Rig) -> None:
    async def one(which: int) -> None:
        session = await running.open()
        await report(session, which, range(100))
        check(running, await session.close(), which, 100)

    running.client.admit_timeout = 120  # 64 sessions open on two cores at the same moment
    await asyncio.gather(*(one(which) for which in range(64)))


@pytest.mark.timeout(600)
async def test_h5_20_000_steps_are_one_chain_over_many_runs(lowered: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    async with lowered.worker():
        session = await lowered.open()
        for start in range(0, STEPS, 200):
            await report_turns(session, range(start, start + 200))
        outcome = await session.close()
        lengths = await run_lengths(lowered, session.session_id)
        handed_on = await largest_handover(lowered, session.session_id)
    with capsys.disabled():
        print(f"\n    {len(lengths)} runs, longest {max(lengths)} events; state handed on: {handed_on} bytes")
    check(lowered, outcome, 0, STEPS)
    assert len(lengths) >= 5
    assert max(lengths) <= 10_240
    assert handed_on < 200_000


@pytest.mark.timeout(600)
async def test_h5_an_outage_of_bus_and_store_in_the_middle_loses_nothing_at_default_limits(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    store_down = Outage(lambda: OSError(5, "Input/output error"))
    bus_down = Outage(lambda: ConnectionError("no broker"))
    out = asyncio.Event()

    def strike(outage: Outage) -> None:
        if out.is_set():
            outage.strike()

    store = TapStore(store_of(rig), before=lambda _: strike(store_down), reading=lambda _: strike(store_down))
    bus = TapBus(bus_of(rig), before=lambda _: strike(bus_down))
    async with rig.worker(store=store, bus=bus):
        session = await rig.open()
        await report_turns(session, range(STEPS // 2))
        out.set()
        reporting = asyncio.create_task(report_turns(session, range(STEPS // 2, STEPS)))
        await asyncio.sleep(OUTAGE_S)  # the outage itself is what is tested
        assert not reporting.done()
        view = await session.view()
        assert view.poisoned is None
        assert view.stalled is not None
        store_down.end()
        bus_down.end()
        await reporting
        outcome = await session.close()
        lengths = await run_lengths(rig, session.session_id)
        handed_on = await largest_handover(rig, session.session_id)
    with capsys.disabled():
        said = f"{len(lengths)} runs, longest {max(lengths)} events; state handed on: {handed_on} bytes"
        print(f"\n    out for {OUTAGE_S:g} s: {said}")
    check(rig, outcome, 0, STEPS)
    assert max(lengths) <= 10_240
    assert handed_on < 200_000
