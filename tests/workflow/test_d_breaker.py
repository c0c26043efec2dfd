"""Behaviours D1-D3, D5 and D6: the loop breaker in a running session. Its formula is tested as a function elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from affidavit.contract import BreakerConfig
from tests.support.foreign import json_payload
from tests.support.oracle import attested, jcs_sha256
from tests.support.rig import Rig, actions
from tests.support.stand_ins import WatchedEmbedder

GOLDEN = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["breaker"]
NO_FLOOR = BreakerConfig(min_tokens=0, window=3)

Step = dict[str, Any]
Verdict = tuple[str, float | None, int | None]


def said(text: str, tokens: int = 0) -> Step:
    return {"kind": "model_response", "text": text, "usage": {"prompt_tokens": tokens, "completion_tokens": 0}}


def called(*calls: tuple[str, Any], text: str | None = None) -> Step:
    announced = [{"call_id": f"c{n}", "name": name, "arguments": value} for n, (name, value) in enumerate(calls)]
    return {"kind": "model_response", "tool_calls": announced, **({} if text is None else {"text": text})}


async def run(rig: Rig, config: BreakerConfig, *records: list[Step]) -> list[dict[str, Any]]:
    """A session's events for these records, but for the opening one, with all its evidence checked."""
    session = await rig.open(breaker=config)
    handle = rig.client.temporal.get_workflow_handle(session.session_id)
    for record in records:  # each as a signal of its own; the client would send them together
        await handle.signal("record", json_payload({"steps": record}))
    return attested(rig, await session.close())[1:]


def tripped_at(events: list[dict[str, Any]]) -> int | None:
    names = actions(events)
    assert set(names) <= {"model_response", "breaker_tripped"}
    return names.index("breaker_tripped") if "breaker_tripped" in names else None


@pytest.mark.parametrize("family", GOLDEN["loop_families"], ids=lambda family: family["kind"] + str(family["family"]))
async def test_d1_loop_families_trip_by_step_3(running: Rig, family: dict[str, Any]) -> None:
    frames = GOLDEN["frames"] if family["kind"] == "framed" else ["{}"] * 8
    steps = [said(frame.format(family["seed_text"]), tokens=400) for frame in frames[:5]]
    events = await run(running, BreakerConfig(delta_epsilon=0.3, window=3, min_tokens=500), steps)
    assert tripped_at(events) == family["trip_step_index"] == 3
    trip = events[3]["payload"]
    assert trip["delta"] == pytest.approx(family["deltas_until_trip"][3], abs=GOLDEN["delta_tolerance"])
    assert (trip["streak"], trip["tokens_consumed"]) == (3, 1600)


@pytest.mark.parametrize("session", GOLDEN["progressing_sessions"], ids=lambda session: str(session["session"]))
async def test_d1_progressing_sessions_never_trip(running: Rig, session: dict[str, Any]) -> None:
    steps = [said(text, tokens=GOLDEN["progress_step_tokens"]) for text in session["steps"]]
    events = await run(running, BreakerConfig(min_tokens=500), steps)
    assert tripped_at(events) is None
    assert [event["payload"]["assessed"] for event in events] == [True] * len(session["steps"])


@pytest.mark.parametrize(
    ("steps", "trip"),
    [
        ([called(("look", {"at": place})) for place in "ABABABAB"], 4),
        ([called(("look", {"at": place})) for place in "ABCABCABC"], 5),
        ([called(("look", {"at": "A"}))] * 5, 3),
        ([called(("look", '{"b":1, "a":2}')), *[called(("look", {"a": 2.0, "b": 1}))] * 3], 3),
        ([called(("search", {"query": number})) for number in range(10)], None),
        ([called(("list", {"page": n}), text="Reading the next page of results.") for n in range(1, 9)], None),
        (
            [
                called(("status", {}), text=text)
                for text in GOLDEN["progressing_sessions"][0]["steps"] + GOLDEN["progressing_sessions"][2]["steps"]
            ],
            None,
        ),
        ([said(" \u3000\n")] * 8, None),
    ],
    ids=[
        "A-B-A-B",
        "cycle of three",
        "same call",
        "same call written otherwise",
        "ten different calls",
        "paging",
        "repeated call with new text",
        "blank texts",
    ],
)
async def test_d2_sequences(running: Rig, steps: list[Step], trip: int | None) -> None:
    assert tripped_at(await run(running, NO_FLOOR, steps)) == trip


@pytest.mark.parametrize("content", ["store", "full"])
async def test_d3_a_trip_is_recorded_with_what_it_replaces_and_loses_no_tokens(running: Rig, content: Any) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0, window=1, action="observe"), content=content)
    response = {
        **called(("look", {"at": "A"}), text="Looking again"),
        "model": "m-1",
        "finish_reason": "tool_calls",
        "usage": {"prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 5, "cost_usd_micros": 900},
        "attempt_id": "a-2",
        "producer": "p",
        "producer_seq": 2,
    }
    for attempt in ("a-1", "a-2"):
        await session.admit(attempt)
    await session.record({**response, "attempt_id": "a-1", "producer_seq": 1}, response)
    outcome = await session.close()

    _, plain, trip = attested(running, outcome)
    assert (trip["class_name"], trip["class_uid"], trip["type_uid"]) == ("agent.stop_reason", 9902, 990201)
    assert (trip["severity_id"], trip["status_id"]) == (4, 2)
    assert (trip["stop_reason_id"], trip["stop_reason"]) == (91, "Loop Detected")
    metrics = {"prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 5}
    assert plain["metrics"] == trip["metrics"] == metrics
    replaced = {
        "action": "model_response",
        "model": "m-1",
        "finish_reason": "tool_calls",
        "tool_calls": 1,
        "assessed": True,
        "cost_usd_micros": 900,
    }
    assert trip["payload"] == {
        "action": "breaker_tripped",
        "delta": 0.0,
        "streak": 1,
        "tokens_consumed": 84,
        "breaker_action": "observe",
        "replaced": replaced,
        "attempt_id": "a-2",
        "producer": "p",
        "producer_seq": 2,
        "capture_sha256": jcs_sha256(response),
        **({"text": "Looking again"} if content == "full" else {}),
    }
    kept = {key: value for key, value in plain["payload"].items() if key in replaced}
    assert kept == replaced
    assert (plain["stop_reason_id"], plain["stop_reason"]) == (3, "tool_calls")

    assert outcome.totals.prompt_tokens == 60
    assert outcome.totals.completion_tokens == 24
    assert outcome.totals.cached_tokens == 10
    assert outcome.totals.cost_usd_micros == 1800
    assert (outcome.stop_reason_id, outcome.stop_reason) == (91, "Loop Detected")


async def test_d3_a_tripped_breaker_stays_open_until_it_is_reset_and_the_reset_is_an_event(running: Rig) -> None:
    session = await running.open(breaker=BreakerConfig(min_tokens=0, window=1))
    await session.submit(said("the same"))
    assert (await session.submit(said("the same"))).verdict == "tripped"
    assert (await session.submit(said("something else entirely"))).breaker_open
    await session.reset_breaker(by="operator", reason="looked at it")
    view = await session.view()
    assert (view.breaker_open, view.breaker_streak, view.breaker_tokens) == (False, 0, 0)
    # Nothing is remembered: what looped before is the first of its kind.
    assert (await session.submit(said("the same"))).verdict == "progressing"
    events = attested(running, await session.close())
    assert actions(events)[4] == "breaker_reset"
    assert events[4]["payload"] == {"action": "breaker_reset", "by": "operator", "reason": "looked at it"}


def down(text: str) -> None:
    if "down" in text:
        raise ConnectionError("embedding service unavailable")


async def test_d5_a_failed_embedding_is_not_assessed_and_never_a_trip(rig: Rig) -> None:
    asked: list[str] = []

    def embedding(text: str) -> None:
        asked.append(text)
        down(text)

    async with rig.worker(embedder=WatchedEmbedder(embedding)):
        session = await rig.open(breaker=NO_FLOOR)
        texts = ["the same", "the same", "down", "down", "down", "down", "the same", "the same"]
        results = [await session.submit(said(text)) for text in texts]
        outcome = await session.close()
    events = attested(rig, outcome)[1:]
    failed = "not_assessed"
    assert [result.verdict for result in results] == [
        "progressing",
        "suspicious",
        failed,
        failed,
        failed,
        failed,
        "suspicious",  # the streak stands where it was
        "tripped",
    ]
    assert asked.count("down") == 4 * 3  # three attempts each
    assert [event["payload"]["assessed"] for event in events[:7]] == [True, True, *[False] * 4, True]
    assert events[7]["payload"]["streak"] == 3


async def test_d5_without_any_embedding_nothing_ever_trips(rig: Rig) -> None:
    def broken(_: str) -> None:
        raise MemoryError("no model")

    async with rig.worker(embedder=WatchedEmbedder(broken)):
        session = await rig.open(breaker=BreakerConfig(min_tokens=0, window=1))
        await session.record(*[called(("look", {}), text="the same")] * 20)
        outcome = await session.close()
    events = attested(rig, outcome)[1:]
    assert tripped_at(events) is None
    assert [event["payload"]["assessed"] for event in events] == [False] * 20


# -- D6 -------------------------------------------------------------------------------------------------

LOOP = GOLDEN["loop_families"][0]["seed_text"]
NEWS = GOLDEN["progressing_sessions"][0]["steps"]


async def test_d6_the_streak_restarts_after_progress(running: Rig) -> None:
    steps = [said(text) for text in [LOOP, LOOP, LOOP, NEWS[1], LOOP, LOOP, LOOP]]
    # Two of the same, then news, then three of the same: only the last one is the third in a row.
    assert tripped_at(await run(running, NO_FLOOR, steps)) == 6


async def test_d6_the_token_floor_holds_a_streak_and_releases_it_on_the_step_that_crosses_it(running: Rig) -> None:
    config = BreakerConfig(window=2, min_tokens=1000)
    events = await run(running, config, [said(LOOP, tokens=199)] * 5 + [said(LOOP, tokens=5)])
    assert tripped_at(events) == 5
    assert events[5]["payload"]["streak"] == 5
    assert events[5]["payload"]["tokens_consumed"] == 1000


STEPS = [
    said(LOOP, 200),
    said(NEWS[0], 200),
    called(("look", {"at": 1}), text=LOOP),
    said(LOOP, 200),
    {"kind": "tool_call", "call_id": "c", "tool": "look", "allowed": True},
    called(("look", {"at": 1})),
    said("down", 100),
    said(LOOP, 200),
    {"kind": "model_response", "text": LOOP, "copied": True},
    said(LOOP, 200),
    said(NEWS[1], 200),
    *[said(f"I will {LOOP}", 50)] * 3,
]


def told(events: list[dict[str, Any]]) -> list[Verdict]:
    """What the events say of the breaker: action with assessed, delta, streak."""
    answers: list[Verdict] = []
    for event in events:
        payload = event["payload"]
        assessed = payload.get("replaced", payload).get("assessed")
        answers.append((f"{payload['action']} {assessed}", payload.get("delta"), payload.get("streak")))
    return answers


async def test_d6_verdicts_do_not_depend_on_how_the_steps_were_cut_or_replayed(rig: Rig) -> None:
    config = BreakerConfig(window=3, min_tokens=500)
    cuts = {
        "one by one": [[step] for step in STEPS],
        "all in one": [STEPS],
        "in pieces": [STEPS[:3], STEPS[3:4], STEPS[4:9], STEPS[9:]],
    }
    results: dict[str, list[Verdict]] = {}
    async with rig.worker(embedder=WatchedEmbedder(down)):
        for name, records in cuts.items():
            results[name] = told(await run(rig, config, *records))
        # One by one, and each through its own batch.
        session = await rig.open(breaker=config)
        for step in STEPS:
            await session.submit(step)
        results["submitted"] = told(attested(rig, await session.close())[1:])
    rig.settings = rig.settings.model_copy(update={"max_cached_workflows": 0})
    async with rig.worker(embedder=WatchedEmbedder(down)):
        results["without cache"] = told(await run(rig, config, *cuts["in pieces"]))

    expected: list[Verdict] = [
        ("model_response True", None, None),  # the first of all
        ("model_response True", None, None),
        ("model_response True", None, None),  # an old text, but a new call
        ("model_response True", None, None),  # streak 1
        ("tool_call None", None, None),
        ("model_response True", None, None),  # the call again, without text: streak 2
        ("model_response False", None, None),  # not assessed: streak 2
        ("breaker_tripped True", 0.0, 3),
        ("model_response False", None, None),  # copied
        ("breaker_tripped True", 0.0, 4),
        ("model_response True", None, None),  # news
        ("model_response True", None, None),
        ("model_response True", None, None),
        ("breaker_tripped True", 0.0, 3),
    ]
    for name, result in results.items():
        assert (name, result) == (name, expected)
