"""E1: what is out of order for a while never poisons; the view says what stands still, and since when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from affidavit.errors import SessionRefused
from tests.support.halves import bus_of, check_once, journaling, signing, store_of
from tests.support.rig import Rig, actions
from tests.support.taps import Outage, TapBus, TapStore
from tests.support.waiting import eventually
from workers.devserver import DevServer


def call(number: int) -> dict[str, object]:
    return {"kind": "tool_call", "call_id": f"c{number}", "tool": "search", "allowed": True}


def about(folder: str, strike: Callable[[], None]) -> Callable[[str], None]:
    def before(name: str) -> None:
        if folder in name.split("/") and not name.endswith("/000000000000.ndjson"):
            strike()

    return before


async def a_store_that_is_down_stalls_and_never_poisons(rig: Rig) -> None:
    outage = Outage(lambda: OSError(28, "No space left on device", "/mnt/evidence/x"))
    async with rig.worker(store=TapStore(store_of(rig), before=about("journal", outage.strike))):
        session = await rig.open()
        before = int(time.time() * 1000)
        await session.record(call(1), call(2))
        await session.view()  # they are sent
        submitted = asyncio.create_task(rig.client.handle(session.session_id).submit(call(3)))
        await outage.met_times(1)
        met = int(time.time() * 1000)
        view = await eventually(session.view, lambda view: view.stalled is not None)
        assert view.stalled is not None
        assert view.stalled.stage == "journal"
        assert before <= view.stalled.since <= met  # since it began, not since it counts as stalled
        assert (view.state, view.poisoned, view.event_count) == ("open", None, 1)
        await session.record(call(4))
        assert outage.met >= 3
        assert not submitted.done()
        outage.end()
        assert (await submitted).last_sequence == 3
        view = await eventually(session.view, lambda view: view.event_count == 5)
        assert (view.stalled, view.poisoned, view.unprocessed) == (None, None, 0)
        outcome = await session.close()
    assert (outcome.status, outcome.steps, outcome.published) == ("closed", 4, True)
    events = rig.bus(session.session_id)
    assert actions(events) == ["opened", *["tool_call"] * 4, "receipt", "closed"]
    assert [event["payload"].get("call_id") for event in events[1:5]] == ["c1", "c2", "c3", "c4"]
    check_once(rig, session.session_id)


async def a_store_that_cannot_be_read_stalls_the_publisher_alone(rig: Rig) -> None:
    """Journaling goes on; what is journaled goes out once the store can be read again."""
    outage = Outage(lambda: OSError(5, "Input/output error"))
    full = Outage(lambda: OSError(28, "No space left on device"))
    fills_up: list[bool] = []

    def before(name: str) -> None:
        if fills_up:
            about("journal", full.strike)(name)

    store = TapStore(store_of(rig), before=before, reading=about("journal", outage.strike))
    async with rig.worker(store=store):
        session = await rig.open()
        for number in range(3):
            await session.submit(call(number))
        view = await eventually(session.view, lambda view: view.stalled is not None)
        assert view.stalled is not None
        assert (view.stalled.stage, view.event_count, view.poisoned) == ("publish", 4, None)
        since = view.stalled.since
        # Of two stages that stand still the view names the one that has for longer.
        fills_up.append(True)
        await session.record(call(4))
        await full.met_times(1)
        view = await session.view()
        assert view.stalled is not None
        assert (view.stalled.stage, view.stalled.since) == ("publish", since)
        full.end()
        outage.end()
        outcome = await session.close()
    assert (outcome.status, outcome.published) == ("closed", True)
    check_once(rig, session.session_id)


async def bus_and_signer_down_stall_and_never_poison(rig: Rig) -> None:
    outage = Outage(lambda: ConnectionError("no broker"))
    async with journaling(rig, bus=TapBus(bus_of(rig), before=lambda _: outage.strike())):
        session = await rig.open()
        await session.record(call(1))
        view = await eventually(session.view, lambda view: view.stalled is not None)
        assert view.stalled is not None
        assert view.stalled.stage == "publish"
        closing = asyncio.create_task(session.close())
        view = await eventually(session.view, lambda view: view.state == "closing")
        assert view.published_through == -1
        outage.end()
        view = await eventually(session.view, lambda view: view.stalled is not None and view.stalled.stage == "seal")
        assert (view.state, view.poisoned, view.published_through) == ("sealing", None, 1)
        assert not closing.done()
        async with signing(rig):
            outcome = await closing
    assert (outcome.status, outcome.published) == ("closed", True)
    check_once(rig, session.session_id)


async def a_store_that_is_down_at_the_opening(rig: Rig) -> None:
    outage = Outage(lambda: OSError(5, "Input/output error"))

    def at_metadata(name: str) -> None:
        if name.endswith("/metadata.json"):
            outage.strike()

    async with rig.worker(store=TapStore(store_of(rig), before=at_metadata)):
        opening = asyncio.create_task(rig.open(session_id="late"))
        await outage.met_times(2)
        session = rig.client.handle("late")
        await session.record(call(1))
        view = await eventually(session.view, lambda view: view.stalled is not None)
        assert view.stalled is not None
        assert (view.state, view.stalled.stage, view.poisoned) == ("opening", "open", None)
        outage.end()
        await opening
        outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 1)
    check_once(rig, "late")


SCENES = {
    scene.__name__: scene
    for scene in (
        a_store_that_is_down_stalls_and_never_poisons,
        a_store_that_cannot_be_read_stalls_the_publisher_alone,
        bus_and_signer_down_stall_and_never_poison,
        a_store_that_is_down_at_the_opening,
    )
}


@pytest_asyncio.fixture(scope="module")
async def scenes(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """All scenes at once: each waits most of its time until something counts as stalled."""
    under_way = {
        name: asyncio.create_task(scene(await Rig.make(server.address, tmp_path_factory.mktemp("stall") / "data")))
        for name, scene in SCENES.items()
    }
    yield under_way
    for task in under_way.values():
        task.cancel()
    await asyncio.gather(*under_way.values(), return_exceptions=True)


@pytest.mark.parametrize("name", SCENES)
async def test_e1(scenes: dict[str, asyncio.Task[None]], name: str) -> None:
    await scenes[name]


async def test_e1_an_integrity_error_poisons_and_the_rest_is_counted(rig: Rig) -> None:
    """The control: what no retry mends is not waited for."""

    def alter(name: str) -> None:
        if name.endswith("journal/000000000001.ndjson"):
            path = rig.data.evidence / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"another\n")

    async with rig.worker(store=TapStore(store_of(rig), before=alter)):
        session = await rig.open()
        with pytest.raises(SessionRefused, match="capture is incomplete"):
            await session.submit(call(1))
        with pytest.raises(SessionRefused, match="capture is incomplete"):
            await session.submit(call(2))
        await session.record(call(3), call(4))
        await session.flush()
        outcome = await session.close()
    assert outcome.status == "quarantined"
    assert outcome.reason == "journaling: IntegrityError: journal record 1: Expecting value, line 1 column 1"
    # submit 1 and the two of the record; submit 2 was refused before it got in
    assert (outcome.steps, outcome.unprocessed, outcome.event_count) == (0, 3, 1)
