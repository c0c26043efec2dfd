"""P19: what is pruned is gone whole, what must stay stays, and a prune that dies is finished by the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract
from affidavit.cli import run as command
from affidavit.client import SessionHandle
from affidavit.errors import AffidavitUnavailable, SessionFailed, SessionPruned, SessionRefused
from affidavit.stores.local import DirectoryStore
from tests.support.bare import Bare, asked, call, said
from tests.support.grants import book as book
from tests.support.rig import AGENT, Rig
from tests.support.sending import Sending
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from tests.workflow.test_a4_reopening import lives
from tests.workflow.test_a4_reopening import server as server

LATER = "2100-01-01"
LONG_AGO = "2020-01-01"
USED = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
SECRET = "the patient's name is Ada"


class Prune:
    """Runs commands as an operator would, and remembers what was printed."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        self._rig, self._capsys = rig, capsys

    async def __call__(self, *arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(command, [*arguments, "--data-dir", str(self._rig.data.root)])
        out, err = self._capsys.readouterr()
        return code, out + err

    async def report(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, printed = await self("prune", *arguments, "--json")
        document: dict[str, Any] = json.loads(printed)
        return code, document

    async def verify(self, path: Path, *arguments: str) -> tuple[int, str]:
        keys = self._rig.data.keys / "public.json"
        code = await asyncio.to_thread(command, ["verify", str(path), "--key", str(keys), *arguments])
        return code, self._capsys.readouterr().out.rstrip().splitlines()[-1]


@pytest.fixture
def cli(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Prune:
    monkeypatch.setenv("TEMPORAL_ADDRESS", rig.client.temporal.service_client.config.target_host)
    monkeypatch.setenv("AFFIDAVIT_TASK_QUEUE", rig.settings.task_queue)
    return Prune(rig, capsys)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


async def signed(rig: Rig, session_id: str, **spec: Any) -> SessionHandle:
    session = await rig.open(session_id=session_id, **spec)
    await session.submit(asked(), said(SECRET, **USED), call("c1", arguments={"q": SECRET}))
    return session


async def forgotten(rig: Rig, session_id: str, run_id: str | None = None) -> bool:
    try:
        await rig.client.temporal.get_workflow_handle(session_id, run_id=run_id).describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


async def test_p19_evidence_and_executions_go_together_and_receipts_stay(
    running: Rig, cli: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 3)
    session = await signed(running, "old")
    bare = Bare(running, "old")
    for number in range(8):
        await bare.step(call(f"r{number}"))
    await eventually(session.view, lambda view: view.runs >= 2, within=LIMIT_S)
    await session.close()
    runs = [run[0].workflow_execution_started_event_attributes.original_execution_run_id for run in await bare.runs()]
    alive = await signed(running, "alive")
    folder, bus = running.folder("old"), len(running.bus("old"))
    before = names(running.data.evidence)

    # Nothing that ended later, and nothing at all in a dry run.
    code, report = await cli.report("--closed-before", LONG_AGO)
    assert (code, report["pruned"]) == (0, [])
    code, report = await cli.report("--closed-before", LATER, "--dry-run")
    assert (code, [each["session_id"] for each in report["pruned"]]) == (0, ["old"])
    assert names(running.data.evidence) == before

    code, report = await cli.report("--closed-before", LATER)
    assert (code, report["left"], report["executions"]) == (0, [], len(runs))
    (pruned,) = report["pruned"]
    assert (pruned["session_id"], pruned["status"], pruned["generation"]) == ("old", "closed", session.generation)
    assert "events on the bus stay" in report["bus"]
    assert names(folder) == ["pruned.json", "receipt.json"]
    note = json.loads((folder / "pruned.json").read_text())["payload"]
    assert (note["session_id"], note["status"], note["mode"]) == ("old", "closed", "signed")
    assert len(running.bus("old")) == bus
    for run_id in runs:

        async def gone(run_id: str = run_id) -> bool:
            return await forgotten(running, "old", run_id)

        await eventually(gone, bool, within=LIMIT_S)
    # The receipt verifies by itself; nothing is a fault; the session that lives is as it was.
    assert await cli.verify(folder / "receipt.json") == (0, "receipt: VALID")
    code, printed = await cli("audit")
    assert (code, "1 pruned" in printed) == (0, True)
    assert (await alive.view()).state == "open"
    assert (await alive.close()).status == "closed"

    # A repeat prunes nothing, and needs no server for that; with --receipts the receipt goes too.
    left = names(folder)
    code, report = await cli.report("--closed-before", pruned["closed_at"])
    assert (code, report["pruned"], names(folder)) == (0, [], left)
    code, report = await cli.report("--closed-before", _just_after(pruned["closed_at"]))
    assert (code, report["pruned"], report["objects"], names(folder)) == (0, [], 0, left)
    code, report = await cli.report("--closed-before", _just_after(pruned["closed_at"]), "--receipts")
    assert (code, report["objects"], names(folder)) == (0, 1, ["pruned.json"])
    assert (await cli("audit"))[0] == 0


def _just_after(time: str) -> str:
    """A millisecond later, so that what ended after the first session is spared."""
    return (datetime.fromisoformat(time) + timedelta(milliseconds=1)).isoformat()


async def test_p19_a_pruned_id_is_refused_as_before(running: Rig, cli: Prune) -> None:
    """A4, also after Temporal and the evidence have forgotten the session."""
    await (await signed(running, "good")).close()
    await running.open(session_id="bad")
    await Bare(running, "bad").record(said("who asked?", attempt_id="nobody"))
    assert (await running.client.handle("bad").close()).status == "quarantined"
    code, report = await cli.report("--closed-before", LATER, "--receipts")
    assert (code, sorted(each["status"] for each in report["pruned"])) == (0, ["closed", "quarantined"])
    for session_id in ("good", "bad"):

        async def gone(session_id: str = session_id) -> bool:
            return await forgotten(running, session_id)

        await eventually(gone, bool, within=LIMIT_S)
    with pytest.raises((SessionRefused, SessionFailed), match="only reopen starts a fresh generation"):
        await running.open(session_id="good")
    with pytest.raises((SessionRefused, SessionFailed), match="ended quarantined; the id is not opened again"):
        await running.client.open({"agent": AGENT}, session_id="bad", reopen=True)
    second = await running.client.open({"agent": AGENT}, session_id="good", reopen=True)
    assert (await second.close()).status == "closed"
    assert len(lives(running, "good")) == 2


async def test_p19_of_a_pruned_session_is_told_how_it_ended(running: Rig, cli: Prune) -> None:
    """Nobody waits for it, and no command ends in a traceback."""
    first = await signed(running, "told")
    ended = await first.close()
    assert (await cli("prune", "--closed-before", LATER))[0] == 0

    async def gone() -> bool:
        return await forgotten(running, "told")

    await eventually(gone, bool, within=LIMIT_S)
    process = running.client.process("told")

    async def listed() -> list[object]:
        return [each async for each in process.events()]

    async def watched() -> list[object]:
        return [each async for each in process.watch()]

    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: running.client.await_terminal("told"),
        lambda: running.client.terminal_state("told"),
        lambda: running.client.process("told", ended.generation).result(),
        lambda: running.client.process("told", ended.generation).recent_events(),
        lambda: running.client.process("told", ended.generation).await_event("closed"),
        lambda: running.client.process("told", ended.generation).count_events("opened"),
        process.recent_events,
        lambda: process.await_event("closed"),
        lambda: process.count_events("opened"),
        listed,
        watched,
        running.client.handle("told").close,
    ]
    for ask in asked:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(
                SessionPruned, match=r"^session told ended closed at 20\d\d-\S+ and was pruned at "
            ) as told:
                await ask()
        assert (told.value.status, told.value.generation) == ("closed", ended.generation)

    code, shown = await cli("show", "told", "--json")
    document, _ = json.JSONDecoder().raw_decode(shown)  # a note on standard error follows
    assert (code, document["source"], document["pruned"]["status"]) == (0, "evidence store", "closed")
    code, shown = await cli("show", "told")
    assert (code, "its evidence was erased on purpose" in shown) == (0, True)
    for arguments in (
        ("wait", "told"),
        ("tail", "told"),
        ("tail", "told", "--follow"),
        ("wait", "told", "--timeout", "1m"),
    ):
        code, printed = await cli(*arguments)
        assert (code, printed.count("\n"), printed.startswith("error: session told ended closed at ")) == (1, 1, True)

    # A later life of the id is one like any other, also when both are gone from Temporal.
    second = await running.client.open({"agent": AGENT}, session_id="told", reopen=True)
    assert await running.client.terminal_state("told") is None
    later = await second.close()
    assert (await running.client.await_terminal("told")).generation == later.generation
    with pytest.raises(SessionPruned):
        await running.client.process("told", ended.generation).result()
    assert (await cli("prune", "--closed-before", LATER))[0] == 0
    await eventually(gone, bool, within=LIMIT_S)
    with pytest.raises(SessionPruned) as told:
        await running.client.await_terminal("told")
    assert told.value.generation == later.generation


async def test_p19_after_captures_only_every_receipt_and_chain_still_verifies(
    running: Rig, cli: Prune, tmp_path: Path
) -> None:
    await (await signed(running, "signed")).close()
    promoted = await signed(running, "promoted", mode="unsigned")
    await promoted.promote()
    await (await signed(running, "full", content="full")).close()
    code, report = await cli.report("--closed-before", LATER, "--captures-only")
    assert (code, sorted(each["session_id"] for each in report["pruned"])) == (0, ["full", "promoted", "signed"])
    assert (report["executions"], report["holds_content"]) == (0, True)
    for name in ("signed", "promoted"):
        folder = running.folder(name)
        stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert SECRET.encode() not in stored
        assert not [each for each in names(folder) if each.startswith("captures/") or each == "trajectory.json"]
    for name in ("signed", "promoted", "full"):
        folder, key = running.folder(name), str(running.data.keys / "journal.key")
        assert await cli.verify(folder) == (0, "receipt: VALID")
        assert await cli.verify(folder, "--journal-key", key) == (0, "receipt: VALID")
        zipped = tmp_path / f"{name}.zip"
        assert (await cli("bundle", name, "-o", str(zipped)))[0] == 0
        assert await cli.verify(zipped) == (0, "receipt: VALID")
        assert (await running.client.handle(name).result()).status == "closed"  # Temporal still knows it
    code, printed = await cli("audit")
    assert (code, printed.splitlines()[-1]) == (0, "audit: CLEAN")
    code, report = await cli.report("--closed-before", LATER, "--captures-only")
    assert (code, report["pruned"], report["objects"]) == (0, [], 0)
    # What was erased on purpose is told from what was lost.
    (running.folder("promoted") / "erased.json").unlink()
    assert "missing" in (await cli("audit"))[1]


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_p19_a_prune_that_dies_half_way_is_finished_by_the_next(
    running: Rig, cli: Prune, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    await (await signed(running, f"dies-{after}")).close()
    folder, erased = running.folder(f"dies-{after}"), list[str]()
    delete = DirectoryStore.delete

    def dies(store: DirectoryStore, name: str) -> bool:
        if len(erased) == after:
            raise OSError(5, "Input/output error")
        erased.append(name)
        return delete(store, name)

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "delete", dies)
        code, _ = await cli("prune", "--closed-before", LATER)
        assert code != 0
    assert "pruned.json" in names(folder)
    code, printed = await cli("audit")
    assert (code, "half pruned" in printed) == (1, True)
    # The id is refused already.
    code, report = await cli.report("--closed-before", LATER)
    assert (code, len(report["pruned"]), names(folder)) == (0, 1, ["pruned.json", "receipt.json"])
    assert (await cli("audit"))[0] == 0
    code, report = await cli.report("--closed-before", LATER)
    assert (code, report["pruned"]) == (0, [])


async def test_p19_payloads_go_with_the_last_generation(running: Rig, cli: Prune) -> None:
    first = await signed(running, "big")
    await first.submit({"kind": "tool_result", "call_id": "c1", "content": "x" * 400_000})
    await first.close()
    payloads = next(iter(lives(running, "big").values())).parent / "payloads"
    assert names(payloads) != []
    second = await running.client.open({"agent": AGENT}, session_id="big", reopen=True)
    await second.submit(call("c2"))
    code, report = await cli.report("--closed-before", LATER)
    assert (code, [each["generation"] for each in report["pruned"]]) == (0, [first.generation])
    assert names(payloads) != []
    await second.close()
    code, report = await cli.report("--closed-before", LATER)
    assert (code, [each["generation"] for each in report["pruned"]]) == (0, [second.generation])
    assert not payloads.exists()
    assert (await cli("audit"))[0] == 0


async def test_p19_what_cannot_be_believed_or_still_runs_is_left(running: Rig, cli: Prune) -> None:
    session = await signed(running, "forged")
    await session.close()
    folder = running.folder("forged")
    outcome = folder / "outcome.json"
    genuine = outcome.read_bytes()
    outcome.chmod(0o600)
    outcome.write_bytes(genuine.replace(b'"status":"closed"', b'"status":"cancelled"'))
    before = names(folder)
    code, report = await cli.report("--closed-before", LATER)
    assert (code, report["pruned"], report["left"][0]["why"]) == (1, [], "authentication failed")
    assert names(folder) == before
    outcome.write_bytes(genuine)
    # One that runs is not looked at, whatever ends beside it.
    alive = await signed(running, "runs-on")
    await (await signed(running, "donor")).close()
    stem = running.folder("runs-on")
    code, report = await cli.report("--closed-before", LATER)
    assert (code, sorted(each["session_id"] for each in report["pruned"])) == (0, ["donor", "forged"])
    assert "journal/000000000000.ndjson" in names(stem)
    assert (await alive.close()).status == "closed"


async def test_p19_a_session_whose_execution_has_not_ended_yet_is_left(
    running: Rig, cli: Prune, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is sealed, and it waits for a last wake to go out."""
    deaf = True

    def silent(_: object) -> None:
        if deaf:
            raise AffidavitUnavailable("the target does not answer")

    Sending(monkeypatch).before = silent
    target = await running.open()
    session = await signed(running, "last-words", wake_target=target.session_id)
    await session.wake("good-bye")
    ending = asyncio.create_task(session.close())

    async def sealed() -> bool:
        return "outcome.json" in names(running.folder("last-words"))

    await eventually(sealed, bool, within=LIMIT_S)
    code, report = await cli.report("--closed-before", LATER)
    assert (code, report["pruned"]) == (1, [])
    assert [each["why"] for each in report["left"]] == ["its execution has not ended yet"]
    assert "journal/000000000000.ndjson" in names(running.folder("last-words"))
    deaf = False
    assert (await ending).status == "closed"
    assert (await target.close()).event_count == 2
    code, report = await cli.report("--closed-before", LATER)
    assert (code, len(report["pruned"]), report["left"]) == (0, 2, [])


async def test_p19_without_a_server_or_a_key_nothing_is_erased(
    running: Rig, cli: Prune, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await (await signed(running, "kept")).close()
    before = names(running.data.evidence)
    with monkeypatch.context() as patched:
        patched.setenv("TEMPORAL_ADDRESS", "127.0.0.1:9")
        code, printed = await cli("prune", "--closed-before", LATER)
        assert (code, "no Temporal server answers" in printed) == (4, True)
    key = running.data.keys / "journal.key"
    key.rename(key.with_name("elsewhere.key"))
    code, printed = await cli("prune", "--closed-before", LATER)
    assert (code, "--journal-key" in printed) == (2, True)
    assert names(running.data.evidence) == before
    key.with_name("elsewhere.key").rename(key)
    for arguments in (("--closed-before", "soon"), ("--closed-before", "2026-08-31T10:00:00"), ()):
        assert (await cli("prune", *arguments))[0] == 2
    code, _ = await cli("prune", "--closed-before", LATER, "--captures-only", "--receipts")
    assert code == 2
