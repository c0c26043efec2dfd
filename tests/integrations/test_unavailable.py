"""Affidavit away: an agent fails closed by default, or goes on in a spool that is reported later, once and in order."""

from __future__ import annotations

import asyncio
import errno
import json
import multiprocessing
import os
import signal
import stat
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from temporalio.client import Client, RetryConfig

from affidavit.client import SessionClient
from affidavit.converter import data_converter
from affidavit.errors import AffidavitUnavailable, SessionNotFound, SessionSpooled
from affidavit.integrations.openai import attest
from affidavit.rpc import Line
from affidavit.spool import SpoolBusy, SpoolError, SpoolWriter, spool_files
from affidavit.spooling import SpoolingHandle, push
from examples.model_server import ModelServer, serving
from tests.support.agents import PARALLEL, recorded
from tests.support.oracle import attested
from tests.support.processes import environment, process
from tests.support.proxy import Proxy, proxied
from tests.support.rig import AGENT, Rig, actions
from tests.support.transport import call
from tests.support.waiting import eventually
from workers.devserver import DevServer

NOWHERE = "127.0.0.1:1"
"""A port that nothing listens on."""
IMPATIENT = RetryConfig(max_retries=1, max_elapsed_time_millis=1)
ASK = [{"role": "user", "content": "look twice"}]


@asynccontextmanager
async def cuttable(rig: Rig, server: DevServer, **options: Any) -> AsyncIterator[tuple[Proxy, SessionClient]]:
    """A client that reaches the server through a proxy, and does not wait long."""
    async with proxied(server.address) as proxy:
        temporal = await Client.connect(proxy.address, data_converter=data_converter(), retry_config=IMPATIENT)
        given = {"admit_timeout": 20, "retry_timeout": 1, **options}
        yield proxy, SessionClient(temporal, task_queue=rig.settings.task_queue, **given)


def away(proxy: Proxy, client: SessionClient) -> None:
    client.admit_timeout = 1.0
    proxy.closed = True
    proxy.cut()


async def agent(model: ModelServer, session: Any) -> str:
    @session.tool
    async def look(q: int) -> str:
        return f"seen {q}"

    messages: list[Any] = list(ASK)
    async with openai.AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0) as client:
        while True:
            answer = await attest(client, session).chat.completions.create(model="m", messages=messages)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return str(message.content)
            for each in message.tool_calls:
                result = await look.call(each.id, each.function.arguments)
                messages.append({"role": "tool", "tool_call_id": each.id, "content": result})


def spool_of(tmp_path: Path) -> Path:
    return tmp_path / "spool"


# -- failing closed ---------------------------------------------------------------------------------------


async def test_without_a_server_nothing_is_opened() -> None:
    with pytest.raises(AffidavitUnavailable, match="no Temporal server answers"):
        await SessionClient.connect(address=NOWHERE)


async def test_with_the_server_gone_the_model_is_not_called(running: Rig, server: DevServer) -> None:
    with serving(*PARALLEL) as model:
        async with cuttable(running, server) as (proxy, client):
            session = await client.open({"agent": AGENT})
            away(proxy, client)
            started = time.monotonic()
            with pytest.raises(AffidavitUnavailable):
                async with session:
                    await agent(model, session)
            took = time.monotonic() - started
    assert model.requests == []
    assert took < 15  # admit_timeout 1 s, as much to cancel, and a loaded machine


async def test_an_admission_that_got_no_answer_costs_no_receipt(running: Rig, server: DevServer) -> None:
    with serving(*PARALLEL) as model:
        async with (
            cuttable(running, server, retry_timeout=30) as (proxy, client),
            client.session({"agent": AGENT}) as session,
        ):
            await session.flush()
            client.admit_timeout, proxy.mute = 1.0, True  # the server hears the admission, we do not hear it
            with pytest.raises(AffidavitUnavailable):
                await agent(model, session)
            proxy.mute = False
            proxy.cut()
            client.admit_timeout = 20
        events = attested(running, session.outcome)
    assert model.requests == []
    assert actions(events) == ["opened", "model_request", "model_failure"]


# -- the spool --------------------------------------------------------------------------------------------


async def test_an_agent_without_a_server_is_attested_afterwards(running: Rig, tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    client = await SessionClient.connect(address=NOWHERE, on_unavailable="spool", spool=spool, admit_timeout=1)
    with serving(*PARALLEL) as model:
        async with client.session({"agent": AGENT}, key="ticket-17") as session:
            assert await agent(model, session) == "both seen"
    assert session.outcome is None
    (file,) = spool_files(spool)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700

    pushed = await push(running.client, file)
    assert (pushed.session_id, pushed.torn) == ("b028db9b-b5cf-54a7-8a7d-573f1f3aa85d", False)
    assert pushed.outcome is not None
    events = attested(running, pushed.outcome)
    assert actions(events) == [
        "opened",
        "model_request",
        "model_response",
        *["tool_call", "tool_result"] * 2,
        "model_request",
        "model_response",
    ]
    assert pushed.outcome.totals.prompt_tokens == 130
    assert all("claimed_time" in capture for capture in running.captures(pushed.session_id) if capture)
    assert list(spool.iterdir()) == []


async def test_a_session_that_loses_its_server_goes_on_in_the_spool(
    running: Rig, server: DevServer, tmp_path: Path
) -> None:
    spool = spool_of(tmp_path)
    async with (
        cuttable(running, server, on_unavailable="spool", spool=spool) as (proxy, client),
        client.session({"agent": AGENT}) as session,
    ):
        await session.record(*(call(f"c{n}") for n in range(5)))
        await session.flush()
        await session.record(call("c5"))
        away(proxy, client)
        await session.record(call("c6"))
        admitted = await session.admit()
        await session.record(call("c7"), {"kind": "model_response", "text": "a", "attempt_id": "never"})
        assert admitted.accepted
        assert (await session.flush()).event_count == 0
        with pytest.raises(SessionSpooled):
            await session.view()
        with pytest.raises(SessionSpooled, match="spool push"):
            await session.close()
    pushed = await push(running.client, spool_files(spool)[0])
    assert pushed.outcome is not None
    events = attested(running, pushed.outcome)
    names = [event["payload"]["call_id"] for event in events if event["payload"]["action"] == "tool_call"]
    assert names == [f"c{n}" for n in range(8)]
    assert pushed.outcome.steps == 9


async def test_what_was_posted_survives_a_full_disk_on_the_way_into_the_spool(
    running: Rig, server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, real, full = spool_of(tmp_path), SpoolWriter.append, True

    def append(self: SpoolWriter, line: bytes) -> None:
        if full and line.startswith(b'{"steps"'):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, line)

    monkeypatch.setattr(SpoolWriter, "append", append)
    async with (
        cuttable(running, server, on_unavailable="spool", spool=spool) as (proxy, client),
        client.session({"agent": AGENT}) as session,
    ):
        away(proxy, client)
        session.post(call("c0"))
        with pytest.raises(OSError, match="No space left"):
            await session.flush()
        full = False
        await session.record(call("c1"))
    pushed = await push(running.client, spool_files(spool)[0])
    assert pushed.outcome is not None
    events = attested(running, pushed.outcome)
    assert [event["payload"]["call_id"] for event in events[1:]] == ["c0", "c1"]


async def test_a_submit_whose_answer_is_lost_is_there_once(running: Rig, server: DevServer, tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    async with (
        cuttable(running, server, on_unavailable="spool", spool=spool) as (proxy, client),
        client.session({"agent": AGENT}) as session,
    ):
        await session.flush()
        proxy.mute = True
        submitting = asyncio.create_task(session.submit(call("c0")))
        await eventually(running.client.handle(session.session_id).view, lambda view: view.steps == 1)
        away(proxy, client)
        assert (await submitting).first_sequence is None
        await session.record(call("c1"))
    pushed = await push(running.client, spool_files(spool)[0])
    assert pushed.outcome is not None
    events = attested(running, pushed.outcome)
    assert [event["payload"]["call_id"] for event in events[1:]] == ["c0", "c1"]
    assert pushed.outcome.repeated == 1


async def test_an_agent_that_fails_while_the_server_is_away_is_cancelled_by_the_push(
    running: Rig, server: DevServer, tmp_path: Path
) -> None:
    spool = spool_of(tmp_path)

    async def work() -> None:
        async with (
            cuttable(running, server, on_unavailable="spool", spool=spool) as (proxy, client),
            client.session({"agent": AGENT}) as session,
        ):
            away(proxy, client)
            session.post(call("c0"))
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        await work()
    pushed = await push(running.client, spool_files(spool)[0])
    assert pushed.outcome is not None
    assert (pushed.outcome.status, pushed.outcome.steps) == ("cancelled", 1)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_a_push_that_is_killed_goes_on_where_it_was(
    running: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    file = await spooled(tmp_path, 150)  # three messages
    real, delivered = Line.signal, 0

    async def dying(self: Line, message: bytes) -> None:
        nonlocal delivered
        if delivered == after:
            raise KeyboardInterrupt
        await real(self, message)
        delivered += 1
        if delivered == after:
            raise KeyboardInterrupt  # it was taken, and nothing is noted of it

    monkeypatch.setattr(Line, "signal", dying)
    with pytest.raises(KeyboardInterrupt):
        await push(running.client, file)
    monkeypatch.undo()
    pushed = await push(running.client, file)
    assert pushed.outcome is not None
    events = attested(running, pushed.outcome)
    assert [event["payload"]["call_id"] for event in events[1:]] == [f"c{n}" for n in range(150)]
    assert not file.exists()


async def test_a_push_that_is_killed_after_the_close_does_not_open_another_life(running: Rig, tmp_path: Path) -> None:
    file = await spooled(tmp_path, 1, reopen=True)
    copy = file.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("affidavit.spool.SpoolReader.remove", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            await push(running.client, file)
    assert file.read_bytes() == copy
    pushed = await push(running.client, file)
    assert pushed.outcome is not None
    assert running.folder(pushed.session_id).name == pushed.outcome.generation  # the only one
    assert pushed.outcome.steps == 1


async def test_two_pushes_at_once_report_it_once(running: Rig, tmp_path: Path) -> None:
    file = await spooled(tmp_path, 100)
    both = await asyncio.gather(push(running.client, file), push(running.client, file), return_exceptions=True)
    (failed,) = [each for each in both if isinstance(each, BaseException)]
    assert isinstance(failed, SpoolError)
    (pushed,) = [each for each in both if not isinstance(each, BaseException)]
    assert pushed.outcome is not None
    assert (pushed.outcome.steps, pushed.outcome.repeated) == (100, 0)


async def test_a_spool_that_is_still_written_is_not_pushed(running: Rig, tmp_path: Path) -> None:
    client = await SessionClient.connect(address=NOWHERE, on_unavailable="spool", spool=spool_of(tmp_path))
    client.admit_timeout = 0.5
    session = await client.open({"agent": AGENT})
    assert isinstance(session, SpoolingHandle)
    assert session.spool is not None
    with pytest.raises(SpoolBusy):
        await push(running.client, session.spool)


async def test_a_runtime_that_is_killed_leaves_a_spool_that_can_be_pushed(running: Rig, tmp_path: Path) -> None:
    folder = spool_of(tmp_path)
    runtime = multiprocessing.get_context("spawn").Process(target=_spool_and_die, args=(folder,))
    runtime.start()
    await asyncio.to_thread(runtime.join, 60)
    assert runtime.exitcode == -signal.SIGKILL
    (file,) = spool_files(folder)
    pushed = await push(running.client, file)
    assert (pushed.torn, pushed.outcome, pushed.messages) == (True, None, 1)
    outcome = await running.client.handle("killed").close()
    assert [event["payload"]["action"] for event in attested(running, outcome)] == ["opened", "tool_call"]


async def test_a_session_that_ended_meanwhile_keeps_its_spool(running: Rig, server: DevServer, tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    async with (
        cuttable(running, server, on_unavailable="spool", spool=spool) as (proxy, client),
        client.session({"agent": AGENT}) as session,
    ):
        away(proxy, client)
        await session.admit()
        await session.record(call("late"))
    await running.client.handle(session.session_id).close()
    (file,) = spool_files(spool)
    with pytest.raises(SessionNotFound):
        await push(running.client, file)
    assert file.exists()
    assert recorded(running, session.session_id, "tool_call") == []


async def test_a_spool_of_which_something_was_not_reported_is_kept(
    running: Rig, server: DevServer, tmp_path: Path
) -> None:
    file = await spooled(tmp_path, 3)
    lines = file.read_bytes().splitlines(keepends=True)
    bad = lines[1][:30] + lines[2]  # what a full disk once left of a line, and the next one behind it
    refused = b'{"steps":[{"kind":"tool_call","call_id":7}]}\n'
    file.write_bytes(b"".join([*lines[:2], bad, refused, *lines[2:]]))
    pushed = await push(running.client, file)
    assert (pushed.bad, pushed.rejected, pushed.messages, pushed.kept) == (1, 1, 4, True)
    assert pushed.outcome is not None
    events = attested(running, pushed.outcome)
    assert actions(events) == ["opened", "tool_call", "message_rejected", "tool_call", "tool_call"]
    assert file.exists()

    arguments = ("-m", "affidavit.cli", "spool", "push", "--spool", str(spool_of(tmp_path)), "--json")
    async with process(arguments, environment(running, server.address), tmp_path / "log") as command:
        out, _ = await command.communicate()
    assert command.returncode == 1
    assert json.loads(out)["failed"] == {
        file.name: "not all of it was reported: 1 lines cannot be read, the session did not take 1 messages; "
        "the file is kept"
    }
    assert file.exists()


async def test_the_command_pushes_a_folder_and_says_what_it_did(
    running: Rig, server: DevServer, tmp_path: Path
) -> None:
    file = await spooled(tmp_path, 3)
    spool, env = str(spool_of(tmp_path)), environment(running, server.address)
    (spool_of(tmp_path) / "other.spool").write_text("no spool\n")
    log = tmp_path / "log"
    async with process(("-m", "affidavit.cli", "spool", "push", "--spool", spool, "--json"), env, log) as command:
        out, _ = await command.communicate()
    assert command.returncode == 1  # because of the other file
    told = json.loads(out)
    assert told["failed"] == {"other.spool": "a line of it cannot be read"}
    (pushed,) = told["pushed"]
    assert (pushed["file"], pushed["messages"], pushed["status"]) == (file.name, 3, "closed")
    assert [path.name for path in spool_files(spool_of(tmp_path))] == ["other.spool"]
    assert "Traceback" not in log.read_text()


async def test_without_a_server_the_command_says_so_and_keeps_everything(running: Rig, tmp_path: Path) -> None:
    file = await spooled(tmp_path, 1)
    arguments = ("-m", "affidavit.cli", "spool", "push", "--spool", str(spool_of(tmp_path)))
    async with process(arguments, environment(running, NOWHERE), log := tmp_path / "log") as command:
        await command.communicate()
    assert command.returncode == 4
    assert log.read_text().startswith("error: no Temporal server answers")
    assert file.exists()


async def spooled(tmp_path: Path, steps: int, **spec: Any) -> Path:
    """A spool file of a session that was closed."""
    client = await SessionClient.connect(address=NOWHERE, on_unavailable="spool", spool=spool_of(tmp_path))
    client.admit_timeout = 0.5
    async with client.session({"agent": AGENT, **spec}, session_id=f"spooled-{uuid.uuid4()}") as session:
        for number in range(steps):
            await session.record(call(f"c{number}"))
    (file,) = spool_files(spool_of(tmp_path))
    return file


def _spool_and_die(folder: Path) -> None:
    spec = {"agent": AGENT.model_dump(exclude_none=True)}
    writer = SpoolWriter(folder, session_id="killed", generation=None, spec=spec)
    step = {**call("c0"), "producer": "p", "producer_seq": 1}
    writer.append(json.dumps({"steps": [step]}, separators=(",", ":")).encode())
    os.write(writer._file, b'{"steps":[{"kind"')
    os.kill(os.getpid(), signal.SIGKILL)
