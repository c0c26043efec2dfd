"""What commands say of a session that nobody can answer for: no worker on its queue, no server, no such session."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest

from affidavit.cli.app import run
from tests.support.bare import call
from tests.support.commands import command
from tests.support.rig import Rig
from tests.support.waiting import eventually

SPEC = {"agent": {"version": "1", "charter": "c", "instance_uid": "i"}}


async def test_a_session_whose_own_task_queue_nobody_polls_is_told_by_that_queue(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"nobody-{uuid.uuid4()}"
    temporal = running.client.temporal
    execution = await temporal.start_workflow("AgentSession", SPEC, id="elsewhere", task_queue=nobody)
    try:
        for name in ("close", "show", "cancel", "wait", "tail", "promote"):
            code, out, errors = await command(running, monkeypatch, name, "elsewhere")
            told = f"session elsewhere runs on task queue {nobody}, which no worker polls"
            assert (code, out, told in errors) == (4, "", True), (name, errors)
            assert ("evidence" in errors) == (name == "show")
    finally:
        await execution.terminate()


async def test_a_close_that_nobody_answers_says_what_it_waits_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("affidavit.cli.sessions.SILENT_S", 0.2)
    monkeypatch.setenv("TEMPORAL_ADDRESS", rig.client.temporal.service_client.config.target_host)
    queue = f"gone-{uuid.uuid4()}"
    temporal = rig.client.temporal
    execution = await temporal.start_workflow("AgentSession", SPEC, id="silent", task_queue=queue)
    # A worker that took the first task and died: Temporal goes on to list it for minutes.
    await temporal.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=temporal.namespace, task_queue=TaskQueue(name=queue), identity="dead")
    )
    closing = asyncio.create_task(asyncio.to_thread(run, ["close", "silent"]))
    told = ""

    async def said() -> str:
        nonlocal told
        told += capsys.readouterr().err
        return told

    try:
        await eventually(said, lambda text: f"waiting for session silent to close, on task queue {queue}\n" in text)
    finally:
        await execution.terminate()
    assert await closing == 1


async def test_what_has_ended_and_what_never_was_are_told_apart(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await running.open(session_id="over")).close()
    for name, *more in (("cancel",), ("abandon", "--by", "me", "--reason", "gone")):
        assert await command(running, monkeypatch, name, "over", *more) == (
            1,
            "",
            "error: session over has ended: closed\n",
        )
        code, _, errors = await command(running, monkeypatch, name, "never", *more)
        assert (code, errors) == (1, "error: no session never on the Temporal server\n")
    for name in ("wait", "tail", "promote", "close"):
        code, _, errors = await command(running, monkeypatch, name, "never")
        assert (code, errors.startswith("error: no session never on the Temporal server")) == (1, True), (name, errors)


async def test_a_namespace_that_is_not_there_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nons")
    for arguments in (("list",), ("wait", "any"), ("close", "any")):
        code, out, errors = await command(rig, monkeypatch, *arguments)
        told = "error: namespace nons is not found on the Temporal server\n"
        if arguments[0] == "wait":
            told = told.removesuffix("\n")
        assert (code, out, errors.startswith(told)) == (4, "", True), errors


async def test_with_the_server_away_a_sealed_session_is_told_from_the_data_folder(
    running: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = await running.open(session_id="sealed")
    await session.submit(call("c1"))
    await session.close()
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    place = ("--data-dir", str(running.data.root))

    assert await asyncio.to_thread(run, ["wait", "sealed", *place]) == 0
    assert "status          closed\n" in capsys.readouterr().out
    assert await asyncio.to_thread(run, ["tail", "sealed", "-n", "3", *place]) == 0
    actions = [row.split()[-1] for row in capsys.readouterr().out.splitlines()]
    assert actions == ["tool_call", "receipt", "closed"]
    for name in ("wait", "tail"):
        assert await asyncio.to_thread(run, [name, "other", *place]) == 4
        told = capsys.readouterr().err
        assert "no Temporal server answers" in told
        assert "and there is no evidence of this session in" in told
