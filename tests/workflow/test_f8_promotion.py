"""F8: a receipt afterwards, by a workflow that knows the evidence store alone. The sessions here lie in the store; no
server has heard of them, as after Temporal has forgotten them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from activities.buses.base import BusRecord
from activities.errors import PermanentPublishError, TransientError
from activities.sealed import SealedEvidence
from activities.trajectory import TrajectoryActivity
from affidavit.contract import PromotionResult, promotion_id
from affidavit.errors import SessionRefused
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.scalars import BadSessionId, check_session_id
from affidavit.evidence.verify import verify_with_events
from tests.support import proof
from tests.support.foreign import json_payload, payload
from tests.support.halves import bus_of, journaling, signing, store_of
from tests.support.processes import WORKERS, environment, line, process
from tests.support.rig import Rig
from tests.support.stored import StoredSession
from tests.support.taps import LIMIT_S, Outage, TapBus
from tests.support.waiting import eventually
from workers.devserver import DevServer

STEPS: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}]},
    {"kind": "model_response", "text": "It is here.", "finish_reason": "stop", "usage": {"prompt_tokens": 9}},
]
HELD_WORKER = (str(Path(__file__).parents[1] / "support" / "held_worker.py"),)


def stored(rig: Rig, *, session_id: str | None = None) -> StoredSession:
    """An unsigned session that has ended: events 0 | 1 2, closed 3, a trajectory of two steps."""
    key = (rig.data.keys / "journal.key").read_bytes()
    session = StoredSession(SealedEvidence(store_of(rig), [key]), session_id or f"unsigned-{uuid.uuid4()}")
    session.report(*STEPS)
    session.run(TrajectoryActivity(session.evidence).write, session.claims())
    session.end()
    return session


async def promoted(rig: Rig, session: StoredSession) -> PromotionResult:
    return await rig.client.promote(session.life.session_id, session.life.generation)


async def refusal(rig: Rig, session: StoredSession) -> tuple[str, str]:
    with pytest.raises(SessionRefused) as refused:
        await promoted(rig, session)
    return refused.value.type, refused.value.reason


def receipt_on_disk(rig: Rig, session: StoredSession) -> Any:
    return json.loads((rig.folder(session.life.session_id) / "receipt.json").read_text())


def check_announced_once(rig: Rig, session: StoredSession) -> dict[str, Any]:
    """The receipt's event stands in the store as closed + 1 and on the bus once; returns it."""
    folder = rig.folder(session.life.session_id)
    closed, announced = proof.lifecycle(folder)
    assert (closed["metadata"]["sequence"], announced["metadata"]["sequence"]) == (3, 4)
    assert announced["payload"]["receipt"] == receipt_on_disk(rig, session)
    assert rig.bus(session.life.session_id) == [announced]
    assert proof.bus_uids(rig.data.bus, session.life.session_id) == proof.uids([announced])
    return announced


async def test_f8_a_promotion_gives_a_receipt_and_publishes_its_event(running: Rig) -> None:
    session = stored(running)
    result = await promoted(running, session)
    assert (result.session_id, result.generation) == (session.life.session_id, session.life.generation)
    assert result.receipt == receipt_on_disk(running, session)
    assert result.published
    ring = (running.data.keys / "public.json").read_bytes()
    proof.check_signature(result.receipt, json.loads(ring))
    check_announced_once(running, session)
    key = (running.data.keys / "journal.key").read_bytes()
    folder = running.folder(session.life.session_id)
    assert verify_with_events(None, folder, Keyring.parse(ring), [key]).trusted


async def test_f8_eight_at_once_give_one_receipt(running: Rig) -> None:
    session = stored(running)
    results = await asyncio.gather(*(promoted(running, session) for _ in range(8)))
    assert [result.receipt for result in results] == [receipt_on_disk(running, session)] * 8
    check_announced_once(running, session)


async def test_f8_a_repeat_gives_the_same_receipt_and_no_second_event(running: Rig) -> None:
    session = stored(running)
    first = await promoted(running, session)
    assert await promoted(running, session) == first
    check_announced_once(running, session)


async def test_h3_a_promotion_that_is_replayed_on_every_task_ends_like_any_other(rig: Rig) -> None:
    changed = Rig(rig.client, rig.data, rig.settings.model_copy(update={"max_cached_workflows": 0}))
    session = stored(rig)
    async with changed.worker():
        assert (await promoted(rig, session)).published
    check_announced_once(rig, session)


async def test_f8_a_signed_session_gives_its_own(running: Rig) -> None:
    session = await running.open()
    await session.record(*STEPS)
    outcome = await session.close()
    assert await session.promote() == outcome.receipt
    assert await running.client.handle(session.session_id).promote() == outcome.receipt
    assert [event["payload"]["action"] for event in running.bus(session.session_id)].count("receipt") == 1


async def test_f8_promote_closes_and_awaits_first(running: Rig) -> None:
    session = await running.open()
    await session.record(*STEPS)
    receipt = await session.promote()
    assert session.outcome is not None
    assert (session.outcome.status, session.outcome.receipt) == ("closed", receipt)


async def test_f8_a_session_that_has_not_ended_is_refused(running: Rig) -> None:
    session = await running.open()
    with pytest.raises(SessionRefused, match="session has not ended") as refused:
        await running.client.promote(session.session_id, str(session.generation))
    assert refused.value.type == "SessionNotEnded"
    await session.close()


def _one_byte(folder: Path) -> None:
    path = folder / "trajectory.json"
    path.write_bytes(path.read_bytes().replace(b"needle", b"noodle"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(_one_byte, "trajectory.json is not the one that its provenance names", id="one byte changed"),
        pytest.param(
            lambda folder: (folder / "trajectory.provenance.json").unlink(),
            "trajectory.provenance.json is not in the evidence store",
            id="provenance missing",
        ),
        pytest.param(
            lambda folder: (folder / "trajectory.json").unlink(),
            "trajectory.json is not in the evidence store",
            id="trajectory missing",
        ),
    ],
)
async def test_f8_what_was_changed_on_disk_is_refused_with_the_reason(
    running: Rig, change: Callable[[Path], object], reason: str
) -> None:
    session = stored(running)
    folder = running.folder(session.life.session_id)
    kept = {path: path.read_bytes() for path in folder.glob("traj*")}
    change(folder)
    assert await refusal(running, session) == ("IntegrityError", reason)
    assert not (folder / "receipt.json").exists()
    assert running.bus(session.life.session_id) == []
    # What was put back is attested: a refused promotion leaves nothing behind.
    for path, data in kept.items():
        path.write_bytes(data)
    assert (await promoted(running, session)).published


async def test_f8_killed_between_signing_and_publishing_it_goes_on_with_the_same_receipt_and_uid(
    server: DevServer, rig: Rig, tmp_path: Path
) -> None:
    """Four promotions in one worker process, each held at its place; one SIGKILL; another process."""
    places = ["receipt.json after", "lifecycle before", "lifecycle after", "agent.receipt before"]
    sessions = [stored(rig) for _ in places]
    ids = {session.life.session_id: place for session, place in zip(sessions, places, strict=True)}
    log = tmp_path / "worker.log"
    async with process(HELD_WORKER, environment(rig, server.address, HELD=json.dumps(ids)), log) as first:
        promoting = [asyncio.create_task(promoted(rig, session)) for session in sessions]
        assert {await line(first) for _ in ids} == {f"held {session_id}" for session_id in ids}
        signed = [receipt_on_disk(rig, session) for session in sessions]
        written = [proof.lifecycle(rig.folder(session_id))[1:] for session_id in ids]
        assert [len(events) for events in written] == [0, 0, 1, 1]
        assert not any(rig.bus(session_id) for session_id in ids)
        first.kill()
    async with process(WORKERS, environment(rig, server.address), log):
        # A worker has to start, and notice after its heartbeat timeout what the other one has left.
        results = await asyncio.wait_for(asyncio.gather(*promoting), 2 * LIMIT_S)
    assert [result.receipt for result in results] == signed
    for session, events in zip(sessions, written, strict=True):
        announced = check_announced_once(rig, session)
        assert events in ([], [announced])
        # Receipt id and uid were the workflow's, fixed in its history before the signer was asked.
        request = await first_input(rig, promotion_id(session.life.session_id, session.life.generation))
        assert announced["payload"]["receipt_id"] == request["receipt_id"]
        assert announced["metadata"]["uid"] == request["event_uid"]


async def first_input(rig: Rig, workflow_id: str) -> Any:
    """What a workflow gave to the first activity that it called."""
    history = await rig.client.temporal.get_workflow_handle(workflow_id).fetch_history()
    scheduled = (event.activity_task_scheduled_event_attributes for event in history.events)
    return next(json.loads(each.input.payloads[0].data) for each in scheduled if each.input.payloads)


async def test_f4_with_the_bus_down_the_promotion_waits_and_publishes_once(rig: Rig) -> None:
    session = stored(rig)
    outage = Outage(lambda: TransientError("the bus is down"))
    async with rig.worker(bus=TapBus(bus_of(rig), before=lambda _: outage.strike())):
        promoting = asyncio.create_task(promoted(rig, session))
        await outage.met_times(3)
        assert not promoting.done()
        outage.end()
        assert (await promoting).published
    check_announced_once(rig, session)


async def test_f4_with_the_signer_down_the_promotion_waits(rig: Rig) -> None:
    session = stored(rig)
    async with journaling(rig):
        promoting = asyncio.create_task(promoted(rig, session))
        await asyncio.sleep(0.5)
        assert not promoting.done()
        async with signing(rig):
            assert (await promoting).published
    check_announced_once(rig, session)


async def test_e4_what_the_bus_refuses_for_good_is_said_in_the_result(rig: Rig) -> None:
    session = stored(rig)

    def refuse(_: Sequence[BusRecord]) -> None:
        raise PermanentPublishError("no such topic")

    async with rig.worker(bus=TapBus(bus_of(rig), before=refuse)):
        result = await promoted(rig, session)
    assert (result.receipt, result.published) == (receipt_on_disk(rig, session), False)


# -- the start argument -------------------------------------------------------------------------------

LIFE = {"session_id": "s-1", "generation": "g-1"}
BAD: dict[str, tuple[list[Any], str]] = {
    "none": ([], "invalid promotion: encoding unknown is not json/plain"),
    "no object": ([json_payload("x")], "invalid promotion: Input should be"),
    "a key missing": ([json_payload({"session_id": "s-1"})], "invalid promotion: generation: Field required"),
    "a key too many": ([json_payload({**LIFE, "head": "00"})], "invalid promotion: head: Extra inputs"),
    "no session id": ([json_payload({**LIFE, "session_id": "a#b"})], "session id must not contain '#'"),
    "no run id": ([json_payload({**LIFE, "generation": "../.."})], "generation is not a run id"),
    "no JSON": ([payload("{")], "invalid promotion: not JSON"),
    "no UTF-8": ([payload(b"\xff")], "invalid promotion: not UTF-8"),
    "of another encoding": ([payload(b"x", "binary/odd")], "encoding binary/odd is not json/plain"),
    "of another workflow id": ([json_payload({**LIFE, "generation": "g-2"})], "the workflow id is not the one"),
    "two": ([json_payload(LIFE), json_payload(LIFE)], "positional arguments"),
    "two that do not decode": ([payload("{"), payload(b"x", "binary/odd")], ""),
}


@pytest.mark.parametrize("name", BAD)
async def test_a6_a_bad_argument_fails_at_once_with_a_reason(running: Rig, name: str) -> None:
    arguments, reason = BAD[name]
    handle: WorkflowHandle[Any, Any] = await running.client.temporal.start_workflow(
        "TrajectoryPromotion", args=arguments, id="promote#s-1#g-1", task_queue=running.settings.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), 10)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert reason in cause.message
    assert not (running.data.evidence / "sessions").exists()


async def test_a_client_refuses_a_bad_life_before_it_asks(rig: Rig) -> None:
    for session_id, generation in (("a#b", "g"), ("s", "../.."), ("", "g")):
        with pytest.raises(SessionRefused) as refused:
            await rig.client.promote(session_id, generation)
        assert refused.value.type == "BadRequest"


async def test_f8_an_unknown_session_is_refused(running: Rig) -> None:
    with pytest.raises(SessionRefused, match="the evidence store has no such session") as refused:
        await running.client.promote(f"nobody-{uuid.uuid4()}", "no-run")
    assert refused.value.type == "SessionUnknown"


def test_no_session_can_have_the_id_of_a_promotion() -> None:
    with pytest.raises(BadSessionId):
        check_session_id(promotion_id("session-1", "run-1"))


async def test_the_store_is_named_to_the_publisher(rig: Rig) -> None:
    """A publisher on a host with another store does not mistake its own for the session's: it leaves it to others."""
    session = stored(rig)
    other = rig.data.root / "elsewhere"
    changed = rig.settings.model_copy(update={"roles": ("session",), "signing_seed_file": None, "store": other})
    async with Rig(rig.client, rig.data, changed).worker(), signing(rig):
        promoting = asyncio.create_task(promoted(rig, session))

        async def issued() -> bool:
            return (rig.folder(session.life.session_id) / "receipt.json").exists()

        await eventually(issued, bool, within=LIMIT_S)
        await asyncio.sleep(1)
        assert receipt_on_disk(rig, session)
        assert not promoting.done()
    async with journaling(rig):
        assert (await promoting).published
    check_announced_once(rig, session)
