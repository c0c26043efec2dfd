"""D1, D5, D6, H3: where responses are measured, in the workflow or in an activity, and that verdicts do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from activities.embedders import Counts, HashEmbedder
from affidavit import contract
from affidavit.contract import EMBED_AT_ONCE_BYTES, BreakerConfig
from tests.support.bare import Bare, said
from tests.support.oracle import attested
from tests.support.rig import Rig
from tests.support.waiting import eventually
from workflows import embedding

TELLING = BreakerConfig(delta_epsilon=0.9, window=1, min_tokens=0, action="observe")
"""Trips at once, and a trip's event says what was measured."""
TEXTS = ("Looking at the logs", "Looking at the logs", "The disk is full", "THE DISK  is full")
DELTAS = [None, 0.0, 0.8848671913146973, 0.0]
"""What is new in each, by the formula of formats.md 8; the first, all of which is new, is no trip."""


class Down:
    """An embedder that is not there."""

    def counts(self, text: str) -> Counts:
        raise ConnectionError("no embedder")


async def embedded(rig: Rig, session_id: str) -> int:
    """How often the embed activity was asked for, in all runs of a session."""
    return sum(
        event.activity_task_scheduled_event_attributes.activity_type.name == "embed"
        for run in await Bare(rig, session_id).runs()
        for event in run
    )


def deltas(events: list[dict[str, Any]]) -> list[float | None]:
    return [event["payload"].get("delta") for event in events[1:]]


async def measured(rig: Rig, *texts: str) -> tuple[list[float | None], int]:
    """What is new in each response of a session, and how often the embed activity was asked for."""
    session = await rig.open(breaker=TELLING)
    for text in texts:
        await session.submit(said(text))
    events = attested(rig, await session.close())
    return deltas(events), await embedded(rig, session.session_id)


async def test_d1_the_built_in_embedder_is_asked_in_no_activity(running: Rig) -> None:
    assert await measured(running, *TEXTS) == (DELTAS, 0)


async def test_d1_an_embedder_that_is_passed_in_is_asked_in_an_activity(rig: Rig) -> None:
    async with rig.worker(embedder=HashEmbedder()):
        assert await measured(rig, *TEXTS) == (DELTAS, 4)


async def test_d6_a_big_response_is_measured_in_an_activity_and_alike(running: Rig) -> None:
    big = "Looking at the logs. " * (EMBED_AT_ONCE_BYTES // 20)
    found, asked = await measured(running, big, big, TEXTS[2], TEXTS[2])
    assert [found[place] for place in (0, 1, 3)] == [None, 0.0, 0.0]
    assert asked == 2


async def test_d6_a_session_keeps_its_embedder_at_a_worker_with_another_one(rig: Rig) -> None:
    """What is big goes to that worker's activity, which is to use the session's embedder and not its own."""
    big = "Looking at the logs. " * (EMBED_AT_ONCE_BYTES // 20)
    async with rig.worker():
        session = await rig.open(breaker=TELLING)
        await session.submit(said(TEXTS[0]))
    async with rig.worker(embedder=Down()):
        for text in (TEXTS[1], big, big, TEXTS[0]):
            await session.submit(said(text))
        events = attested(rig, await session.close())
        assert await embedded(rig, session.session_id) == 2
    assert [deltas(events)[place] for place in (0, 1, 3, 4)] == [None, 0.0, 0.0, 0.0]


async def test_d6_a_session_whose_embedder_is_away_asks_no_other(rig: Rig) -> None:
    async with rig.worker(embedder=Down()):
        session = await rig.open(breaker=TELLING)
        assert (await session.submit(said(TEXTS[0]))).verdict == "not_assessed"
        assert await embedded(rig, session.session_id) == 1


async def test_d6_the_next_run_embeds_as_the_one_before(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 2)
    session = await running.open(breaker=TELLING)
    bare = Bare(running, session.session_id)
    for place, text in enumerate(TEXTS):
        await bare.step(said(text))
        await eventually(bare.view, lambda view, count=place + 2: view["event_count"] == count)
    assert (await bare.view())["runs"] >= 2
    events = attested(running, await session.close())
    assert deltas(events) == DELTAS
    assert await embedded(running, session.session_id) == 0


@pytest.mark.failed_tasks
async def test_h3_a_process_without_the_built_in_embedder_fails_the_task_and_says_why(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await running.open(breaker=TELLING)
    bare = Bare(running, session.session_id)
    with monkeypatch.context() as without:
        without.setattr(embedding, "_provided", None)
        await bare.step(said(TEXTS[0]))
        await eventually(lambda: failures(bare), bool)
    await eventually(bare.view, lambda view: view["event_count"] == 2)
    assert "the built-in embedder is not provided in this process" in (await failures(bare))[0]
    events = attested(running, await session.close())
    assert [event["payload"]["assessed"] for event in events[1:]] == [True]


async def failures(bare: Bare) -> list[str]:
    """What failed workflow tasks of a session have said."""
    return [
        event.workflow_task_failed_event_attributes.failure.message
        for run in await bare.runs()
        for event in run
        if event.HasField("workflow_task_failed_event_attributes")
    ]
