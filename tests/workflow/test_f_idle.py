"""F4-F6 and F9: a session that closes itself, its stop reason, and what comes too late."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from typer.testing import CliRunner

from affidavit.cli.app import app
from affidavit.contract import BreakerConfig, Limits, SessionOutcome
from affidavit.errors import SessionRefused
from tests.support.bare import Bare, Json, call, failed, said
from tests.support.halves import journaling, signing, until
from tests.support.oracle import attested
from tests.support.rig import Rig, actions
from tests.support.waiting import eventually


async def opened(rig: Rig, **spec: Any) -> tuple[Any, Bare]:
    session = await rig.open(**spec)
    return session, Bare(rig, session.session_id)


async def timers(bare: Bare) -> list[tuple[str, float]]:
    """Timers of the newest run: what happened to them, and the seconds they were to run for. Without those that only
    keep tasks apart, and run for a day."""
    names = {
        EventType.EVENT_TYPE_TIMER_STARTED: "started",
        EventType.EVENT_TYPE_TIMER_FIRED: "fired",
        EventType.EVENT_TYPE_TIMER_CANCELED: "cancelled",
    }
    found, aside = list[tuple[str, float]](), set[str]()
    for event in (await bare.runs())[-1]:
        what = names.get(event.event_type)
        started = event.timer_started_event_attributes
        seconds = started.start_to_fire_timeout.ToTimedelta().total_seconds()
        ended = event.timer_fired_event_attributes.timer_id or event.timer_canceled_event_attributes.timer_id
        if seconds == 86_400:
            aside.add(started.timer_id)
        elif what is not None and ended not in aside:
            found.append((what, seconds))
    return found


# -- F6 -------------------------------------------------------------------------------------------------


async def test_f6_idle_close_by_one_timer_that_is_rearmed(running: Rig) -> None:
    session, bare = await opened(running, limits=Limits(idle_close_s=2))
    begun = time.monotonic()
    last = begun
    for number in range(15):
        last = time.monotonic()
        # Reported over half of the time, with clocks of their own that tell nothing.
        await bare.step(call(f"c{number}", claimed_time="2099-01-01T00:00:00Z" if number % 2 else 0))
        await asyncio.sleep(max(0.0, begun + number / 15 - time.monotonic()))
    outcome = await session.result()
    assert time.monotonic() - last >= 1.8
    assert (outcome.status, outcome.stop_reason_id, outcome.stop_reason) == ("closed", 4, "Session Closed")
    assert outcome.steps == 15
    attested(running, outcome)
    seen = await timers(bare)
    # One at the opening, and one for what was left when it fired; a slow machine may need another one.
    assert [what for what, _ in seen] in (["started", "fired"] * 2, ["started", "fired"] * 3)
    assert seen[0] == ("started", 2.0)
    assert all(0 < seconds <= 2.0 for what, seconds in seen if what == "started")


async def test_f6_an_open_attempt_holds_it_off_until_its_lapse(running: Rig) -> None:
    limits = Limits(idle_close_s=2, attempt_lapse_s=6, drain_timeout_s=1)

    async def admitted() -> tuple[Any, Bare]:
        session, bare = await opened(running, limits=limits)
        await bare.admit("a1")
        return session, bare

    (lapsing, _), (ending, other) = await asyncio.gather(admitted(), admitted())

    async def end_it() -> SessionOutcome:
        # Longer than idle close, but the attempt is open.
        await asyncio.sleep(2.8)
        assert (await other.view())["state"] == "open"
        await other.step(said("done", attempt_id="a1"))
        return await ending.result()

    held, lapsed = await asyncio.gather(end_it(), lapsing.result())
    assert (held.status, held.stop_reason_id, held.steps) == ("closed", 4, 1)
    # An attempt that is silent for its lapse is not waited for, but it is not forgotten either.
    assert (lapsed.status, lapsed.reason) == (
        "quarantined",
        "1 attempts were open when the drain timeout ended",
    )
    quarantined = running.bus(lapsing.session_id)[-1]
    assert quarantined["time"] - running.bus(lapsing.session_id)[0]["time"] >= 6000


async def test_f6_e3_it_applies_to_poisoned_sessions(running: Rig) -> None:
    session, bare = await opened(running, limits=Limits(idle_close_s=3))
    await bare.record(call("c1"), said("who asked?", attempt_id="nobody"))
    await eventually(bare.view, lambda view: view["poisoned"] is not None)
    outcome = await session.result()
    assert (outcome.status, outcome.reason) == ("quarantined", "attempt nobody ends without an opening")
    assert actions(running.bus(session.session_id)) == ["opened", "tool_call", "quarantined"]


async def test_f6_an_absurd_limit_reaps_nothing(running: Rig) -> None:
    with pytest.raises(SessionRefused, match=r"limits\.idle_close_s"):
        await running.client.open(
            {"agent": {"version": "1", "charter": "c", "instance_uid": "i"}, "limits": {"idle_close_s": 0}}
        )
    session, bare = await opened(running, limits=Limits(idle_close_s=31_536_000, attempt_lapse_s=31_536_000))
    await bare.admit("a1")
    await bare.submit(failed(attempt_id="a1"))
    assert (await bare.view())["state"] == "open"
    assert await timers(bare) == [("started", 31_536_000.0)]
    assert (await session.close()).status == "closed"


# -- F5 -------------------------------------------------------------------------------------------------

TOOL_USE = said("x", finish_reason="tool_use")


@pytest.mark.parametrize(
    ("spec", "steps", "end", "stop"),
    [
        ({}, [], "close", (4, "Session Closed")),
        ({}, [TOOL_USE], "close", (3, "Tool Use")),
        ({}, [TOOL_USE, said("y, and more", finish_reason="max_tokens"), call("c1")], "close", (2, "Length")),
        ({}, [said("x", finish_reason="who knows")], "close", (99, "Other")),
        ({}, [TOOL_USE, call("c1", allowed=False, stage="policy")], "close", (93, "Policy Blocked")),
        ({}, [TOOL_USE], "cancel", (99, "Other")),
        ({"limits": Limits(idle_close_s=3)}, [TOOL_USE], "idle", (4, "Session Closed")),
        (
            {"breaker": BreakerConfig(window=1, min_tokens=0, action="abort")},
            [TOOL_USE, TOOL_USE],
            "abort",
            (91, "Loop Detected"),
        ),
    ],
    ids=["nothing", "last", "last of two", "other", "blocked", "cancel", "idle", "abort"],
)
async def test_f5_the_stop_reason_and_verify_accepts_it(
    running: Rig, spec: Json, steps: list[Json], end: str, stop: tuple[int, str]
) -> None:
    session, bare = await opened(running, **spec)
    if steps:
        await bare.record(*steps)
    if end == "close":
        outcome = await session.close()
    else:
        if end == "cancel":
            await session.cancel()
        outcome = await session.result()
    assert (outcome.stop_reason_id, outcome.stop_reason) == stop
    folder = running.folder(session.session_id)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert (receipt["stop_reason_id"], receipt["stop_reason"]) == stop
    arguments = ["verify", str(folder), "--key", str(running.data.keys / "public.json")]
    verified = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert (verified.exit_code, verified.output.splitlines()[-1]) == (0, "receipt: VALID"), verified.output


# -- F9 -------------------------------------------------------------------------------------------------


async def test_f9_steps_after_close_was_accepted_are_counted(rig: Rig) -> None:
    async with journaling(rig):
        session, bare = await opened(rig)
        await bare.admit("a1")
        closing = asyncio.create_task(session.close())
        await until(session, "closing")
        # While it drains: two steps, something that cannot be read, an answer that is waited for.
        await bare.record(call("late"), call("later"))
        await bare.handle.signal("nobody knows it")
        await bare.step(said("in time", attempt_id="a1"))
        await until(session, "sealing")
        assert (await bare.view())["late_steps"] == 3
        # While it is sealed.
        await bare.record(*(call(f"c{number}") for number in range(4)))
        await eventually(bare.view, lambda view: view["late_steps"] == 7)
        async with signing(rig):
            outcome = await closing
    assert (outcome.late_steps, outcome.steps, outcome.rejected, outcome.unprocessed) == (7, 1, 0, 0)
    assert actions(attested(rig, outcome)) == ["opened", "model_response"]
    sealed = json.loads((rig.folder(session.session_id) / "outcome.json").read_text())["payload"]
    assert sealed["late_steps"] == 7
