"""P18: a wake is delivered once, to the life it was meant for, whatever dies or is handed on meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from affidavit import contract
from affidavit.client import SessionHandle
from affidavit.contract import Limits
from affidavit.errors import AffidavitUnavailable, SessionRefused
from affidavit.steps import step_schemas
from affidavit.waking_api import WakeNote, WakeToDeliver
from tests.support.bare import Bare, Json, call
from tests.support.foreign import json_payload
from tests.support.grants import book as book
from tests.support.oracle import sha256
from tests.support.processes import WORKERS, environment, line, process
from tests.support.rig import AGENT, Rig, actions
from tests.support.sending import Sending
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workflows import waking

HELD_WORKER = (str(Path(__file__).parents[1] / "support" / "held_worker.py"),)


def name(rig: Rig, text: str) -> str:
    """A session id of this test's own."""
    return f"{text}-{rig.settings.task_queue[5:13]}"


async def woken(session: SessionHandle, count: int) -> list[WakeNote]:
    """Wait for as many unacknowledged wakes."""
    answer = await eventually(session.wakes_after, lambda found: len(found.wakes) >= count, within=LIMIT_S)
    assert len(answer.wakes) == count
    return answer.wakes


def wakes_in(events: list[Json]) -> list[Json]:
    return [event for event in events if event["payload"]["action"] == "wake"]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Sending:
    return Sending(monkeypatch)


@pytest_asyncio.fixture
async def family(running: Rig, book: str) -> AsyncIterator[tuple[SessionHandle, SessionHandle]]:
    """A parent, and a child whose wake target it is."""
    parent = await running.open(session_id=name(running, "parent"))
    child = await running.open(originator=parent.session_id, wake_target=parent.session_id)
    yield parent, child
    await child.close()
    await parent.close()


async def test_p18_a_wake_is_delivered_once_as_a_step_with_a_wake_id(
    running: Rig, family: tuple[SessionHandle, SessionHandle]
) -> None:
    parent, child = family
    sent = await child.wake({"done": True, "big": 2**60})
    (note,) = await woken(parent, 1)
    (out,), (came,) = wakes_in(running.journal(child.session_id)), wakes_in(running.journal(parent.session_id))
    assert out["metadata"]["sequence"] == sent.first_sequence == 1
    assert (out["class_name"], out["status_id"], came["class_name"]) == ("agent.session", 1, "agent.session")
    assert out["payload"]["wake_id"] == came["payload"]["wake_id"] == note.wake_id == out["metadata"]["uid"]
    assert (out["payload"]["target"], "source" in out["payload"]) == (parent.session_id, False)
    source = {"session_id": child.session_id, "generation": child.generation, "sequence": 1}
    assert came["payload"]["source"] == source == note.source.model_dump()
    assert (note.sequence, note.input_omitted) == (1, False)
    assert note.input["done"] is True
    assert note.input["big"]["text"] == "1152921504606846976"  # as the capture keeps it
    capture = running.captures(parent.session_id)[1]
    assert (capture["input"], capture["wake_id"]) == (note.input, note.wake_id)
    line = (running.folder(parent.session_id) / "captures/000000000001.ndjson").read_bytes().splitlines()[0]
    assert came["payload"]["capture_sha256"] == sha256(line)
    assert (await parent.view()).steps == 1

    # Acknowledged once or twice, it is gone; others stay.
    await child.wake("again")
    assert [each.input for each in (await woken(parent, 2))[1:]] == ["again"]
    assert [each.sequence for each in (await parent.wakes_after(1)).wakes] == [2]
    for _ in range(2):
        await parent.ack_wake(1)
        assert [each.sequence for each in (await parent.wakes_after()).wakes] == [2]
    assert (await parent.wakes_after()).unlisted == 0


async def test_p18_a_missing_target_keeps_the_event_and_errors_nowhere(running: Rig, book: str) -> None:
    over = await running.open()
    await over.close()
    session = await running.open()
    for target in (None, "never-opened", over.session_id, "no session id", f"{session.session_id}#another-life", "#"):
        await session.wake("anybody?", target)
    await session.submit(call("c1"))
    assert actions(running.journal(session.session_id)) == ["opened", *["wake"] * 6, "tool_call"]
    assert "target" not in running.journal(session.session_id)[1]["payload"]
    answer = await session.wakes_after()
    assert (answer.wakes, answer.target, answer.undelivered) == ([], None, 0)
    outcome = await session.close()
    assert (outcome.status, outcome.rejected, outcome.steps) == ("closed", 0, 7)


async def test_p18_a_delivery_that_is_repeated_arrives_once(
    running: Rig, family: tuple[SessionHandle, SessionHandle], sending: Sending
) -> None:
    """The activity dies after the target has the wake, and is tried again."""
    parent, child = family
    died: list[str] = []

    def die_once(wake: WakeToDeliver) -> None:
        if wake.wake_id not in died:
            died.append(wake.wake_id)
            raise RuntimeError("the worker died")

    sending.after = die_once
    await child.wake("one")
    await woken(parent, 1)  # so that the two are not in one round, which would repeat the first twice
    await child.wake("two")
    notes = await woken(parent, 2)
    assert [note.input for note in notes] == ["one", "two"]
    await eventually(parent.view, lambda view: view.repeated == 2)
    assert [event["payload"]["wake_id"] for event in wakes_in(running.journal(parent.session_id))] == died
    assert len(sending.sent) == 4


async def test_p18_wakes_of_one_life_keep_their_order_however_it_is_spelled(
    running: Rig, family: tuple[SessionHandle, SessionHandle], sending: Sending
) -> None:
    """An outage between the two: the second waits for the first, or the first would be told as delivered and lost."""
    parent, child = family
    tried: list[str] = []

    def away_once(wake: WakeToDeliver) -> None:
        tried.append(wake.wake_id)
        if len(tried) == 1:
            raise AffidavitUnavailable("a moment's outage")

    sending.before = away_once
    await child.record(
        {"kind": "wake", "input": "first", "target": parent.session_id},
        {"kind": "wake", "input": "second", "target": f"{parent.session_id}#{parent.generation}"},
    )
    assert [note.input for note in await woken(parent, 2)] == ["first", "second"]
    assert len(tried) == 3
    assert tried[0] == tried[1] != tried[2]
    assert (await child.wakes_after()).undelivered == 0


async def test_p18_wakes_survive_a_worker_that_is_gone_and_rollovers_of_both_sides(
    rig: Rig, book: str, sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True

    def unreachable(_: WakeToDeliver) -> None:
        if away:
            raise AffidavitUnavailable("the target does not answer")

    sending.before = unreachable
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 4)
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 0.3)
    async with rig.worker():
        parent = await rig.open()
        child = await rig.open(originator=parent.session_id, wake_target=parent.session_id)
        await child.record(*({"kind": "wake", "input": number} for number in range(3)))
        await child.flush()
        for number in range(5):
            await Bare(rig, child.session_id).step(call(f"c{number}"))
        await eventually(child.view, lambda view: view.runs >= 2, within=LIMIT_S)
        assert (await parent.wakes_after()).wakes == []
    async with rig.worker():
        away = False
        notes = await woken(parent, 3)
        assert [note.input for note in notes] == [0, 1, 2]
        # The target's next runs know what they have had, and what is not acknowledged.
        for number in range(5):
            await Bare(rig, parent.session_id).step(call(f"c{number}"))
        await eventually(parent.view, lambda view: view.runs >= 2, within=LIMIT_S)
        again = {"kind": "wake", "input": 0, "wake_id": notes[0].wake_id, "source": notes[0].source.model_dump()}
        await parent._client.temporal.get_workflow_handle(parent.session_id).signal("woken", json_payload(again))
        await eventually(parent.view, lambda view: view.repeated == 1)
        assert (await parent.wakes_after()).wakes == notes
        await parent.ack_wake(notes[-1].sequence)
        assert (await child.close()).status == "closed"
        assert (await parent.close()).status == "closed"
    assert len(wakes_in(rig.journal(parent.session_id))) == 3


async def test_p18_wakes_arrive_once_though_the_worker_is_killed(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    """SIGKILL when the target is about to journal the first wake, with others on their way; then another process."""
    target_id, log = name(rig, "killed"), tmp_path / "worker.log"
    held = environment(rig, server.address, HELD=json.dumps({target_id: "journal before"}))
    async with process(HELD_WORKER, held, log) as first:
        target = await rig.open(session_id=target_id)
        session = await rig.open(wake_target=target_id)
        await session.record(*({"kind": "wake", "input": number} for number in range(4)))
        assert await line(first) == f"held {target_id}"
        first.kill()
        await first.wait()
    async with process(WORKERS, environment(rig, server.address), log):
        assert [note.input for note in await woken(target, 4)] == [0, 1, 2, 3]
        assert (await session.close()).status == "closed"
        assert (await target.close()).status == "closed"
    sent, came = wakes_in(rig.journal(session.session_id)), wakes_in(rig.journal(target_id))
    assert [event["payload"]["wake_id"] for event in came] == [event["metadata"]["uid"] for event in sent]


async def test_p18_a_later_life_of_the_id_never_gets_a_wake_of_the_former(
    running: Rig, book: str, sending: Sending
) -> None:
    target = name(running, "target")
    first = await running.open(session_id=target)
    located = asyncio.Event()

    def held(wake: WakeToDeliver) -> None:
        if wake.generation == first.generation:
            located.set()
            if not released:
                raise AffidavitUnavailable("the target does not answer")

    released: list[bool] = []
    sending.before = held
    session = await running.open()
    await session.wake("for the first life", target)  # by its id; bound to the life that lives now
    async with asyncio.timeout(LIMIT_S):
        await located.wait()
    await first.close()
    second = await running.client.open({"agent": AGENT}, session_id=target, reopen=True)
    assert second.generation != first.generation
    released.append(True)
    await session.wake("for the first life", f"{target}#{first.generation}")
    await session.wake("for whoever lives", target)
    await session.wake("for the second life", f"{target}#{second.generation}")
    assert [note.input for note in await woken(second, 2)] == ["for whoever lives", "for the second life"]
    outcome = await session.close()
    assert (outcome.status, (await session.wakes_after()).undelivered) == ("closed", 0)
    assert (await second.close()).event_count == 3


async def test_p18_a_target_that_takes_nothing_delays_nobody_for_long(
    running: Rig, book: str, sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: the others get theirs at once; what is given up is counted."""
    monkeypatch.setattr(waking, "WAKE_LAPSE_S", 0.5)
    deaf, lively, session = await running.open(), await running.open(), await running.open()

    def silent(wake: WakeToDeliver) -> None:
        if wake.target == deaf.session_id:
            raise AffidavitUnavailable("the target does not answer")

    sending.before = silent
    await session.wake("anybody?", deaf.session_id)
    await session.wake("hello", lively.session_id)
    assert [note.input for note in await woken(lively, 1)] == ["hello"]
    await session.submit(call("c1"))
    await eventually(session.wakes_after, lambda answer: answer.undelivered == 1)
    assert (await session.close()).status == "closed"
    assert (await deaf.close()).event_count == 1
    await lively.close()


async def test_p18_many_wakes_of_one_record_arrive_in_order_before_the_session_ends(running: Rig, book: str) -> None:
    targets = [await running.open() for _ in range(3)]
    session = await running.open(content="digest")  # nothing of it is in the store
    steps = [{"kind": "wake", "input": n, "target": targets[n % 3].session_id} for n in range(90)]
    await session.record(*steps)
    assert (await session.close()).status == "closed"
    for place, target in enumerate(targets):
        events = wakes_in(running.journal((await target.close()).session_id))
        assert [event["payload"]["source"]["sequence"] for event in events] == list(range(1 + place, 91, 3))


async def test_p18_what_is_no_wake_is_rejected(running: Rig, book: str) -> None:
    session = await running.open()
    bare, source = Bare(running, session.session_id), {"session_id": "s", "generation": "g", "sequence": 1}
    good = {"kind": "wake", "input": 1, "wake_id": "0198a7c0-0000-7000-8000-00000000000a", "source": source}
    bad: list[Any] = [
        {**good, "wake_id": "x"},
        {**good, "source": {**source, "generation": "../x"}},
        {**good, "producer": "p", "producer_seq": 1},
        {"kind": "wake", "input": 1},
        5,
    ]
    for message in bad:
        await bare.handle.signal("woken", json_payload(message))
    for argument in ("x", -1, True, 2**53):
        await bare.handle.signal("ack_wake", json_payload(argument))
    await bare.handle.signal("wake", json_payload(good))  # a runtime reports no wake of another session
    await bare.handle.signal("wake", json_payload({"kind": "wake", "input": "x" * 66_000}))
    view = await eventually(session.view, lambda view: view.event_count == 12)
    assert view.rejected == 11
    reasons = [event["payload"]["reason"] for event in running.journal(session.session_id)[1:]]
    assert reasons[-1].startswith("a wake of 660")
    with pytest.raises(SessionRefused, match="over the limit of 65536") as refused:
        await session.wake("x" * 66_000)
    assert refused.value.type == "BadRequest"
    assert (await session.close()).status == "closed"


async def test_p16_a_wake_target_that_was_deleted_is_cleared_on_the_next_wake(
    running: Rig, family: tuple[SessionHandle, SessionHandle]
) -> None:
    parent, child = family
    await child.wake("one")
    await woken(parent, 1)
    deleted = await running.client.grants.delete_holder(parent.session_id)
    assert (deleted.revoked, deleted.orphaned) == ([child.session_id], [child.session_id])
    assert (await child.wakes_after()).target == parent.session_id
    await child.wake("two")
    await eventually(child.wakes_after, lambda answer: answer.target is None)
    await child.wake("three")
    assert [event["payload"].get("target") for event in wakes_in(running.journal(child.session_id))] == [
        parent.session_id,
        parent.session_id,
        None,
    ]
    assert len((await parent.wakes_after()).wakes) == 1
    assert (await child.view()).state == "open"


async def test_p18_a_wake_is_no_sign_of_life_of_its_targets_runtime(running: Rig, book: str) -> None:
    """A session that others wake closes itself all the same when its own runtime is silent (F6)."""
    target = await running.open(limits=Limits(idle_close_s=2))
    session = await running.open()
    ending = asyncio.create_task(target.result())
    while not ending.done():
        await session.wake("still there?", target.session_id)
        await asyncio.sleep(0.3)
    assert (await ending).stop_reason == "Session Closed"
    await session.close()


def test_p18_the_step_has_a_schema() -> None:
    schema = step_schemas()["wake"]
    assert schema["required"] == ["kind", "input"]
    assert "target" in schema["properties"]
    assert json.dumps(schema)


async def test_p18_a_forged_wake_silences_none_of_its_alleged_sender(
    running: Rig, family: tuple[SessionHandle, SessionHandle]
) -> None:
    parent, child = family
    source = {"session_id": child.session_id, "generation": child.generation, "sequence": 2**53 - 1}
    forged = {"kind": "wake", "input": "forged", "wake_id": "00000000-0000-0000-0000-000000000000", "source": source}
    target = running.client.temporal.get_workflow_handle(parent.session_id)
    await target.signal("woken", json_payload(forged))
    await woken(parent, 1)
    await child.wake("real")
    assert [note.input for note in await woken(parent, 2)] == ["forged", "real"]
    assert len(wakes_in(running.journal(parent.session_id))) == 2
