"""I6: with keys, nothing that a session says is readable in Temporal, and what cannot be opened stops nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from affidavit.codec import EncryptionCodec
from affidavit.contract import SIGNAL_RECORD
from affidavit.converter import data_converter, encode_json, raw_json
from affidavit.errors import AnswerUnreadable
from tests.support.encrypted import ID_A, ID_B, ID_C, KEY_A, KEY_B, KEY_C, with_keys
from tests.support.halves import journaling, signing, until
from tests.support.oracle import attested, sha256
from tests.support.rig import Rig, actions
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from tests.workflow.test_cases_more import replayed, uncached
from workers.worker import workflow_runner
from workflows.session import AgentSession

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
PLANTED = "planted-6f1c"


async def stored_in_temporal(rig: Rig, session_id: str) -> bytes:
    """Everything that Temporal holds of a session, and the payloads that were kept out of it."""
    handle = rig.client.temporal.get_workflow_handle(session_id)
    history = await handle.fetch_history()
    described = await handle.describe()
    texts = [event.SerializeToString() for event in history.events]
    texts += [described.raw_description.SerializeToString(), history.to_json().encode()]
    return b"\n".join(texts + [file.read_bytes() for file in rig.payloads(session_id)])


async def key_ids(rig: Rig, session_id: str) -> set[str]:
    text = await stored_in_temporal(rig, session_id)
    return {key_id for key_id in (ID_A, ID_B, ID_C) if key_id.encode() in text}


async def test_i6_a_whole_session_leaves_no_plain_text_and_a_valid_receipt(rig: Rig) -> None:
    rig = with_keys(rig, KEY_A)
    async with rig.worker():
        session = await rig.open(content="full")
        attempt = {"attempt_id": (await session.admit()).attempt_id}
        await session.record(
            {"kind": "model_request", **attempt, "messages": [{"role": "user", "content": PLANTED}]},
            {"kind": "model_response", **attempt, "text": PLANTED, "finish_reason": "stop"},
            {**CALL, "arguments": {"q": PLANTED}},
        )
        await session.submit({"kind": "tool_result", "content": PLANTED * 30_000})
        # What is refused and what is rejected is told in failures and events, too.
        workflow = rig.client.temporal.get_workflow_handle(session.session_id)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await workflow.execute_update("submit", {"steps": [{**CALL, PLANTED: 1}]})
        assert PLANTED in str(refused.value.cause)
        await workflow.signal(SIGNAL_RECORD, {PLANTED: PLANTED})
        outcome = await session.close()
        assert outcome == await session.result()
    events = attested(rig, outcome)
    assert actions(events) == [
        "opened", "model_request", "model_response", "tool_call", "tool_result", "message_rejected"
    ]  # fmt: skip
    text = await stored_in_temporal(rig, session.session_id)
    assert rig.payloads(session.session_id)
    assert ID_A.encode() in text
    assert PLANTED.encode() not in text
    # The agent's charter is in summary and details, which are sealed, and alone in a search attribute, which is not.
    assert b"triage" not in text.replace(b'"triage"', b"")
    assert b"agent-7" not in text
    assert outcome.receipt is not None
    assert outcome.receipt["receipt_id"].encode() not in text
    # What was planted is in the evidence, so it was there to be found.
    assert PLANTED in str(rig.captures(session.session_id))
    await replayed(rig, session.session_id, 1)


async def test_i6_the_search_finds_the_text_where_nothing_is_encrypted(running: Rig) -> None:
    """The control."""
    session = await running.open()
    await session.submit({"kind": "tool_result", "content": PLANTED})
    await session.close()
    text = await stored_in_temporal(running, session.session_id)
    assert PLANTED.encode() in text
    assert b"triage" in text


async def test_i6_a_quarantine_is_red_and_its_reason_encrypted(rig: Rig) -> None:
    rig = with_keys(rig, KEY_A)
    async with rig.worker():
        session = await rig.open()
        (rig.folder(session.session_id) / "journal/000000000001.ndjson").write_bytes(b"spoilt\n")
        await session.record(CALL)
        outcome = await session.close()
    assert outcome.status == "quarantined"
    assert outcome.reason is not None
    assert "IntegrityError" in outcome.reason
    history = await rig.client.temporal.get_workflow_handle(session.session_id).fetch_history()
    failure = history.events[-1].workflow_execution_failed_event_attributes.failure
    assert failure.application_failure_info.type == "SessionQuarantined"
    assert failure.message == "Encoded failure"
    assert b"journaling:" not in await stored_in_temporal(rig, session.session_id)


async def sealed_signal(key: bytes, *, flipped: bool = False) -> RawValue:
    (payload,) = await EncryptionCodec([key]).encode([raw_json(encode_json({"steps": [CALL]})).payload])
    if flipped:
        payload.data = payload.data[:-1] + bytes([payload.data[-1] ^ 1])
    return RawValue(payload)


async def test_b9_i6_a_tampered_and_a_foreign_payload_are_rejected_and_named_by_key(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    plain_client = rig.client.temporal  # sends payloads as they are
    rig = uncached(with_keys(rig, KEY_A))
    tampered, foreign = await sealed_signal(KEY_A, flipped=True), await sealed_signal(KEY_C)
    with caplog.at_level(logging.WARNING, "affidavit.codec"):
        async with rig.worker():
            session = await rig.open()
            workflow = plain_client.get_workflow_handle(session.session_id)
            await workflow.signal(SIGNAL_RECORD, tampered)
            await session.submit(CALL)
            await workflow.signal(SIGNAL_RECORD, foreign)
            await session.submit(CALL)
            assert (await session.view()).rejected == 2
            outcome = await session.close()
    events = attested(rig, outcome)
    assert actions(events) == ["opened", "message_rejected", "tool_call", "message_rejected", "tool_call"]
    for event, sent in ((events[1], tampered), (events[3], foreign)):
        told = event["payload"]
        assert told["reason"] == "payload unavailable"
        assert (told["sha256"], told["bytes"]) == (sha256(sent.payload.data), len(sent.payload.data))
    # Once each, although every task of the session has opened its history again. The SDK may warn of a slow machine.
    assert [record.getMessage() for record in caplog.records if record.name == "affidavit.codec"] == [
        f"a payload of {len(tampered.payload.data)} bytes encrypted with key {ID_A} cannot be opened: "
        "its tag is bad: it was altered",
        f"a payload of {len(foreign.payload.data)} bytes encrypted with key {ID_C} cannot be opened: "
        "this process does not have that key",
    ]
    await replayed(rig, session.session_id, 2)


async def test_i6_keys_are_rotated_in_the_middle_of_a_session(rig: Rig) -> None:
    """Every process learns the new key first, then seals with it; the old one goes on opening."""
    old, learnt, new = with_keys(rig, KEY_A), with_keys(rig, KEY_A, KEY_B), with_keys(rig, KEY_B, KEY_A)
    async with old.worker():
        session = await old.open()
        await session.submit(CALL)
    assert await key_ids(rig, session.session_id) == {ID_A}
    async with learnt.worker():
        await old.client.handle(session.session_id).submit(CALL)
        await new.client.handle(session.session_id).submit(CALL)  # a client that is ahead of the workers
    async with new.worker():
        with pytest.raises(AnswerUnreadable, match=ID_B):  # one that is behind them, and has learnt nothing yet
            await old.client.handle(session.session_id).submit(CALL)  # taken all the same
        await new.client.handle(session.session_id).submit(CALL)
        outcome = await new.client.handle(session.session_id).close()
    assert actions(attested(rig, outcome)) == ["opened"] + ["tool_call"] * 5
    assert await key_ids(rig, session.session_id) == {ID_A, ID_B}
    await replayed(new, session.session_id, 1)


async def test_i6_encryption_is_switched_on_in_the_middle_of_a_session(rig: Rig) -> None:
    async with rig.worker():
        session = await rig.open()
        await session.submit(CALL)
    encrypted = with_keys(rig, KEY_A)
    async with encrypted.worker():
        with pytest.raises(AnswerUnreadable, match=ID_A):
            await session.submit(CALL)  # by a client that still sends plain payloads; taken all the same
        outcome = await encrypted.client.handle(session.session_id).close()
    assert actions(attested(rig, outcome)) == ["opened", "tool_call", "tool_call"]


async def test_a6_i6_a_start_that_cannot_be_opened_fails_at_once_and_readably(rig: Rig) -> None:
    async with with_keys(rig, KEY_A).worker():
        foreign = with_keys(rig, KEY_C).client.temporal
        handle = await foreign.start_workflow(
            "AgentSession",
            {"agent": PLANTED},
            id=f"{rig.settings.task_queue}-start",
            task_queue=rig.settings.task_queue,
        )

        async def ended() -> str:
            described = await handle.describe()
            return described.status.name if described.status else ""

        assert await eventually(ended, lambda status: status != "RUNNING") == "FAILED"
    history = await with_keys(rig, KEY_A).client.temporal.get_workflow_handle(handle.id).fetch_history()
    failure = history.events[-1].workflow_execution_failed_event_attributes.failure
    error = await with_keys(rig, KEY_A).client.temporal.data_converter.decode_failure(failure)
    assert "payload unavailable" in str(error)


async def test_e1_i6_a_signer_without_the_key_stalls_a_session_and_does_not_quarantine_it(rig: Rig) -> None:
    encrypted = with_keys(rig, KEY_A)
    keyless = Rig(rig.client, rig.data, rig.settings)
    async with journaling(encrypted):
        session = await encrypted.open()
        await session.submit(CALL)
        closing = asyncio.create_task(session.close())
        await until(session, "sealing")
        handle = encrypted.client.temporal.get_workflow_handle(session.session_id)

        async def last_failure() -> str:
            pending = (await handle.describe()).raw_description.pending_activities
            return next((str(each.last_failure.message) for each in pending), "")

        async with signing(keyless):
            message = await eventually(last_failure, bool)
        assert message == f"a payload is encrypted with key {ID_A}, which this worker lacks"
        async with signing(encrypted):
            outcome = await closing
    assert actions(attested(rig, outcome)) == ["opened", "tool_call"]


@pytest.mark.failed_tasks
async def test_i6_a_run_that_cannot_open_what_was_handed_on_waits_for_one_that_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that has not learnt the new key must not end a session: its task fails, and another one goes on."""
    monkeypatch.setattr("affidavit.contract.ROLLOVER_UPDATES", 1)
    rig = with_keys(rig, KEY_B, KEY_A)
    async with rig.worker():
        session = await rig.open()
        await eventually(session.view, lambda view: view.runs == 2)
        monkeypatch.undo()
        await session.submit(CALL)
        outcome = await session.close()
    assert actions(attested(rig, outcome)) == ["opened", "tool_call"]
    assert await replay_failure(rig, session.session_id, KEY_B) == "None"
    assert "Workflow activation completion failed" in await replay_failure(rig, session.session_id, KEY_A)
    assert f"what the last run handed on cannot be opened: it is encrypted with key {ID_B}" in caplog.text


@pytest.mark.failed_tasks
async def test_i6_an_activitys_result_that_cannot_be_opened_suspends_and_does_not_poison(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = with_keys(rig, KEY_A), with_keys(rig, KEY_B, KEY_A)
    async with old.worker():
        session = await old.open()
        # Else the new worker may publish it, and that result is met first.
        await eventually(session.view, lambda view: view.published_through == 0, within=LIMIT_S)
    async with new.worker():
        with pytest.raises(AnswerUnreadable, match=ID_B):
            await session.submit(CALL)
        await new.client.handle(session.session_id).flush()
    # The task that a worker without the new key would have is the one that this replay has.
    assert "Workflow activation completion failed" in await replay_failure(rig, session.session_id, KEY_A)
    assert f"the result of activity journal cannot be opened: it is encrypted with key {ID_B}" in caplog.text
    async with new.worker():
        outcome = await new.client.handle(session.session_id).close()
    assert actions(attested(rig, outcome)) == ["opened", "tool_call"]


async def replay_failure(rig: Rig, session_id: str, key: bytes) -> str:
    """What a worker with this key alone says to the history of a session's latest run."""
    replayer = Replayer(
        workflows=[AgentSession],
        workflow_runner=workflow_runner(),
        data_converter=data_converter(codec=EncryptionCodec([key])),
        runtime=Runtime(telemetry=TelemetryConfig(logging=None)),
    )
    history = await rig.client.temporal.get_workflow_handle(session_id).fetch_history()
    return str((await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure)
