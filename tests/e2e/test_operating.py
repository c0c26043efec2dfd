"""What an operator meets who has mistyped something, and who looks at a session that has ended."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from pathlib import Path

import pytest

from affidavit.client import SessionClient
from affidavit.errors import AffidavitUnavailable
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import AGENT, Rig
from tests.support.taps import LIMIT_S
from workers.__main__ import SETTINGS
from workers.devserver import DevServer
from workers.settings import WorkerSettings

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
COMMAND = ("-m", "affidavit.cli")


async def ran(arguments: tuple[str, ...], env: dict[str, str], log: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    async with process(arguments, env, log) as run:
        assert run.stdout is not None
        output = await asyncio.wait_for(run.stdout.read(), LIMIT_S)
        code = await run.wait()
    errors = await asyncio.to_thread(log.read_text, "utf-8")
    await asyncio.to_thread(log.unlink)
    return code, output.decode(), errors


# -- the namespace -------------------------------------------------------------------------------------


async def test_a_wrong_namespace_is_named_by_the_client(server: DevServer) -> None:
    client = await SessionClient.connect(address=server.address, namespace="nowhere")
    said = "^namespace nowhere is not found on the Temporal server$"
    with pytest.raises(AffidavitUnavailable, match=said):
        await client.open({"agent": AGENT})
    for ask in (client.handle("s").submit(CALL), client.handle("s").view(), client.handle("s").close()):
        with pytest.raises(AffidavitUnavailable, match=said):
            await ask


async def test_a_wrong_namespace_is_named_by_worker_and_command(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    env = environment(rig, server.address, TEMPORAL_NAMESPACE="nowhere", AFFIDAVIT_DATA_DIR=str(tmp_path / "none"))
    said = "error: namespace nowhere is not found on the Temporal server"
    code, _, errors = await ran(WORKERS, env, tmp_path / "log")
    assert (code, errors) == (4, f"{said}\n")
    code, output, errors = await ran((*COMMAND, "close", "s"), env, tmp_path / "log")
    assert (code, output, errors) == (4, "", f"{said}\n")
    code, _, errors = await ran((*COMMAND, "show", "s"), env, tmp_path / "log")
    assert (code, errors.partition(";")[0], errors.count("\n")) == (4, said, 1)


# -- the worker's command line and settings ------------------------------------------------------------


async def test_the_worker_prints_its_usage(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    env = environment(rig, server.address)
    code, output, errors = await ran((*WORKERS, "--help"), env, tmp_path / "log")
    assert (code, errors) == (0, "")
    assert output.startswith("usage: python -m workers [-h]\n")
    code, output, errors = await ran((*WORKERS, "--verbose"), env, tmp_path / "log")
    assert (code, output) == (2, "")
    assert errors.endswith("python -m workers: error: unrecognized arguments: --verbose\n")


def test_the_usage_names_every_setting() -> None:
    names = {f"AFFIDAVIT_{name.upper()}" for name in WorkerSettings.model_fields} - {"AFFIDAVIT_KAFKA"}
    names |= {"AFFIDAVIT_KAFKA_BOOTSTRAP"}  # one setting in the code, several variables outside
    assert [name for name in sorted(names) if f"{name} " not in SETTINGS] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AFFIDAVIT_STORE": __file__}, "AFFIDAVIT_STORE: test_operating.py: not a directory"),
        ({"AFFIDAVIT_SIGNING_SEED_FILE": ""}, "AFFIDAVIT_SIGNING_SEED_FILE: is set, but empty"),
        (
            {"AFFIDAVIT_JOURNAL_KEY_FILES": "/nowhere/j.key"},
            "AFFIDAVIT_JOURNAL_KEY_FILES: a file that it names cannot be opened: No such file or directory",
        ),
        ({"AFFIDAVIT_ROLES": "king"}, "AFFIDAVIT_ROLES: Input should be 'session' or 'signing'"),
    ],
)
async def test_a_setting_that_does_not_fit_ends_the_worker_with_one_line_and_2(
    rig: Rig, server: DevServer, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    code, output, errors = await ran(WORKERS, environment(rig, server.address, **changes), tmp_path / "log")
    assert (code, output, errors) == (2, "", f"error: {said}\n")


# -- looking at a session ------------------------------------------------------------------------------


async def test_show_tells_how_an_ended_session_ended(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    """With a worker, without one, and of an id that nobody has; on the task queue that the environment names."""
    env = environment(rig, server.address, AFFIDAVIT_DATA_DIR=str(rig.data.root))
    unknown = f"unknown-{uuid.uuid4()}"
    async with rig.worker():
        session = await rig.open()
        await session.record(CALL)
        running = json.loads((await ran((*COMMAND, "show", session.session_id, "--json"), env, tmp_path / "log"))[1])
        assert (running["view"]["state"], "outcome" in running) == ("open", False)
        receipt_id = (await session.close()).receipt_id
        code, output, errors = await ran((*COMMAND, "show", session.session_id, "--json"), env, tmp_path / "log")
        assert (code, errors) == (0, "")
        shown = json.loads(output)
        assert (shown["source"], shown["view"]["state"]) == ("temporal", "closed")
        assert shown["outcome"]["receipt_id"] == receipt_id
        assert (shown["outcome"]["status"], shown["outcome"]["stop_reason"]) == ("closed", "Session Closed")
        assert shown["outcome"]["totals"]["tool_calls"] == 1
        _, output, _ = await ran((*COMMAND, "show", session.session_id), env, tmp_path / "log")
        rows = dict(row.split(None, 1) for row in output.partition("outcome\n")[2].splitlines())
        assert (rows["status"], rows["receipt"]) == ("closed", receipt_id)
        for name, known in (("show", f"in {rig.data.root} (choose the folder with --data-dir)\n"), ("close", "")):
            code, _, errors = await ran((*COMMAND, name, unknown), env, tmp_path / "log")
            assert (code, errors.count("\n")) == (1, 1)
            assert errors.startswith(f"error: no session {unknown} on the Temporal server")
            assert known in errors


async def test_replay_says_which_server_it_uses(running: Rig, server: DevServer, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    step = {"step_id": 1, "source": "user", "message": "hello"}
    document = {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}, "steps": [step]}
    run.write_text(json.dumps(document), "utf-8")
    env = environment(running, server.address, AFFIDAVIT_DATA_DIR=str(running.data.root))
    code, output, errors = await ran((*COMMAND, "replay", str(run)), env, tmp_path / "log")
    assert code == 0, errors
    assert f"server: {server.address}, namespace default\n" in errors
    assert "server:" not in output


async def test_the_client_takes_its_task_queue_from_the_environment(
    server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await SessionClient.connect(address=server.address)).task_queue == "affidavit"
    monkeypatch.setenv("AFFIDAVIT_TASK_QUEUE", "mine")
    assert (await SessionClient.connect(address=server.address)).task_queue == "mine"
    assert (await SessionClient.connect(address=server.address, task_queue="other")).task_queue == "other"


async def test_ctrl_c_ends_dev_which_says_that_it_is_stopping(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    env = environment(rig, server.address)
    dev = (*COMMAND, "dev", "--data-dir", str(tmp_path / "dev"), "--json")
    async with process(dev, env, log := tmp_path / "log") as run:
        assert run.stdout is not None
        await asyncio.wait_for(run.stdout.readuntil(b"\n}\n"), LIMIT_S)
        run.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(run.wait(), LIMIT_S) == 0
    assert log.read_text("utf-8") == "stopping…\n"
