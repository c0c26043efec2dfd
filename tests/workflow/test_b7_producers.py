"""B7: steps that carry their producer's own numbers, on a running session; B11: the times of steps."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from affidavit import contract
from affidavit.contract import Limits, SessionSpec
from affidavit.steps import STEP
from tests.support.bare import Bare, Json, call
from tests.support.oracle import attested, sha256
from tests.support.rig import AGENT, Rig, actions
from tests.support.waiting import eventually
from workflows.attempts import Attempts
from workflows.decide import decide
from workflows.inbox import Item
from workflows.state import Ledger, SessionState


def numbered(number: int, call_id: str | None = None, producer: str = "p") -> Json:
    return call(call_id or f"c{number}", producer=producer, producer_seq=number)


def numbers(events: list[Json]) -> list[int | None]:
    """Of each event behind the opening one, the number its producer gave."""
    return [event["payload"].get("producer_seq") for event in events[1:]]


def payloads(events: list[Json], action: str) -> list[Json]:
    return [event["payload"] for event in events if event["payload"]["action"] == action]


async def opened(rig: Rig, **spec: Any) -> tuple[Any, Bare]:
    session = await rig.open(**spec)
    return session, Bare(rig, session.session_id)


# -- repeats and conflicts ------------------------------------------------------------------------------


async def test_b7_a_repeat_is_dropped_and_counted(running: Rig) -> None:
    session, bare = await opened(running)
    for number in (1, 2, 1, 2, 3, 3, 1):
        await bare.step(numbered(number))
    await bare.record(numbered(3), numbered(4), numbered(4))
    assert (await bare.submit(numbered(4), numbered(5)))["repeated"] == 1
    # The same body in another order of its keys is the same body.
    await bare.step(dict(reversed(numbered(5).items())))
    view = await eventually(bare.view, lambda view: view["repeated"] == 8)
    assert view["unverified"] == 0
    outcome = await session.close()
    assert numbers(attested(running, outcome)) == [1, 2, 3, 4, 5]
    assert (outcome.steps, outcome.repeated, outcome.unverified) == (5, 8, 0)


async def test_b7_repeat_is_dropped_across_rollover(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 3)
    session, bare = await opened(running)
    for number in (1, 2, 4):
        await bare.step(numbered(number))
    await eventually(bare.view, lambda view: view["runs"] == 2)
    for step in (numbered(1), numbered(4), numbered(2, "another")):
        await bare.step(step)
    view = await eventually(bare.view, lambda view: view["runs"] == 3 and view["event_count"] == 5)
    assert view["repeated"] == 2
    await bare.step(numbered(3))  # late, in a run that never saw the gap open
    await bare.step(numbered(3))
    outcome = await session.close()
    events = attested(running, outcome)
    assert actions(events)[1:] == ["tool_call"] * 3 + ["producer_conflict", "tool_call"]
    assert numbers(events) == [1, 2, 4, 2, 3]
    assert (outcome.steps, outcome.repeated) == (4, 3)


async def test_b7_another_body_under_a_number_is_a_conflict(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.step(numbered(1))
    await bare.step(numbered(1, "another"))
    assert await bare.refusal("submit", {"steps": [numbered(2), numbered(1, "a third")]}) == (
        "BadRequest",
        "producer p has reported number 1 with another body",
    )
    outcome = await session.close()
    events = attested(running, outcome)
    assert actions(events) == ["opened", "tool_call", "producer_conflict", "tool_call", "producer_conflict"]
    conflict = events[2]
    assert conflict["payload"] == {
        "action": "producer_conflict",
        "producer": "p",
        "producer_seq": 1,
        "sha256": sha256(
            b'{"kind": "tool_call", "call_id": "another", "tool": "search", "allowed": true, '
            b'"producer": "p", "producer_seq": 1}'
        ),
    }
    assert (conflict["class_name"], conflict["status_id"]) == ("agent.session", 2)
    assert (outcome.steps, outcome.repeated) == (2, 0)


async def test_b7_a_repeat_whose_digest_is_forgotten_is_unverified(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.submit(*(numbered(number) for number in range(1, 66)))
    await bare.step(numbered(1, "whatever"))  # number 1 is the 65th last
    await bare.step(numbered(2))  # number 2 is still known
    view = await eventually(bare.view, lambda view: view["repeated"] == 2)
    assert view["unverified"] == 1
    outcome = await session.close()
    assert (outcome.steps, outcome.repeated, outcome.unverified) == (65, 2, 1)
    assert numbers(attested(running, outcome)) == list(range(1, 66))


async def test_b7_two_identical_steps_with_different_numbers_are_two(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.record(numbered(1, "same"), numbered(2, "same"), numbered(1, "same", "q"))
    await bare.record(call("same"), call("same"))
    outcome = await session.close()
    events = attested(running, outcome)
    assert [event["payload"].get("call_id") for event in events[1:]] == ["same"] * 5
    assert [event["payload"].get("producer") for event in events[1:]] == ["p", "p", "q", None, None]
    assert (outcome.steps, outcome.repeated) == (5, 0)


# -- gaps -----------------------------------------------------------------------------------------------


async def test_b7_a_late_number_closes_the_gap(running: Rig) -> None:
    session, bare = await opened(running)
    for number in (1, 5, 3, 2, 4):
        await bare.step(numbered(number))
    outcome = await session.close()
    assert numbers(attested(running, outcome)) == [1, 5, 3, 2, 4]
    assert (outcome.steps, outcome.repeated, outcome.event_count) == (5, 0, 6)


async def test_b7_a_gap_that_stays_open_is_an_event_after_its_grace(running: Rig) -> None:
    session, bare = await opened(running, limits=Limits(gap_grace_s=1))
    await bare.step(numbered(1))
    await bare.step(numbered(4))
    await eventually(bare.view, lambda view: view["event_count"] == 4)
    await bare.step(numbered(2))  # later than late: accepted all the same
    outcome = await session.close()
    events = attested(running, outcome)
    assert actions(events)[1:] == ["tool_call", "tool_call", "producer_gap", "tool_call"]
    gap = events[3]
    assert gap["payload"] == {"action": "producer_gap", "producer": "p", "first_missing": 2, "last_missing": 3}
    assert (gap["class_name"], gap["status_id"]) == ("agent.session", 1)
    assert gap["time"] - events[2]["time"] >= 1000


async def test_b7_a_gap_that_is_open_at_close_is_an_event(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.record(numbered(1), numbered(3), numbered(7), numbered(5), numbered(2, producer="q"))
    outcome = await session.close()
    events = attested(running, outcome)
    assert [(gap["first_missing"], gap["last_missing"]) for gap in payloads(events, "producer_gap")] == [
        (2, 2),
        (4, 4),
        (6, 6),
    ]
    assert outcome.status == "closed"


async def test_b7_a_gap_is_told_once_though_runs_change(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 2)
    session, bare = await opened(running, limits=Limits(gap_grace_s=1))
    await bare.step(numbered(1))
    await bare.step(numbered(3))
    await eventually(bare.view, lambda view: view["runs"] == 2)
    await eventually(bare.view, lambda view: view["event_count"] == 4)
    await bare.step(numbered(4))
    await bare.step(numbered(5))
    await eventually(bare.view, lambda view: view["runs"] == 3)
    events = attested(running, await session.close())
    assert [event["payload"]["action"] for event in events].count("producer_gap") == 1


# -- bounds ---------------------------------------------------------------------------------------------


async def test_b7_what_cannot_be_followed_is_rejected(running: Rig) -> None:
    session, bare = await opened(running)
    await bare.submit(*(numbered(1, producer=f"p{place}") for place in range(64)))
    await bare.step(numbered(1, producer="p64"))
    await bare.step(numbered(10_002, producer="p0"))  # 10 000 are missing
    await bare.step(numbered(20_004, producer="p0"))  # 10 001 would be
    for place in range(33):
        await bare.step(numbered(3 + 2 * place, producer="p1"))
    # What was rejected has changed nothing: both go on where they were.
    await bare.step(numbered(10_003, producer="p0"))
    await bare.step(numbered(66, producer="p1"))
    reason = "producer p64: more than 64 producers"
    assert await bare.refusal("submit", {"steps": [numbered(2, producer="p64")]}) == ("BadRequest", reason)
    view = await eventually(bare.view, lambda view: view["rejected"] == 4)
    assert view["steps"] == 64 + 1 + 32 + 2
    outcome = await session.close()

    events = attested(running, outcome)
    rejections = payloads(events, "message_rejected")
    assert [rejection["reason"] for rejection in rejections] == [
        reason,
        "producer p0: a jump over 10000 numbers",
        "producer p1: more than 32 gaps",
        reason,
    ]
    assert {rejection["name"] for rejection in rejections} == {"tool_call"}
    assert rejections[0]["bytes"] == 111
    gaps = [(gap["producer"], gap["first_missing"]) for gap in payloads(events, "producer_gap")]
    assert gaps == [("p0", 2), *(("p1", 2 * place) for place in range(1, 33))]
    assert outcome.rejected == 4


# -- B11 ------------------------------------------------------------------------------------------------


def test_b11_admitted_time_never_runs_backward() -> None:
    state = SessionState(
        generation="g", product_version="1", trajectory_id="t", registration_sha256="0", ledger=Ledger(agent=AGENT)
    )
    times = [state.admit(now) for now in (5, 7, 3, 7, 8, 1)]
    assert times == [5, 7, 7, 7, 8, 8]
    assert SessionState.model_validate_json(state.model_dump_json()).admit(2) == 8


@pytest.mark.parametrize(
    ("claimed", "skewed"),
    [
        (1_700_000_000_000, None),
        (1_700_000_300_000, None),
        (1_700_000_300_001, True),
        (1_699_999_700_000, None),
        (1_699_999_699_999, True),
        ("2023-11-14T22:13:20Z", None),
        ("2023-11-14T23:18:20+01:00", None),
        ("2023-11-14T23:18:20.001+01:00", True),
    ],
)
def test_b11_a_claim_more_than_five_minutes_off_is_kept_and_flagged(claimed: Any, skewed: bool | None) -> None:
    value = call("c", claimed_time=claimed)
    item = Item("tool_call", 1_700_000_000_000, step=STEP.validate_python(value), value=value, text="{}")
    spec = SessionSpec(agent=AGENT)
    (entry,) = decide(Ledger(agent=AGENT), spec, [item], {}, Attempts(), lambda: str(uuid.uuid4())).entries
    assert (entry.time, entry.payload.get("skewed")) == (1_700_000_000_000, skewed)


async def test_b11_the_claims_of_numbered_steps_order_nothing(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrival does, also where a run is handed on in between."""
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 2)
    session, bare = await opened(running)
    claims = ["2099-01-01T00:00:00Z", "1999-01-01T00:00:00Z", "2098-01-01T00:00:00Z", "1998-01-01T00:00:00Z"]
    for number, claim in enumerate(claims, 1):
        await bare.step({**numbered(number), "claimed_time": claim})
        if number % 2 == 0:
            await eventually(bare.view, lambda view: view["runs"] >= number // 2 + 1)  # noqa: B023 - called at once
    events = attested(running, await session.close())  # has checked that the events' own times never run backward
    assert [event["payload"]["claimed_time"] for event in events[1:]] == claims
    assert [event["payload"]["skewed"] for event in events[1:]] == [True] * 4
