"""Behaviours A: opening a session and binding it to a registration, against the real dev server."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import re
import uuid
from itertools import pairwise
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.common import RetryPolicy
from temporalio.converter import default as default_converter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from affidavit.client import SessionClient
from affidavit.contract import Agent, BreakerConfig, Limits
from affidavit.errors import SessionFailed, SessionRefused
from affidavit.stores.local import DirectoryStore
from tests.support.foreign import SPEC, failure, json_payload, payload, start
from tests.support.oracle import attested
from tests.support.proof import chain_heads
from tests.support.rig import AGENT, Rig, actions
from tests.support.stand_ins import HeldStore, LosingStore
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}


def fresh_id() -> str:
    return f"s-{uuid.uuid4()}"


async def never_started(rig: Rig, session_id: str) -> bool:
    try:
        await rig.client.temporal.get_workflow_handle(session_id).describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


# -- A1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "rule"),
    [
        ("", "session id must not be empty"),
        ("two words", "session id must consist of bytes 0x21-0x7e"),
        ("café", "session id must consist of bytes 0x21-0x7e"),
        ("del\x7f", "session id must consist of bytes 0x21-0x7e"),
        ("a#b", "session id must not contain '#'"),
        ("x" * 129, "session id must be at most 128 bytes"),
    ],
)
async def test_a1_a_bad_id_is_refused_before_anything_starts(rig: Rig, session_id: str, rule: str) -> None:
    with pytest.raises(SessionRefused) as refused:
        await rig.open(session_id=session_id)
    assert (refused.value.type, refused.value.reason) == ("BadSpec", rule)
    if session_id:
        assert await never_started(rig, session_id)


async def test_a1_every_printable_byte_but_the_hash_may_stand_in_an_id(running: Rig) -> None:
    # A dev server is shared by the tests of a run, so the id needs something of its own.
    marks = "".join(chr(byte) for byte in range(0x21, 0x7F) if chr(byte) not in "#0123456789ABCDEFabcdef")
    session_id = (marks + uuid.uuid4().hex + "z" * 128)[:128]
    session = await running.open(session_id=session_id)
    outcome = await session.close()
    assert outcome.session_id == session_id
    attested(running, outcome)
    # I7: the folder is found by the hash alone.
    stems = [folder.name for folder in (running.data.evidence / "sessions").iterdir()]
    assert stems == [hashlib.sha256(session_id.encode()).hexdigest()[:32]]


async def test_a1_without_an_id_a_session_gets_a_uuid7(running: Rig) -> None:
    session = await running.open()
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", session.session_id)
    attested(running, await session.close())


# -- A2 -----------------------------------------------------------------------------------------------


async def test_a2_an_equal_registration_attaches_with_defaults_written_out_or_not(running: Rig) -> None:
    session_id = fresh_id()
    first = await running.open(session_id=session_id)
    second = await running.open(
        session_id=session_id,
        mode="signed",
        content="store",
        breaker=BreakerConfig(delta_epsilon=0.3, window=3, min_tokens=1000, action="reject"),
        limits=Limits(queue=1024, idle_close_s=900),
    )
    other_lifetime = await running.open(
        session_id=session_id, agent=Agent(version="1", charter="triage", instance_uid="agent-7", ttl_remaining_s=5)
    )
    assert first.attached == second.attached == other_lifetime.attached
    outcome = await second.close()
    assert actions(attested(running, outcome)) == ["opened"]
    assert outcome.generation == first.generation


@pytest.mark.parametrize(
    ("changed", "type_", "reason"),
    [
        ({"mode": "unsigned"}, "ModeConflict", "session mode cannot change after open"),
        (
            {"agent": Agent(version="2", charter="triage", instance_uid="agent-7")},
            "IdentityConflict",
            "session is bound to a different agent identity",
        ),
        (
            {"limits": Limits(queue=7), "breaker": BreakerConfig(action="abort")},
            "RegistrationConflict",
            "registration conflict: breaker, limits",
        ),
        ({"originator": "cron"}, "RegistrationConflict", "registration conflict: originator"),
    ],
    ids=["mode", "identity", "two fields", "a field that was absent"],
)
async def test_a2_another_registration_is_refused_by_field(
    running: Rig, changed: dict[str, Any], type_: str, reason: str
) -> None:
    session = await running.open()
    with pytest.raises(SessionRefused) as refused:
        await running.open(session_id=session.session_id, **changed)
    assert (refused.value.type, refused.value.reason) == (type_, reason)
    assert actions(attested(running, await session.close())) == ["opened"]


async def test_a2_a_closing_session_and_an_ended_one_say_so(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        session = await rig.open()
        with store.held():
            await session.record(CALL)
            closing = asyncio.create_task(session.close())
            await eventually(session.view, lambda view: view.state == "closing")
            with pytest.raises(SessionRefused) as refused:
                await rig.open(session_id=session.session_id)
        assert (refused.value.type, refused.value.reason) == ("SessionClosing", "session is closing")
        attested(rig, await closing)
        with pytest.raises(SessionRefused) as refused:
            await rig.open(session_id=session.session_id)
        assert refused.value.type == "SessionEnded"


# -- A3 -----------------------------------------------------------------------------------------------


async def test_a3_the_lifetime_of_the_identity_is_renewed_and_the_latest_is_used(running: Rig) -> None:
    session = await running.open()
    await session.submit(CALL)
    answer = await session.refresh_identity(AGENT.model_copy(update={"ttl_remaining_s": 50}))
    assert answer.agent.ttl_remaining_s == 50
    await session.submit({**CALL, "call_id": "c2"})
    await session.submit({**CALL, "call_id": "c3", "ttl_remaining_s": 7})
    assert (await session.view()).agent.ttl_remaining_s == 7
    outcome = await session.close()

    events = attested(running, outcome)
    assert actions(events) == ["opened", "tool_call", "identity_refreshed", "tool_call", "tool_call"]
    assert [event["ai_agent"]["ttl_remaining_s"] for event in events] == [600, 600, 50, 50, 7]
    assert events[2]["class_name"] == "agent.identity"
    assert outcome.receipt is not None
    assert outcome.receipt["ai_agent"] == {
        "version": "1",
        "charter": {"name": "triage", "type_id": 1},
        "instance_uid": "agent-7",
        "ttl_remaining_s": 7,
    }


async def test_a3_another_identity_is_refused_and_the_refusal_is_an_event(running: Rig) -> None:
    session = await running.open()
    for _ in range(3):
        with pytest.raises(SessionRefused) as refused:
            await session.refresh_identity(Agent(version="1", charter="triage", instance_uid="agent-8"))
        assert (refused.value.type, refused.value.reason) == (
            "IdentityConflict",
            "session is bound to a different agent identity",
        )
    outcome = await session.close()
    opened, *refusals = attested(running, outcome)
    # The first one is told at once, then at most one a second; what is left then is told at close.
    counts = [event["payload"].pop("count") for event in refusals]
    assert (counts[0], sum(counts)) == (1, 3)
    told = [event["time"] for event in refusals]
    assert all(later - sooner >= 1000 for sooner, later in pairwise(told[:-1]))
    for event in refusals:
        assert event["payload"] == {"action": "refused", "reason": "identity"}
        assert (event["stop_reason_id"], event["stop_reason"], event["status_id"]) == (94, "Identity Rejected", 2)
        assert event["ai_agent"] == opened["ai_agent"]


# -- A5 -----------------------------------------------------------------------------------------------


async def test_a5_racing_opens_of_one_id_give_one_session(running: Rig) -> None:
    session_id = fresh_id()
    sessions = await asyncio.gather(*(running.open(session_id=session_id) for _ in range(5)))
    assert len({session.generation for session in sessions}) == 1
    assert actions(attested(running, await sessions[0].close())) == ["opened"]


# -- A6: by the product's client ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({**SPEC, "mode": "secret"}, "invalid session spec: mode: Input should be 'signed' or 'unsigned'"),
        ({**SPEC, "mod": "signed"}, "invalid session spec: mod: Extra inputs are not permitted"),
        ({}, "invalid session spec: agent: Field required"),
        (
            {"agent": {**SPEC["agent"], "charter": ""}},
            "invalid session spec: agent.charter: String should have at least 1 character",
        ),
        (
            {**SPEC, "breaker": {"window": -1}},
            "invalid session spec: breaker.window: Input should be greater than or equal to 1",
        ),
        (
            {**SPEC, "breaker": {"min_tokens": ""}},
            "invalid session spec: breaker.min_tokens: Input should be a valid integer",
        ),
        ({**SPEC, "trajectory_extra": {"n": 2**53}}, "invalid session spec: integer beyond 2^53 - 1"),
        ({**SPEC, "external_ref": None}, None),
    ],
    ids=["mode", "key", "nothing", "charter", "window", "empty string", "big integer", "null"],
)
async def test_a6_the_client_refuses_a_bad_spec(rig: Rig, spec: dict[str, Any], reason: str | None) -> None:
    session_id = fresh_id()
    with pytest.raises(SessionRefused) as refused:
        await rig.client.open(spec, session_id=session_id)
    assert refused.value.type == "BadSpec"
    if reason is not None:
        assert refused.value.reason == reason
    assert await never_started(rig, session_id)


# -- A6: by another client ----------------------------------------------------------------------------

GOOD = json_payload(SPEC)
DEEP = '{"agent":' + "[" * 600 + "]" * 600 + "}"
BAD_STARTS: list[Any] = [
    pytest.param([], "0 arguments, expected 1", id="no argument"),
    pytest.param([GOOD, GOOD], "2 arguments, expected 1", id="two arguments"),
    pytest.param([GOOD, payload(b"\xff", "x/y"), GOOD], "3 arguments, expected 1", id="three, one undecodable"),
    pytest.param([GOOD] * 4, "4 arguments, expected 1", id="four arguments"),
    pytest.param([None], "encoding binary/null is not json/plain", id="null"),
    pytest.param([b"bytes"], "encoding binary/plain is not json/plain", id="bytes"),
    pytest.param([payload("{}", None)], "encoding unknown is not json/plain", id="no encoding"),
    pytest.param([payload(b"\x0a", "affidavit/unavailable")], "payload unavailable", id="unavailable"),
    pytest.param([payload(b"\xff\xfe")], "not UTF-8", id="not UTF-8"),
    pytest.param([payload("{")], "not JSON: Expecting property name enclosed in double quotes at 1", id="not JSON"),
    pytest.param([payload('{"agent":1,"agent":2}')], "duplicate key in an object", id="duplicate key"),
    pytest.param([payload(DEEP)], "nested deeper than 64", id="deep"),
    pytest.param([payload('{"agent":' + "9" * 5000 + "}")], "an integer of more than 4000 digits", id="5 000 digits"),
    pytest.param([payload('{"\\ud800":1}')], "a key holds a lone surrogate", id="lone surrogate in a key"),
    pytest.param([json_payload([SPEC])], "Input should be a valid dictionary or instance of SessionSpec", id="list"),
    pytest.param([json_payload({**SPEC, "mode": "x"})], "mode: Input should be 'signed' or 'unsigned'", id="mode"),
    pytest.param([json_payload({**SPEC, "x": 1})], "x: Extra inputs are not permitted", id="unknown key"),
    pytest.param(
        [json_payload({**SPEC, "originator": None})],
        "originator: Value error, null is not a value here; leave the key out",
        id="null for absent",
    ),
]


@pytest.mark.parametrize(("args", "reason"), BAD_STARTS)
async def test_a6_a_bad_start_of_another_client_fails_at_once(running: Rig, args: list[Any], reason: str) -> None:
    handle = await start(running, fresh_id(), *args)
    async with asyncio.timeout(LIMIT_S):
        error = await failure(handle)
    assert (error.type, error.message) == ("BadSpec", f"invalid session spec: {reason}")
    assert error.non_retryable


async def test_a6_a_lone_surrogate_of_the_default_converter_fails_at_once(running: Rig) -> None:
    (encoded,) = default_converter().payload_converter.to_payloads(
        [{"agent": {"version": "1", "charter": "\ud83d", "instance_uid": "i"}}]
    )
    handle = await start(running, fresh_id(), payload(encoded.data))
    async with asyncio.timeout(LIMIT_S):
        error = await failure(handle)
    assert error.type == "BadSpec"
    assert error.message.startswith("invalid session spec: agent.charter: ")


async def test_a6_a_retry_policy_fails_at_once(running: Rig) -> None:
    handle = await start(running, fresh_id(), GOOD, retry_policy=RetryPolicy(maximum_attempts=0))
    async with asyncio.timeout(LIMIT_S):
        error = await failure(handle)
    assert (error.type, error.message) == ("BadSpec", "a session takes no retry policy and no cron schedule")
    assert not (running.data.evidence / "sessions").exists()


async def test_a6_a_cron_schedule_ends_with_its_first_run(running: Rig) -> None:
    handle = await start(running, fresh_id(), GOOD, cron_schedule="@every 1s")
    async with asyncio.timeout(10):
        error = await failure(handle)
    assert (error.type, error.message) == ("BadSpec", "a session takes no retry policy and no cron schedule")
    # Not one run of the schedule is left to come.
    last = await running.client.temporal.get_workflow_handle(handle.id).describe()
    assert last.status is WorkflowExecutionStatus.FAILED
    started = (await running.client.temporal.get_workflow_handle(handle.id, run_id=last.run_id).fetch_history()).events[
        0
    ]
    assert started.workflow_execution_started_event_attributes.cron_schedule == ""
    assert not (running.data.evidence / "sessions").exists()


async def test_a6_a_cron_schedule_that_waits_for_its_hour_ends_when_somebody_opens_its_id(running: Rig) -> None:
    # Until then no worker hears of it: it has no workflow task, and reports sent to it wait with it.
    handle = await start(running, fresh_id(), GOOD, cron_schedule="0 0 1 1 *")
    with pytest.raises(SessionRefused) as refused:
        await running.open(session_id=handle.id)
    assert refused.value.reason == "a session takes no retry policy and no cron schedule"
    async with asyncio.timeout(LIMIT_S):
        assert (await failure(handle)).type == "BadSpec"


async def test_a6_a_badly_started_session_refuses_and_fails_before_anything_is_processed(rig: Rig) -> None:
    # Everything arrives in the first workflow task, because no worker runs yet.
    handle = await start(rig, fresh_id(), json_payload({}), start_signal="record", start_signal_args=[payload("{}")])
    await handle.signal("tool_call", json_payload(CALL))
    await handle.cancel()
    async with rig.worker(), asyncio.timeout(10):
        assert (await failure(handle)).message == "invalid session spec: agent: Field required"


@pytest.mark.failed_tasks
async def test_a6_a_workflow_type_of_somebody_else_waits_for_its_worker(running: Rig, no_failed_tasks: Any) -> None:
    # A session takes start arguments raw, which makes its definition dynamic; it must not answer to other names.
    handle = await running.client.temporal.start_workflow(
        "Other", id=fresh_id(), task_queue=running.settings.task_queue
    )

    async def said() -> bool:
        return any("workflow type Other is not registered on this worker" in line for line in no_failed_tasks.seen)

    await eventually(said, bool)
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    await handle.terminate()


# -- opening that fails, or takes its time --------------------------------------------------------------


async def test_an_opening_that_can_never_succeed_ends_the_session_and_refuses_who_waits(rig: Rig) -> None:
    store = LosingStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        with store.held():
            handle = await start(rig, fresh_id(), GOOD)
            assert await asyncio.to_thread(store.waiting.wait, LIMIT_S)
            submitted = await handle.start_update(
                "submit", json_payload({"steps": [CALL]}), wait_for_stage=WorkflowUpdateStage.ACCEPTED
            )
            joining = await handle.start_update("attach", GOOD, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        async with asyncio.timeout(10):
            with pytest.raises(WorkflowUpdateFailedError) as failed:
                await submitted.result()
            with pytest.raises(WorkflowUpdateFailedError) as not_joined:
                await joining.result()
            with pytest.raises(SessionFailed, match=r"metadata\.json is damaged"):
                await rig.client.handle(handle.id).result()
    assert isinstance(not_joined.value.cause, ApplicationError)
    assert not_joined.value.cause.type == "SessionNotOpened"
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "CaptureIncomplete"


async def test_a_flush_before_the_opening_event_waits_for_it(rig: Rig) -> None:
    store = HeldStore(DirectoryStore(rig.settings.store))
    async with rig.worker(store=store):
        with store.held():
            handle = await start(rig, fresh_id(), GOOD)
            flushing = await handle.start_update("flush", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
            assert await asyncio.to_thread(store.waiting.wait, LIMIT_S)
        flushed = await flushing.result()
        outcome = await rig.client.handle(handle.id).close()
    heads = chain_heads(handle.id, attested(rig, outcome))
    assert (flushed["event_count"], flushed["chain_head"]) == (1, heads[1])


async def test_a_refused_open_leaves_no_unheard_exception(running: Rig) -> None:
    session = await running.open()
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        with pytest.raises(SessionRefused):
            await running.open(session_id=session.session_id, content="full")
        await session.close()
        with pytest.raises(SessionRefused):
            await running.open(session_id=session.session_id)
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert complaints == []


async def test_a_cancelled_open_is_cancelled(rig: Rig) -> None:
    # No worker runs, so it would wait until its time is up.
    client = SessionClient(rig.client.temporal, task_queue=rig.settings.task_queue, admit_timeout=60)
    session_id = fresh_id()
    opening = asyncio.create_task(client.open(SPEC, session_id=session_id))
    await eventually(lambda: never_started(rig, session_id), lambda missing: not missing)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
