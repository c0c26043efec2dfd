"""B9: big payloads lie in the evidence store, once, and not in history; what is lost there is an event, no wedge."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1 import ExternalStorageReference
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.common import RawValue
from temporalio.converter import JSONProtoPayloadConverter
from temporalio.worker import Replayer

from activities.embedders import Counts
from affidavit import contract
from affidavit.client import SessionClient, SessionHandle
from affidavit.contract import MESSAGE_VALUES, OFFLOAD_BYTES, SIGNAL_RECORD, STORED_MESSAGE_BYTES
from affidavit.converter import data_converter, raw_json
from affidavit.errors import AffidavitUnavailable, MessageTooLarge, SessionRefused
from affidavit.stores.local import DirectoryStore
from affidavit.waking_api import DELIVERED_AT_ONCE, OUTBOX_WAKES, DeliverResult, LocateResult
from tests.support.halves import store_of
from tests.support.oracle import attested, sha256
from tests.support.rig import AGENT, Rig, actions
from tests.support.taps import Outage, TapStore
from tests.support.waiting import eventually
from workers.worker import workflow_runner
from workflows.session import AgentSession

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
TEMPORALS_LIMIT = 2 * 1024 * 1024


def result(size: int, letter: str = "x") -> dict[str, Any]:
    """A tool result whose text has so many bytes."""
    return {"kind": "tool_result", "content": letter * size}


def workflow_of(rig: Rig, session: SessionHandle) -> WorkflowHandle[Any, Any]:
    return rig.client.temporal.get_workflow_handle(session.session_id)


async def history_of(rig: Rig, session: SessionHandle) -> WorkflowHistory:
    """The session's history, after checking that no task of it has failed and no activity was tried four times."""
    history = await workflow_of(rig, session).fetch_history()
    for event in history.events:
        assert not event.HasField("workflow_task_failed_event_attributes")
        assert event.activity_task_started_event_attributes.attempt <= 3
    return history


def largest(history: WorkflowHistory) -> int:
    return max(event.ByteSize() for event in history.events)


async def check_replay(rig: Rig, history: WorkflowHistory) -> None:
    """The history replays with what the store holds now."""
    replayer = Replayer(
        workflows=[AgentSession],
        workflow_runner=workflow_runner(),
        data_converter=data_converter(DirectoryStore(rig.data.evidence)),
    )
    assert (await replayer.replay_workflow(history)).replay_failure is None


def check_payloads(rig: Rig, session: SessionHandle) -> list[Path]:
    """The session's payloads, each named after its digest."""
    files = rig.payloads(session.session_id)
    assert [file.name for file in files] == [f"{sha256(file.read_bytes())}.bin" for file in files]
    assert all(file.stat().st_size > OFFLOAD_BYTES for file in files)
    return files


@pytest.mark.parametrize("content", ["store", "full"])
async def test_b9_case_8_results_of_megabytes_are_attested(running: Rig, content: str) -> None:
    sizes = [2_200_000, 3_900_000]
    session = await running.open(content=content)
    await session.record(CALL)
    for size in sizes:
        await session.record(result(size))
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events) == ["opened", "tool_call", "tool_result", "tool_result"]
    assert [len(capture["content"]) for capture in running.captures(session.session_id)[2:]] == sizes
    if content == "full":
        assert [len(event["payload"]["content"]) for event in events[2:]] == sizes
    # Once: what the runtime has sent and what the journal activity was given are one payload.
    assert [round(file.stat().st_size, -5) for file in check_payloads(running, session)] == sizes
    history = await history_of(running, session)
    size = sum(event.ByteSize() for event in history.events)
    print(f"history of {sum(sizes)} bytes: {len(history.events)} events, {size} bytes, largest {largest(history)}")
    assert size < 64_000
    await check_replay(running, history)


async def test_b9_a_message_at_the_limit_is_attested(running: Rig) -> None:
    session = await running.open(content="full")
    size = int(15.9 * 1024 * 1024)
    await session.submit(result(size))
    outcome = await session.close()
    attested(running, outcome)
    assert len(running.captures(session.session_id)[1]["content"]) == size
    history = await history_of(running, session)
    assert largest(history) < 16_000
    await check_replay(running, history)


async def test_b9_a_payload_of_up_to_256_kib_stays_in_history(running: Rig) -> None:
    session = await running.open()
    await session.record(result(OFFLOAD_BYTES - 1_000))
    await session.close()
    assert running.payloads(session.session_id) == []


@pytest.mark.timeout(200)
async def test_b9_every_kind_of_step_and_of_message_may_be_large(rig: Rig) -> None:
    text = "日本 " * 170_000  # 2.2 MB with its escapes
    calls = [{"call_id": "c9", "name": "search", "arguments": {"query": text}}]
    steps: list[dict[str, Any]] = [
        {"kind": "model_request", "messages": [{"role": "user", "content": text}]},
        {"kind": "model_response", "text": text, "tool_calls": calls},
        {"kind": "model_failure", "reason": "timeout", "message": text},
        {**CALL, "arguments": {"query": text}, "reason": text},
        result(2_200_000),
    ]
    rig.settings = rig.settings.model_copy(update={"max_cached_workflows": 0})  # so each task opens them all anew
    async with rig.worker():
        session = await rig.open(content="full")
        for step in steps:
            await workflow_of(rig, session).signal(step["kind"], raw_json(json.dumps(step).encode()))
        submitted = await session.submit(result(2_500_000, "s"))
        assert submitted.last_sequence == len(steps) + 1
        outcome = await session.close()
    events = attested(rig, outcome)
    assert actions(events) == ["opened", *(step["kind"] for step in steps), "tool_result"]
    assert events[2]["payload"]["assessed"] is True
    check_payloads(rig, session)
    history = await history_of(rig, session)
    assert largest(history) < 64_000
    await check_replay(rig, history)


async def test_b9_submits_of_megabytes_side_by_side(running: Rig) -> None:
    session = await running.open()
    others = [running.client.handle(session.session_id) for _ in range(4)]
    submitted = await asyncio.gather(
        *(other.submit(result(4_000_000, letter)) for other, letter in zip(others, "abcd", strict=True))
    )
    assert sorted(answer.first_sequence or 0 for answer in submitted) == [1, 2, 3, 4]
    assert len(attested(running, await session.close())) == 5
    await history_of(running, session)


# -- case 8: what activities answer ------------------------------------------------------------------------


class Wide:
    """An embedder with vectors of 37 kB that hardly compress."""

    def counts(self, text: str) -> Counts:
        return np.random.default_rng(list(text.encode())).integers(-(2**24), 2**24, 8192, dtype=np.int32)


def answered(history: WorkflowHistory) -> dict[str, int]:
    """Bytes of the largest result that history holds of each activity; every activity ended at its first attempt."""
    names, sizes = dict[int, str](), dict[str, int]()
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        assert event.activity_task_started_event_attributes.attempt <= 1
        if event.HasField("activity_task_completed_event_attributes"):
            completed = event.activity_task_completed_event_attributes
            name = names[completed.scheduled_event_id]
            size = sum(payload.ByteSize() for payload in completed.result.payloads)
            sizes[name] = max(size, sizes.get(name, 0))
    return sizes


async def test_b9_case_8_an_activity_result_of_2_1_mb_is_taken_at_the_first_attempt(rig: Rig) -> None:
    """Only an embedder that is passed in makes one: a vector of its may be of any length, and a batch has 64 of them.

    With the built-in one a vector has 512 counts, so at most 3 kB, and a result no 256 KiB.
    """
    sayings = [{"kind": "model_response", "text": f"saying {number}"} for number in range(64)]
    async with rig.worker(embedder=Wide()):
        session = await rig.open()
        answer = await session.submit(*sayings)
        assert (answer.last_sequence, answer.verdict) == (64, "progressing")
        # It goes on, and the next one is compared with what that result has brought.
        assert (await session.submit(sayings[-1])).verdict == "suspicious"
        outcome = await session.close()
    events = attested(rig, outcome)
    assert [event["payload"]["assessed"] for event in events[1:]] == [True] * 65
    # The window of the second request, and the result of the first.
    window, vectors = check_payloads(rig, session)
    assert 256 * 1024 < window.stat().st_size < 400_000
    assert TEMPORALS_LIMIT < vectors.stat().st_size < 2_600_000
    history = await history_of(rig, session)
    # A reference alone of the large one; of the other the one vector that it has.
    assert 30_000 < answered(history)["embed"] < 40_000
    assert largest(history) < 64_000
    await check_replay(rig, history)


async def test_b9_case_8_the_longest_faults_of_as_many_events_as_may_be_are_one_result(running: Rig) -> None:
    """The most that `check_events` can answer: 1024 events, and of each the longest there is to say, 601 bytes."""
    type_, key = "t" * 64, "😀" * 120
    session = await running.open(event_types={type_: {"additionalProperties": {"additionalProperties": False}}})
    event = {"kind": "event", "type": type_, "payload": {key: {"x": 1}}}
    with pytest.raises(SessionRefused) as refused:
        await session.submit(*[event] * 1024)
    fault = f"event {type_}: payload.{key} is off its schema (additionalProperties)"
    assert (refused.value.reason, len(fault.encode())) == (f"steps.0: {fault}", 601)
    assert (await session.submit(CALL)).first_sequence == 1
    assert actions(attested(running, await session.close())) == ["opened", "tool_call"]
    (faults,) = (file for file in check_payloads(running, session) if b'{"faults":{' in file.read_bytes())
    assert 1024 * 601 < faults.stat().st_size < 640_000
    history = await history_of(running, session)
    assert answered(history)["check_events"] < 1_000
    await check_replay(running, history)


async def test_b9_case_8_no_other_activity_can_answer_much(running: Rig) -> None:
    """By what they are made of: chain heads, counts, ids, digests and at most one receipt, in which names alone have a
    length of their own. Those are as long as may be here, in characters that take six bytes each.

    Which activities there are stands here, so that whoever adds one comes by.
    """
    assert {value for name, value in vars(contract).items() if name.startswith("ACTIVITY_")} == {
        *("open", "journal", "publish", "seal", "trajectory", "promote", "lifecycle", "outcome"),
        *("embed", "check_events"),  # above
    }
    name = "\x01" * 256
    agent = {"version": name, "charter": name, "instance_uid": name}
    sizes = dict[str, int]()
    for mode in ("signed", "unsigned"):
        session = await running.open(agent=agent, mode=mode, originator=name)
        await session.submit(CALL, {"kind": "model_response", "text": "done"}, result(1_000_000))
        assert (await session.close()).status == "closed"
        histories = [await history_of(running, session)]
        if mode == "unsigned":
            assert (await session.promote())["ai_agent"]["version"] == name
            promotion = running.client.temporal.get_workflow_handle(
                contract.promotion_id(session.session_id, str(session.generation))
            )
            histories.append(await promotion.fetch_history())
        for history in histories:
            for activity, size in answered(history).items():
                sizes[activity] = max(size, sizes.get(activity, 0))
    print(f"largest results in bytes: {sizes}")
    assert set(sizes) == {"open", "journal", "publish", "seal", "trajectory", "promote", "lifecycle", "outcome"}
    assert max(sizes.values()) < 8_000

    # Of wakes: a session takes no further batch of 64 once 64 wakes wait, so at most 127 targets are looked for.
    assert (OUTBOX_WAKES - 1 + contract.BATCH_STEPS, DELIVERED_AT_ONCE) == (127, 16)
    targets = [f"{number:03}" + "\x01" * 253 for number in range(127)]
    located = LocateResult(generations=dict.fromkeys(targets, str(uuid.UUID(int=0))))
    assert 190_000 < len(located.model_dump_json()) < 256 * 1024
    delivered = DeliverResult(delivered=[str(uuid.UUID(int=number)) for number in range(16)])
    assert len(delivered.model_dump_json()) < 1_000


# -- refused by the client --------------------------------------------------------------------------------


async def test_b9_over_the_limit_the_client_refuses_with_the_size(running: Rig) -> None:
    session = await running.open()
    for report in (session.record, session.submit):
        with pytest.raises(MessageTooLarge, match=r"^step 0: the message has 16777\d{3} bytes, the limit is 16777216$"):
            await report(result(STORED_MESSAGE_BYTES))
        with pytest.raises(MessageTooLarge, match=r"^step 0: the message holds more than 100000 values$"):
            await report({"kind": "tool_result", "content": [1.25] * MESSAGE_VALUES + ["x" * 1_000_000]})
    assert actions(attested(running, await session.close())) == ["opened"]
    assert running.payloads(session.session_id) == []


async def test_b9_without_a_store_a_client_refuses_more_than_temporal_takes(running: Rig) -> None:
    temporal = running.client.temporal.service_client.config.target_host
    client = await SessionClient.connect(address=temporal, task_queue=running.settings.task_queue, admit_timeout=20)
    session = await client.open({"agent": AGENT})
    with pytest.raises(MessageTooLarge, match=r"^step 0: the message has 1600\d{3} bytes, the limit is 1500000$"):
        await session.record(result(1_600_000))
    await session.record(result(1_400_000))
    assert actions(attested(running, await session.close())) == ["opened", "tool_result"]


async def test_b9_a_client_with_another_store_uses_it_for_nothing(running: Rig, tmp_path: Path) -> None:
    temporal = running.client.temporal.service_client.config.target_host
    other = DirectoryStore(tmp_path / "other")
    client = await SessionClient.connect(
        address=temporal, task_queue=running.settings.task_queue, admit_timeout=20, store=other
    )
    session = await client.open({"agent": AGENT})
    with pytest.raises(MessageTooLarge, match=r"the limit is 1500000$"):
        await session.record(result(1_600_000))
    await session.record(result(1_400_000))
    assert actions(attested(running, await session.close())) == ["opened", "tool_result"]
    assert other.folders("") == []


async def test_b9_a_client_is_given_no_store_that_is_none(rig: Rig, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(AffidavitUnavailable, match=f"^{place.name} holds no evidence store that can be used$"):
            await SessionClient.connect(address="127.0.0.1:1", store=place)
    assert not (tmp_path / "missing").exists()


# -- lost payloads ----------------------------------------------------------------------------------------


def delete(file: Path) -> None:
    file.unlink()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def plant(file: Path) -> None:
    file.rename(file.with_name("away"))
    file.symlink_to("away")


@pytest.mark.parametrize("harm", [delete, flip, plant])
async def test_b9_a_payload_lost_before_it_is_read_is_rejected_in_every_replay(
    rig: Rig, harm: Callable[[Path], None]
) -> None:
    async with rig.worker():
        session = await rig.open()
    await workflow_of(rig, session).signal(SIGNAL_RECORD, raw_json(json.dumps({"steps": [result(3_000_000)]}).encode()))
    (file,) = check_payloads(rig, session)
    kept = file.read_bytes()
    harm(file)
    async with rig.worker():
        await session.record(CALL)
        outcome = await session.close()

    events = attested(rig, outcome)
    assert actions(events) == ["opened", "message_rejected", "tool_call"]
    assert events[1]["payload"] == {
        "action": "message_rejected",
        "name": "record",
        "reason": "payload unavailable",
        "sha256": sha256(kept),
        "bytes": len(kept),
    }
    history = await history_of(rig, session)
    await check_replay(rig, history)
    file.unlink(missing_ok=True)
    file.write_bytes(kept)
    await check_replay(rig, history)
    file.unlink()
    await check_replay(rig, history)


async def test_b9_a_submit_whose_payload_is_lost_is_refused(rig: Rig) -> None:
    async with rig.worker():
        session = await rig.open()
    store = store_of(rig)
    converter = data_converter(
        TapStore(store, after=lambda name: (rig.data.evidence / name).unlink() if "/payloads/" in name else None)
    )
    config = rig.client.temporal.config()
    config["data_converter"] = converter
    losing = SessionClient(type(rig.client.temporal)(**config), store=store)
    async with rig.worker():
        with pytest.raises(SessionRefused, match=r"^payload unavailable$"):
            await losing.handle(session.session_id).submit(result(2_000_000))
        attested(rig, await session.close())


async def test_b9_an_activitys_input_that_is_lost_quarantines_and_is_not_tried_for_ever(rig: Rig) -> None:
    outage = Outage(lambda: OSError(5, "Input/output error"))
    store = TapStore(store_of(rig), before=lambda name: outage.strike() if name.endswith("1.ndjson") else None)
    async with rig.worker(store=store):
        session = await rig.open()
        await workflow_of(rig, session).signal("tool_result", raw_json(json.dumps(result(3_000_000)).encode()))
        await outage.met_times(1)
        for file in rig.payloads(session.session_id):
            file.unlink()
        outage.end()
        outcome = await session.close()
    assert outcome.status == "quarantined"
    assert outcome.reason == "journaling: IntegrityError: a payload of the session is lost or altered"


@pytest.mark.failed_tasks
async def test_b9_a_worker_with_another_store_hands_the_task_on(rig: Rig, tmp_path: Path) -> None:
    """It can neither read the message nor know that it is lost; the session goes on where its evidence is."""
    async with rig.worker():
        session = await rig.open()
        await session.record(CALL)
        await session.flush()
    await workflow_of(rig, session).signal(SIGNAL_RECORD, raw_json(json.dumps({"steps": [result(3_000_000)]}).encode()))
    elsewhere = Rig(rig.client, rig.data, rig.settings.model_copy(update={"store": tmp_path / "other"}))
    other = DirectoryStore(tmp_path / "other")
    config = rig.client.temporal.config()
    config["data_converter"] = data_converter(other)
    elsewhere.client = SessionClient(type(rig.client.temporal)(**config), task_queue=rig.settings.task_queue)

    async def failures() -> list[str]:
        history = await workflow_of(rig, session).fetch_history()
        return [
            event.workflow_task_failed_event_attributes.failure.message
            for event in history.events
            if event.HasField("workflow_task_failed_event_attributes")
        ]

    async with elsewhere.worker(store=other):
        seen = await eventually(failures, bool)
    assert "another evidence store" in seen[0]
    async with rig.worker():
        outcome = await session.close()
    assert actions(attested(rig, outcome)) == ["opened", "tool_call", "tool_result"]
    assert other.list("sessions") == []


def reference(claim: dict[str, str], driver: str = "affidavit.evidence") -> Payload:
    made = JSONProtoPayloadConverter().to_payload(ExternalStorageReference(driver_name=driver, claim_data=claim))
    assert made is not None
    return made


async def test_b9_no_forged_reference_wedges_a_session(running: Rig) -> None:
    session = await running.open()
    store_id = DirectoryStore(running.data.evidence).store_id
    folder = running.folder(session.session_id)
    good = {"store": store_id, "session": folder.parent.name, "sha256": "0" * 64, "bytes": "12"}
    garbled = reference(good)
    garbled.data = b"{"
    marked = raw_json(b"{}").payload
    marked.metadata["__temporal_external_storage_reference"] = b"true"
    legacy = Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"[]")
    lying = Payload(metadata={"encoding": b"affidavit/unavailable", "sha256": b"\xff", "bytes": b"-1"})
    forged = [
        reference(good),
        reference({**good, "bytes": "x" * 70}),
        reference({**good, "session": "../../..", "sha256": "metadata"}),
        reference({}),
        reference(good, driver="aws.s3driver"),
        garbled,
        marked,
        legacy,
        lying,
    ]
    for payload in forged:
        await workflow_of(running, session).signal(SIGNAL_RECORD, RawValue(payload))
    await session.record(CALL)
    events = attested(running, await session.close())
    assert actions(events) == ["opened", *["message_rejected"] * len(forged), "tool_call"]
    assert {event["payload"]["reason"] for event in events[1:-1]} <= {
        "payload unavailable",
        "encoding json/external-storage-reference is not json/plain",
    }
    assert (events[1]["payload"]["sha256"], events[1]["payload"]["bytes"]) == ("0" * 64, 12)
    history = await history_of(running, session)
    await check_replay(running, history)


# -- case 10 ----------------------------------------------------------------------------------------------


async def test_b9_case_10_arguments_of_60_000_nested_items_hold_up_nothing(running: Rig) -> None:
    arguments = {"items": [{"id": number, "of": [7]} for number in range(60_000)]}  # 1.4 MB
    session = await running.open(content="full")
    await session.record({**CALL, "arguments": arguments})
    (submitted, view) = await asyncio.gather(session.submit(result(10)), session.view())
    assert (submitted.last_sequence, view.state) == (2, "open")
    events = attested(running, await session.close())
    assert events[1]["payload"]["arguments"] == arguments
    await history_of(running, session)


async def test_b9_case_10_a_large_message_of_as_many_values_as_may_be_holds_up_nothing(running: Rig) -> None:
    items = [{"k": [number]} for number in range(MESSAGE_VALUES // 4)]
    session = await running.open()
    await session.submit({**CALL, "arguments": {"text": "x" * 12_000_000, "items": items}})
    assert actions(attested(running, await session.close())) == ["opened", "tool_call"]
    await history_of(running, session)
