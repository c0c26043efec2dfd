"""I: where secrets go, and what a session id can reach."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from affidavit.contract import SIGNAL_RECORD, Agent
from affidavit.errors import SessionRefused
from tests.support.halves import check_once, signing, until
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig, actions, signal_text
from tests.support.taps import LIMIT_S
from workers.devserver import DevServer

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
RESPONSE = {"kind": "model_response", "text": "done", "finish_reason": "stop", "usage": {"prompt_tokens": 7}}


def forms(secret: bytes) -> Iterator[bytes]:
    """What a secret looks like when it leaks; base64 inside other base64 in each of its three alignments."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield repr(secret)[2:-1].encode()
    yield str(list(secret))[1:-1].encode()
    for shift in range(3):
        # The characters at both ends also carry neighbouring bits.
        inner = base64.b64encode(bytes(shift) + secret + bytes(3)).decode()[4 if shift else 0 : 40]
        yield inner.encode()
        yield inner.replace("+", "-").replace("/", "_").encode()


def leaked(secret: bytes, text: bytes) -> bool:
    return any(form in text for form in forms(secret))


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: s.hex().encode(), lambda s: base64.b64encode(b"key=" + s)])
def test_i1_the_search_for_secrets_finds_them(wrap: Any) -> None:
    secret = secrets.token_bytes(32)
    assert leaked(secret, b"before " + wrap(secret) + b" after")
    assert not leaked(secret, b"before " + wrap(secrets.token_bytes(32)) + b" after")


def command_line_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def names_below(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*")]


def written_below(root: Path, but: set[Path]) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path not in but}


@pytest.mark.parametrize("source", ["files", "environment"])
async def test_i1_no_secret_is_in_anything_that_is_written(
    rig: Rig, server: DevServer, tmp_path: Path, source: str
) -> None:
    """History, evidence, bus, logs and output of a real worker, over sessions that end well and badly."""
    seed_file, key_file = rig.data.keys / "signing.seed", rig.data.keys / "journal.key"
    seed, key = seed_file.read_bytes(), key_file.read_bytes()
    env = environment(rig, server.address)
    if source == "environment":
        env = environment(
            rig,
            server.address,
            AFFIDAVIT_JOURNAL_KEY_FILES=None,
            AFFIDAVIT_SIGNING_SEED_FILE=None,
            AFFIDAVIT_JOURNAL_KEY=key.hex(),
            AFFIDAVIT_SIGNING_SEED=base64.b64encode(seed).decode(),
        )
    log = tmp_path / "worker.log"
    ids = []
    async with process(WORKERS, env, log) as worker:
        good_id, bad_id = f"good-{uuid.uuid4()}", f"bad-{uuid.uuid4()}"
        good = await rig.open(session_id=good_id)
        await good.record(CALL, RESPONSE)
        workflow = rig.client.temporal.get_workflow_handle(good_id)
        await workflow.signal(SIGNAL_RECORD, signal_text("no json"))
        with pytest.raises(SessionRefused):
            await good.refresh_identity(Agent(version="1", charter="triage", instance_uid="another"))
        assert (await good.close()).status == "closed"
        # One whose journal is spoilt under it: errors of the evidence are written into history and logs, too.
        bad = await rig.open(session_id=bad_id)
        (rig.folder(bad_id) / "journal/000000000001.ndjson").write_bytes(b"spoilt\n")
        await bad.record(CALL)
        assert (await bad.close()).status == "quarantined"
        ids = [good_id, bad_id]
        command_line = command_line_of(worker.pid)
        worker.terminate()
        assert worker.stdout is not None
        output = await asyncio.wait_for(worker.stdout.read(), LIMIT_S)
        assert await worker.wait() == 0
    texts = {"cmdline": command_line, "stdout": output, "stderr": log.read_bytes()}
    for session_id in ids:
        history = await rig.client.temporal.get_workflow_handle(session_id).fetch_history()
        texts[f"history of {session_id}"] = b"".join(event.SerializeToString() for event in history.events)
        texts[f"history of {session_id} as JSON"] = history.to_json().encode()
        described = await rig.client.temporal.get_workflow_handle(session_id).describe()
        texts[f"description of {session_id}"] = described.raw_description.SerializeToString()
    texts |= written_below(tmp_path, but={seed_file, key_file})
    # What is searched is really there.
    assert b"worker for session, signing" in texts["stderr"]
    assert b"done" in b"".join(texts.values())
    assert any("receipt.json" in name for name in texts)
    assert any("bus.sqlite" in name for name in texts)
    for name, text in texts.items():
        assert not leaked(seed, text), f"the seed is in {name}"
        assert not leaked(key, text), f"the journal key is in {name}"
        # Nor a path of the machine, where it is not the operator's own terminal.
        if name.startswith(("history", "description")):
            assert str(tmp_path).encode() not in text, f"a path is in {name}"


async def refusal(env: dict[str, str], log: Path) -> tuple[int, bytes]:
    """Exit code and everything that a worker which does not start has said."""
    async with process(WORKERS, env, log) as worker:
        assert worker.stdout is not None
        output = await asyncio.wait_for(worker.stdout.read(), LIMIT_S)
        code = await worker.wait()
    return code, output + written_below(log.parent, but=set())[str(log)]


async def test_i1_a_secret_that_others_could_read_or_swap_is_refused_in_one_line(
    rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    """And a placeholder in the environment, without being shown (I3)."""
    seed = rig.data.keys / "signing.seed"
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "open.seed").write_bytes(seed.read_bytes())
    (bad / "open.seed").chmod(0o604)
    (bad / "link.seed").symlink_to(seed)
    too_open = b"error: open.seed is open to group or others (mode 0604, must be 0600)\n"
    cases: list[tuple[dict[str, str | None], bytes]] = [
        ({"AFFIDAVIT_SIGNING_SEED_FILE": str(bad / "open.seed")}, too_open),
        ({"AFFIDAVIT_JOURNAL_KEY_FILES": str(bad / "open.seed")}, too_open),
        ({"AFFIDAVIT_SIGNING_SEED_FILE": str(bad / "link.seed")}, b"error: link.seed is a symbolic link\n"),
        (
            {"AFFIDAVIT_SIGNING_SEED_FILE": None, "AFFIDAVIT_SIGNING_SEED": "ff" * 32},
            b"error: AFFIDAVIT_SIGNING_SEED is all zero or all 0xFF\n",
        ),
    ]
    logs = tmp_path / "logs"
    logs.mkdir()
    answers = await asyncio.gather(
        *(
            refusal(environment(rig, server.address, **changes), logs / f"{place}.log")
            for place, (changes, _) in enumerate(cases)
        )
    )
    assert answers == [(2, text) for _, text in cases]


async def test_i2_the_signing_queue_carries_the_seal_and_nothing_else(running: Rig) -> None:
    session = await running.open()
    await session.record(CALL, RESPONSE)
    await session.close()
    history = await running.client.temporal.get_workflow_handle(session.session_id).fetch_history()
    scheduled = [
        (attributes.activity_type.name, attributes.task_queue.name)
        for event in history.events
        if (attributes := event.activity_task_scheduled_event_attributes).activity_type.name
    ]
    queue = running.settings.task_queue
    assert {name for name, on in scheduled if on == f"{queue}-signing"} == {"seal"}
    assert {name for name, on in scheduled if on == queue} == {"open", "journal", "publish", "lifecycle", "outcome"}
    assert len({on for _, on in scheduled}) == 2


_opened: list[str] = []
_watched: set[str] = set()


def _note_opens(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched and str(arguments[0]) in _watched:
        _opened.append(str(arguments[0]))


async def test_i2_a_worker_that_does_not_sign_never_opens_the_seed(rig: Rig) -> None:
    """Even though its settings name the file; and the one that signs opens it, which shows that opens are seen."""
    sys.addaudithook(_note_opens)  # it cannot be taken away again; without `_watched` it does nothing
    seed = str(rig.data.keys / "signing.seed")
    _watched.add(seed)
    try:
        session_only = Rig(rig.client, rig.data, rig.settings.model_copy(update={"roles": ("session",)}))
        async with session_only.worker():
            session = await rig.open()
            await session.record(CALL)
            closing = asyncio.create_task(session.close())
            await until(session, "sealing")
            assert _opened == []
            async with signing(rig):
                assert (await closing).status == "closed"
                assert _opened == [seed]
    finally:
        _watched.clear()
        _opened.clear()


async def test_i2_a_worker_that_does_not_sign_runs_without_a_seed(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    """A real process, whose seed file would be refused if it looked at it."""
    link = tmp_path / "link.seed"
    link.symlink_to(tmp_path / "nowhere")
    env = environment(rig, server.address, AFFIDAVIT_ROLES="session", AFFIDAVIT_SIGNING_SEED_FILE=str(link))
    async with process(WORKERS, env, tmp_path / "log"):
        session = await rig.open()
        result = await session.submit(CALL)
        assert (result.first_sequence, result.event_count) == (1, 2)


@pytest.mark.parametrize(
    "session_id",
    ["../../../../escape", "/escape/absolute", "..", ".", "escape\\..\\up", "escape%2f..", "~escape", "e" * 128],
)
async def test_i7_a_session_id_never_becomes_a_path(running: Rig, tmp_path: Path, session_id: str) -> None:
    before = set(tmp_path.parent.iterdir())
    session = await running.open(session_id=session_id)  # the ids are used by this test alone
    await session.record(CALL)
    outcome = await session.close()
    assert outcome.status == "closed"
    folder = running.folder(session_id)  # found by its hash
    assert folder.parent.parent == running.data.evidence / "sessions"
    assert actions(running.bus(session_id)) == ["opened", "tool_call", "receipt", "closed"]
    check_once(running, session_id)
    assert set(tmp_path.parent.iterdir()) == before
    names = names_below(tmp_path)
    # Sixteen, because the UUIDs among the names may have four in a row by chance.
    assert not [name for name in names if "escape" in name or "e" * 16 in name]
    assert sorted(path.name for path in running.data.evidence.iterdir()) == ["public.json", "sessions", "store.id"]
    assert json.loads((folder / "metadata.json").read_text())["payload"]["session_id"] == session_id
