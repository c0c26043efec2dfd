"""A4: another life of a session id. The store remembers how the former ones ended, also where Temporal does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from affidavit.client import SessionClient, SessionHandle
from affidavit.contract import BreakerConfig
from affidavit.errors import SessionFailed, SessionNotFound, SessionRefused
from tests.support.bare import Bare, Json, call, said
from tests.support.foreign import SPEC, failure, json_payload, start
from tests.support.oracle import chain_heads, sha256
from tests.support.proof import check_signature
from tests.support.rig import AGENT, Rig, actions
from tests.support.waiting import eventually
from workers.devserver import DevServer

ENDED = "the session has ended; only reopen starts a fresh generation"
SENSITIVE = BreakerConfig(window=1, min_tokens=0)


@pytest_asyncio.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A server that forgets an execution within a second of being told to; by default it takes half a minute."""
    started = await DevServer.start(
        log=tmp_path_factory.mktemp("forgetful") / "server.log",
        headless=True,
        dynamic_config={
            "history.transferProcessorUpdateAckInterval": '"500ms"',
            "history.visibilityProcessorUpdateAckInterval": '"500ms"',
        },
    )
    try:
        yield started
    finally:
        await started.stop()


async def reopened(rig: Rig, session_id: str, **spec: Any) -> SessionHandle:
    return await rig.client.open({"agent": AGENT, **spec}, session_id=session_id, reopen=True)


async def forget(rig: Rig, session_id: str) -> None:
    """Have Temporal forget a session, as it does after its retention."""
    temporal = rig.client.temporal
    handle = temporal.get_workflow_handle(session_id)
    await temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=temporal.namespace, workflow_execution=WorkflowExecution(workflow_id=session_id)
        )
    )

    async def forgotten() -> bool:
        try:
            await handle.describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await eventually(forgotten, bool)


def lives(rig: Rig, session_id: str) -> dict[str, Path]:
    """Folders of all generations of a session, by generation."""
    stem = rig.data.evidence / "sessions" / sha256(session_id.encode())[:32]
    return {folder.name: folder for folder in stem.iterdir() if folder.name != "payloads"}


def journal(folder: Path) -> list[Json]:
    files = sorted((folder / "journal").iterdir())
    return [json.loads(line)["payload"]["event"] for file in files for line in file.read_text().splitlines()]


async def ended(rig: Rig, session_id: str, how: str) -> str:
    """A life that has ended; its generation."""
    session = await rig.open(session_id=session_id)
    if how == "quarantined":
        await Bare(rig, session_id).record(said("who asked?", attempt_id="nobody"))
    else:
        await session.submit(call("c1"))
    outcome = await session.close()
    assert outcome.status == how
    return str(session.generation)


async def test_a4_a_closed_session_gets_another_life_of_its_own(running: Rig) -> None:
    first = await running.open(session_id="twice", breaker=SENSITIVE)
    await first.submit(call("c1"), said("the very same words"))
    closed = await first.close()
    second = await reopened(running, "twice", breaker=SENSITIVE)
    assert second.generation != first.generation
    answer = await second.submit(said("the very same words"))
    assert (answer.first_sequence, answer.verdict) == (1, "progressing")  # with the old vector it would be a loop
    view = await second.view()
    assert (view.steps, view.breaker_tokens, view.totals.tool_calls) == (1, 0, 0)
    closed_again = await second.close()

    folders = lives(running, "twice")
    assert set(folders) == {first.generation, second.generation}
    ring = json.loads((running.data.evidence / "public.json").read_text())
    for session, outcome in ((first, closed), (second, closed_again)):
        events = journal(folders[str(session.generation)])
        assert [event["metadata"]["sequence"] for event in events] == list(range(len(events)))
        assert events[0]["payload"]["generation"] == session.generation
        assert outcome.chain_head == chain_heads("twice", events)[-1]
        receipt = json.loads((folders[str(session.generation)] / "receipt.json").read_text())
        assert receipt == outcome.receipt
        check_signature(receipt, ring)
    assert (closed.event_count, closed_again.event_count) == (3, 2)
    assert closed.receipt_id != closed_again.receipt_id
    # The old handle still means the old life.
    with pytest.raises(SessionNotFound):
        await first.submit(call("c2"))
    assert (await first.result()).receipt_id == closed.receipt_id


async def test_a4_without_reopen_an_ended_session_is_refused(running: Rig) -> None:
    generation = await ended(running, "once", "closed")
    with pytest.raises(SessionRefused) as refused:
        await running.open(session_id="once")
    assert refused.value.type == "SessionEnded"
    assert set(lives(running, "once")) == {generation}


async def test_a4_without_reopen_it_is_refused_also_when_temporal_has_forgotten_it(running: Rig) -> None:
    generation = await ended(running, "forgotten", "closed")
    await forget(running, "forgotten")
    with pytest.raises((SessionRefused, SessionFailed), match="only reopen starts a fresh generation"):
        await running.open(session_id="forgotten")
    assert set(lives(running, "forgotten")) == {generation}
    # With it, there is another life, and the first one's evidence stays.
    second = await reopened(running, "forgotten")
    assert (await second.close()).event_count == 1
    assert set(lives(running, "forgotten")) == {generation, second.generation}


@pytest.mark.parametrize("known_to_temporal", [True, False])
async def test_a4_a_quarantined_session_is_never_opened_again(running: Rig, known_to_temporal: bool) -> None:
    bad = f"bad-{known_to_temporal}"
    generation = await ended(running, bad, "quarantined")
    if not known_to_temporal:
        await forget(running, bad)
    before = sorted(path.name for path in lives(running, bad)[generation].rglob("*"))
    with pytest.raises(
        (SessionRefused, SessionFailed), match="an earlier generation ended quarantined; the id is not opened again"
    ):
        await reopened(running, bad)
    with pytest.raises((SessionRefused, SessionFailed)):
        await running.open(session_id=bad)
    assert set(lives(running, bad)) == {generation}
    assert sorted(path.name for path in lives(running, bad)[generation].rglob("*")) == before


async def test_a4_a_session_that_was_terminated_is_never_opened_again(running: Rig) -> None:
    """It has no outcome: nobody knows what it would have been."""
    session = await running.open(session_id="terminated")
    await session.submit(call("c1"))
    await running.client.temporal.get_workflow_handle("terminated").terminate("an operator's accident")
    with pytest.raises(
        (SessionRefused, SessionFailed),
        match="an earlier generation ended without an outcome; the id is not opened again",
    ):
        await reopened(running, "terminated")
    assert set(lives(running, "terminated")) == {session.generation}


@pytest.mark.parametrize("known_to_temporal", [True, False])
async def test_a4_an_unsigned_one_that_ended_without_steps_is_never_opened_again(
    running: Rig, known_to_temporal: bool
) -> None:
    """Neither as what it was nor as a signed one; also where Temporal has forgotten it, and for a foreign start."""
    empty = f"empty-{known_to_temporal}"
    session = await running.open(session_id=empty, mode="unsigned")
    outcome = await session.close()
    assert (outcome.status, outcome.reason, outcome.steps) == ("quarantined", "no captured steps", 0)
    if not known_to_temporal:
        await forget(running, empty)

    async def refusal(**options: Any) -> tuple[str, str]:
        with pytest.raises(SessionRefused) as refused:
            await running.client.open({"agent": AGENT, "mode": "unsigned", **options}, session_id=empty)
        return refused.value.type, refused.value.reason

    never = (
        "SessionEnded",
        f"session {empty}: an earlier generation ended quarantined; the id is not opened again",
    )
    assert await refusal(reopen=True) == never
    assert await refusal(reopen=True, mode="signed") == never
    if not known_to_temporal:  # it lets a run begin, and the opening activity asks the store
        assert await refusal() == ("SessionNotOpened", f"opening: OpeningRefused: {ENDED}")
    assert await refusal() == never
    policy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    handle = await start(running, empty, json_payload({**SPEC, "reopen": True}), id_reuse_policy=policy)
    error = await failure(handle)
    assert (error.type, error.message) == (
        "SessionNotOpened",
        "session quarantined: opening: OpeningRefused: an earlier generation ended quarantined; the id is not opened "
        "again",
    )
    (folder,) = lives(running, empty).values()
    assert (folder.name, actions(journal(folder))) == (session.generation, ["opened"])


async def test_a4_a_step_never_reopens(running: Rig) -> None:
    generation = await ended(running, "quiet", "closed")
    session = running.client.handle("quiet")
    with pytest.raises(SessionNotFound):
        await session.submit(call("c1"))
    await session.record(call("c2"))
    with pytest.raises(SessionNotFound):
        await session.flush()
    with pytest.raises(RPCError) as error:
        await Bare(running, "quiet").step(call("c3"))
    assert error.value.status is RPCStatusCode.NOT_FOUND
    assert set(lives(running, "quiet")) == {generation}
    assert actions(journal(lives(running, "quiet")[generation])) == ["opened", "tool_call"]


async def test_a4_a_foreign_start_without_reopen_fails_at_once(running: Rig) -> None:
    generation = await ended(running, "foreign", "closed")
    policy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    handle = await start(running, "foreign", json_payload(SPEC), id_reuse_policy=policy)
    error = await failure(handle)
    assert (error.type, error.message) == (
        "SessionNotOpened",
        f"session quarantined: opening: OpeningRefused: {ENDED}",
    )
    assert set(lives(running, "foreign")) == {generation}
    handle = await start(running, "foreign", json_payload({**SPEC, "reopen": True}), id_reuse_policy=policy)
    # What only failed to open is no life of the id.
    await Bare(running, "foreign").update("close")
    assert (await handle.result())["status"] == "closed"
    assert len(lives(running, "foreign")) == 2


async def test_a4_reopening_a_living_session_joins_it(running: Rig) -> None:
    session = await running.open(session_id="alive")
    joined = await reopened(running, "alive")
    assert joined.generation == session.generation
    await ended(running, "raced", "closed")
    racing = await asyncio.gather(*(reopened(running, "raced") for _ in range(4)))
    assert len({handle.generation for handle in racing}) == 1
    assert len(lives(running, "raced")) == 2
    assert (await racing[0].close()).event_count == 1
    assert (await session.close()).event_count == 1


async def newest_run(rig: Rig, session_id: str) -> str:
    return str((await rig.client.temporal.get_workflow_handle(session_id).describe()).run_id)


@pytest.mark.parametrize("shares_the_store", [True, False])
async def test_a4_a_client_starts_nothing_for_an_id_that_is_never_opened_again(
    running: Rig, shares_the_store: bool
) -> None:
    bad = f"never-{shares_the_store}"
    generation = await ended(running, bad, "quarantined")
    client = running.client
    if not shares_the_store:
        client = await SessionClient.connect(
            address=client.temporal.service_client.config.target_host, task_queue=client.task_queue, admit_timeout=20
        )
    for reopen in (True, False):
        with pytest.raises(SessionRefused) as refused:
            await client.open({"agent": AGENT}, session_id=bad, reopen=reopen)
        assert (refused.value.type, refused.value.reason) == (
            "SessionEnded",
            f"session {bad}: an earlier generation ended quarantined; the id is not opened again",
        )
    assert await newest_run(running, bad) == generation


async def test_a4_a_reopening_is_offered_where_it_works(running: Rig) -> None:
    session = await running.open(session_id="offered")
    await session.cancel()
    assert (await session.result()).status == "cancelled"
    with pytest.raises(SessionRefused) as refused:
        await running.open(session_id="offered")
    assert refused.value.reason == "session offered has ended; reopen=True starts another life of its id"
    assert (await (await reopened(running, "offered")).close()).status == "closed"


async def test_a4_the_end_of_the_last_life_outlasts_a_foreign_run_that_failed_to_open(running: Rig) -> None:
    generation = await ended(running, "outlasting", "quarantined")
    policy = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    handle = await start(running, "outlasting", json_payload({**SPEC, "reopen": True}), id_reuse_policy=policy)
    error = await failure(handle)
    assert (error.type, error.message.partition(": ")[2]) == (
        "SessionNotOpened",
        "opening: OpeningRefused: an earlier generation ended quarantined; the id is not opened again",
    )
    for outcome in (
        await running.client.await_terminal("outlasting"),
        await running.client.terminal_state("outlasting"),
    ):
        assert outcome is not None
        assert (outcome.generation, outcome.status) == (generation, "quarantined")
    with pytest.raises(SessionRefused, match="an earlier generation ended quarantined"):
        await reopened(running, "outlasting")
    with pytest.raises(SessionFailed, match="ended without an outcome"):
        await running.client.process("outlasting", handle.first_execution_run_id).result()
