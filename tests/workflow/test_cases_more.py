"""More faults that people met elsewhere (cases 4, 5, 10, 12, 25 and shorter ones), tried on a running session.

Elsewhere: case 2 in test_rollover, 8 in test_b9_large_payloads, a cancel as its publish completes in test_f_closing,
eight parallel results in test_b_reporting (B10), a kill between journal write and completion in tests/e2e/test_kill, a
start right after an attribute was registered (temporalio/temporal#6195) in tests/unit/test_asking
(`test_what_comes_later_is_used_once_every_part_of_the_server_knows`) and, against a server without attributes, in
test_web_ui (`test_without_the_attributes_a_session_sets_none`).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.worker import Replayer

from activities.buses.base import BusRecord
from activities.embedders import Counts, HashEmbedder
from affidavit.contract import BreakerConfig
from tests.support.bare import Bare, Json, call, said
from tests.support.foreign import payload
from tests.support.halves import bus_of, store_of
from tests.support.oracle import attested, sha256
from tests.support.proof import bus_uids, uids
from tests.support.rig import Rig, actions
from tests.support.stand_ins import WatchedEmbedder
from tests.support.taps import TapBus, TapStore
from tests.support.waiting import eventually
from workers.worker import workflow_runner
from workflows.session import AgentSession


def uncached(rig: Rig) -> Rig:
    """The same product with workers that keep no workflow: every task replays from the start."""
    return Rig(rig.client, rig.data, rig.settings.model_copy(update={"max_cached_workflows": 0}))


async def replayed(rig: Rig, session_id: str, times: int) -> None:
    """Replay a session's history; raises where a replay takes another way."""
    temporal = rig.client.temporal
    history = await temporal.get_workflow_handle(session_id).fetch_history()
    for _ in range(times):
        replayer = Replayer(
            workflows=[AgentSession], workflow_runner=workflow_runner(), data_converter=temporal.data_converter
        )
        await replayer.replay_workflow(history)


async def test_case4_a_flush_is_answered_after_what_came_before_it_and_replays(rig: Rig) -> None:
    embedding = threading.Event()

    def slow(text: str) -> None:
        embedding.set()
        time.sleep(0.3)

    async with uncached(rig).worker(embedder=WatchedEmbedder(slow)):
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        await bare.step(said("thought over"))
        assert await asyncio.to_thread(embedding.wait, 10)
        flushing = asyncio.create_task(bare.update("flush"))
        await bare.step(call("second"))
        answer = await flushing
        journaled = rig.journal(session.session_id)
        # The answer is not ahead of the disk, and the first event is in it.
        assert actions(journaled)[:2] == ["opened", "model_response"]
        assert 2 <= answer["event_count"] <= len(journaled)
        outcome = await session.close()
    assert actions(attested(rig, outcome)) == ["opened", "model_response", "tool_call"]
    await replayed(rig, session.session_id, 10)


async def test_case5_stages_that_finish_in_any_order_replay(rig: Rig) -> None:
    """Journal 80 ms and publish 5 ms for odd events, the reverse for even ones; the worker restarts in the middle."""

    def journal(name: str) -> None:
        folder, _, file = name.rpartition("/")
        if folder.endswith("/journal"):
            time.sleep(0.08 if int(file[:12]) % 2 else 0.005)

    async def publish(records: Sequence[BusRecord]) -> None:
        sequence = json.loads(records[-1].value)["metadata"]["sequence"]
        await asyncio.sleep(0.005 if sequence % 2 else 0.08)

    def worker() -> Any:
        store, bus = TapStore(store_of(rig), before=journal), TapBus(bus_of(rig), before=publish)
        return rig.worker(store=store, bus=bus)

    async with worker():
        session = await rig.open()
        bare = Bare(rig, session.session_id)
        for number in range(1, 7):
            await bare.step(said(f"saying {number} of twelve"))
    async with worker():
        for number in range(7, 13):
            await bare.step(said(f"saying {number} of twelve"))
        outcome = await session.close()
    assert len(attested(rig, outcome)) == 13
    await replayed(rig, session.session_id, 2)


async def test_case10_sixty_thousand_nested_items_do_not_hold_up_the_workflow(running: Rig) -> None:
    """The test fails where a workflow task did (TMPRL1101); and what is canonical is made in an activity."""
    items = [{"n": number, "of": ["x"]} for number in range(60_000)]
    step = json.dumps(call("c1", arguments={"items": items}), separators=(",", ":"))
    assert 1_200_000 < len(step) < 1_500_000
    session = await running.open()
    bare = Bare(running, session.session_id)
    await bare.handle.signal("tool_call", payload(step))
    await bare.step(call("c2"))
    view = await eventually(bare.view, lambda view: view["event_count"] == 3)
    assert view["rejected"] == 0
    outcome = await session.close()
    event = attested(running, outcome)[1]
    assert event["payload"]["arguments_sha256"] == sha256(
        json.dumps({"items": items}, separators=(",", ":"), sort_keys=True).encode()
    )


class Down:
    """An embedder that is not there; counts what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def counts(self, text: str) -> Counts:
        self.asked.append(text)
        raise ConnectionError("no embedder")


async def test_case12_nothing_is_told_twice_because_of_a_replay(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """No cache, 20 events, two restarts: each event is once in the journal and on the bus, and what is logged of an
    event, here each of the three times that it could not be embedded, is logged once."""
    product, embedder = uncached(rig), Down()
    session = None
    for numbers in (range(1, 8), range(8, 15), range(15, 21)):
        async with product.worker(embedder=embedder):
            session = session or await rig.open()
            bare = Bare(rig, session.session_id)
            await asyncio.gather(*(bare.submit(said(f"event {number}")) for number in numbers))
            if numbers.stop == 21:
                outcome = await session.close()
    assert session is not None
    journaled = attested(rig, outcome)
    assert [event["payload"]["assessed"] for event in journaled[1:]] == [False] * 20
    published = bus_uids(rig.data.bus, session.session_id)
    assert len(set(published)) == len(published) == 23
    assert published[:21] == uids(journaled)
    told = [
        record for record in caplog.records if record.name.startswith(("activities", "workflows", "temporalio.work"))
    ]
    failures = [record for record in told if "embedding failed" in record.getMessage()]
    assert len(failures) == 60
    assert sorted(embedder.asked) == sorted(f"event {number}" for number in range(1, 21) for _ in range(3))


FRAMINGS = (
    "The payment step keeps failing with a timeout, so I will retry it.",
    "Let me retry the payment step, since it keeps failing with a timeout.",
    "I will retry the payment step because it keeps failing with a timeout.",
    "Since the payment step keeps failing with a timeout, I will retry it.",
    "The payment step keeps failing with a timeout; I will retry it now.",
)


def called(name: str, **arguments: Any) -> Json:
    return {"kind": "model_response", "tool_calls": [{"call_id": "c", "name": name, "arguments": arguments}]}


@pytest.mark.parametrize(
    ("steps", "trips_at"),
    [
        ([called("look", page=number) for number in range(10)], None),
        (
            [
                step
                for n in range(1, 9)
                for step in (called("results", page=n), {"kind": "tool_result", "content": f"result {n}"})
            ],
            None,
        ),
        ([said(text) for text in FRAMINGS], (3, 4, 5)),
        ([called(name) for name in "ABABABAB"], (5,)),
    ],
    ids=["a: other arguments", "b: paging", "c: five framings", "d: A-B-A-B"],
)
async def test_case25_loops_are_seen_and_healthy_agents_are_not_stopped(
    running: Rig, steps: list[Json], trips_at: tuple[int, ...] | None
) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0))
    await session.submit(*steps)
    outcome = await session.close()
    tripped = [n for n, name in enumerate(actions(attested(running, outcome))) if name == "breaker_tripped"]
    assert (tripped[0] in trips_at) if trips_at else (tripped == []), tripped


async def test_case25_without_an_embedder_nothing_is_assessed_and_nothing_trips(rig: Rig) -> None:
    async with rig.worker(embedder=Down()):
        session = await rig.open(breaker=BreakerConfig(min_tokens=0))
        await session.submit(*(said(FRAMINGS[0]) for _ in range(5)))
        outcome = await session.close()
    events = attested(rig, outcome)
    assert [(e["payload"]["action"], e["payload"]["assessed"]) for e in events[1:]] == [("model_response", False)] * 5


async def test_case_copied_context_is_not_counted_twice(running: Rig) -> None:
    """Arize-ai/phoenix#14975."""
    session = await running.open()
    usage = {"prompt_tokens": 11, "completion_tokens": 5, "cached_tokens": 2, "cost_usd_micros": 70}
    answer = said("the answer", usage=usage)
    history = [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": "the answer"}]
    await session.record(
        answer,
        {**answer, "copied": True},
        {"kind": "model_request", "messages": [{**message, "copied": True} for message in history]},
        said("estimated: its prompt is what was not copied"),
        {**answer, "copied": True},
    )
    outcome = await session.close()
    attested(running, outcome)
    totals = outcome.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cached_tokens) == (11, 5, 2)
    assert totals.cost_usd_micros == 70


def test_the_stand_in_is_an_embedder() -> None:
    """What case 12 and 25 stand on: the real one answers where this one fails."""
    with pytest.raises(ConnectionError):
        Down().counts("x")
    assert len(HashEmbedder().counts("x")) == 512
