"""Unsigned sessions: a trajectory at the end, a receipt afterwards (F1, F2, F3, F7, F8, G4, G6, case 22)."""

# ruff: noqa: ASYNC240 - small local files

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowFailureError

from affidavit.cli import run as command
from affidavit.client import SessionHandle
from affidavit.contract import promotion_id
from affidavit.errors import SessionRefused
from affidavit.evidence.bundle import DirectoryReader, write_bundle
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.trajectory import compare, validate
from affidavit.importing import read_run
from tests.support import proof
from tests.support.halves import check_once, store_of
from tests.support.rig import Rig, actions
from tests.support.taps import LIMIT_S, Outage, TapStore
from tests.support.trajectories import accept
from tests.unit.evidence.trajectory.test_roundtrip import RUNS
from workers.devserver import DevServer

ROOT = Path(__file__).parents[2]
RESULT_OF_A_WORKFLOW: Final = "workflow_execution_completed_event_attributes"
REQUEST = {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}]}
RESPONSE = {
    "kind": "model_response",
    "text": "I will look.",
    "tool_calls": [{"call_id": "c1", "name": "search", "arguments": {"q": "needle"}}],
    "finish_reason": "tool_calls",
    "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost_usd": 0.25},
}
CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}}
RESULT = {"kind": "tool_result", "call_id": "c1", "content": "here"}
STEPS = (REQUEST, RESPONSE, CALL, RESULT)


async def open_unsigned(rig: Rig, **spec: Any) -> SessionHandle:
    return await rig.open(mode="unsigned", **spec)


def trajectory_of(rig: Rig, session_id: str) -> tuple[bytes, Any]:
    data = (rig.folder(session_id) / "trajectory.json").read_bytes()
    return data, json.loads(data)


# -- F1, F2, F3: the unsigned halves ------------------------------------------------------------------


async def test_f1_unsigned_the_trajectory_is_written_and_then_closed(running: Rig) -> None:
    session = await open_unsigned(running)
    await session.record(*STEPS)
    outcome = await session.close()

    data, document = trajectory_of(running, session.session_id)
    accept(document)
    assert (outcome.status, outcome.published, outcome.mode) == ("closed", True, "unsigned")
    assert outcome.trajectory_digest == hashlib.sha256(data).hexdigest()
    assert (outcome.receipt, outcome.receipt_id) == (None, None)
    assert not (running.folder(session.session_id) / "receipt.json").exists()

    events = running.bus(session.session_id)
    assert actions(events) == ["opened", "model_request", "model_response", "tool_call", "tool_result", "closed"]
    assert [event["metadata"]["sequence"] for event in events] == list(range(6))
    check_once(running, session.session_id)
    head = proof.chain_head(session.session_id, events)
    assert events[-1]["payload"] == {
        "action": "closed",
        "mode": "unsigned",
        "outcome": "closed",
        "chain_head": head,
        "event_count": 5,
    }
    provenance = json.loads((running.folder(session.session_id) / "trajectory.provenance.json").read_bytes())
    assert provenance["payload"] == {
        "trajectory_digest": outcome.trajectory_digest,
        "step_count": 2,
        "chain_head": head,
        "event_count": 5,
        "generation": outcome.generation,
    }
    sealed = json.loads((running.folder(session.session_id) / "outcome.json").read_text())["payload"]
    assert (sealed["status"], sealed["trajectory_digest"]) == ("closed", outcome.trajectory_digest)


async def test_f1_the_trajectory_says_what_was_reported(running: Rig) -> None:
    extra = {"notes": "a trial", "project": "haystack"}
    session = await open_unsigned(running, model_name="m-1", external_ref="run-0", trajectory_extra=extra)
    await session.record(*STEPS)
    outcome = await session.close()
    _, document = trajectory_of(running, session.session_id)
    user, agent = document["steps"]
    assert (user["source"], user["message"]) == ("user", "find the needle")
    assert agent["metrics"]["prompt_tokens"] == 9
    assert agent["observation"]["results"] == [{"source_call_id": "c1", "content": "here"}]
    assert agent["tool_calls"][0]["extra"]["affidavit"] == {"allowed": True}
    assert document["agent"]["model_name"] == "m-1"
    assert document["notes"] == "a trial"
    assert document["extra"]["project"] == "haystack"
    ours = document["extra"]["affidavit"]
    assert (ours["external_ref"], ours["generation"]) == ("run-0", outcome.generation)
    assert document["final_metrics"]["extra"]["stop_reason_id"] == outcome.stop_reason_id


async def test_f2_unsigned_closing_again_gives_the_same_trajectory(running: Rig) -> None:
    session = await open_unsigned(running)
    await session.submit(*STEPS)
    outcomes = await asyncio.gather(*(running.client.handle(session.session_id).close() for _ in range(8)))
    outcomes.append(await session.close())
    assert {outcome.trajectory_digest for outcome in outcomes} == {outcomes[0].trajectory_digest}
    assert outcomes[0].trajectory_digest is not None
    assert actions(running.bus(session.session_id)).count("closed") == 1


@pytest.mark.parametrize("place", ["trajectory.json", "trajectory.provenance.json"])
async def test_f2_an_attempt_that_dies_after_its_write_leaves_one_trajectory(rig: Rig, place: str) -> None:
    outage = Outage(lambda: OSError(5, "Input/output error"))
    store = TapStore(store_of(rig), after=lambda name: outage.strike() if name.endswith(place) else None)
    async with rig.worker(store=store):
        session = await open_unsigned(rig)
        await session.record(*STEPS)
        closing = asyncio.create_task(session.close())
        await outage.met_times(2)
        kept = (rig.folder(session.session_id) / place).read_bytes()
        assert not closing.done()
        outage.end()
        outcome = await closing
    assert outcome.status == "closed"
    assert (rig.folder(session.session_id) / place).read_bytes() == kept
    assert store.written.count(f"{Path(*store.written[-1].split('/')[:3])}/{place}") == 1
    check_once(rig, session.session_id)


async def test_f3_unsigned_without_a_captured_step_it_is_quarantined(running: Rig) -> None:
    session = await open_unsigned(running)
    outcome = await session.close()
    assert (outcome.status, outcome.reason) == ("quarantined", "no captured steps")
    assert actions(running.bus(session.session_id)) == ["opened", "quarantined"]
    assert list(running.folder(session.session_id).glob("traj*")) == []
    with pytest.raises(WorkflowFailureError):
        await running.client.temporal.get_workflow_handle(session.session_id).result()
    with pytest.raises(SessionRefused, match="session ended quarantined: no captured steps") as refused:
        await session.promote()
    assert refused.value.type == "NothingToAttest"


async def test_f7_an_unsigned_session_that_was_cancelled_has_a_trajectory(running: Rig) -> None:
    session = await open_unsigned(running)
    await session.submit(*STEPS)
    await session.cancel()
    outcome = await session.result()
    _, document = trajectory_of(running, session.session_id)
    accept(document)
    assert (outcome.status, outcome.stop_reason_id) == ("cancelled", 99)
    assert document["final_metrics"]["extra"]["stop_reason_id"] == 99
    receipt = await session.promote()
    assert (receipt["stop_reason_id"], receipt["subject"]["trajectory_digest"]) == (99, outcome.trajectory_digest)


async def test_f10_a_capture_changed_on_disk_makes_no_trajectory(running: Rig) -> None:
    session = await open_unsigned(running)
    await session.submit(*STEPS)
    (path,) = (
        file for file in (running.folder(session.session_id) / "captures").iterdir() if b"needle" in file.read_bytes()
    )
    path.write_bytes(path.read_bytes().replace(b"needle", b"noodle", 1))
    outcome = await session.close()
    assert outcome.status == "quarantined"
    assert outcome.reason is not None
    assert "the capture of event 1 is not the one digested" in outcome.reason
    assert list(running.folder(session.session_id).glob("traj*")) == []


# -- F8: promotion ------------------------------------------------------------------------------------


async def test_f8_promote_closes_an_open_session_awaits_it_and_attests_its_trajectory(running: Rig) -> None:
    session = await open_unsigned(running)
    await session.record(*STEPS)
    receipt = await session.promote()
    data, _ = trajectory_of(running, session.session_id)
    assert session.outcome is not None
    assert session.outcome.status == "closed"
    assert receipt["subject"] == {
        "kind": "atif_trajectory",
        "trajectory_digest": hashlib.sha256(data).hexdigest(),
        "step_count": 2,
        "retroactive": True,
    }
    proof.check_signature(receipt, json.loads((running.data.keys / "public.json").read_text()))
    assert actions(running.bus(session.session_id))[-2:] == ["closed", "receipt"]
    check_once(running, session.session_id)


async def test_f8_eight_at_once_on_an_open_session_give_one_receipt(running: Rig) -> None:
    session = await open_unsigned(running)
    await session.submit(*STEPS)
    receipts = await asyncio.gather(*(running.client.handle(session.session_id).promote() for _ in range(8)))
    assert receipts == [receipts[0]] * 8
    assert actions(running.bus(session.session_id)).count("receipt") == 1


async def test_f8_the_receipt_says_what_the_session_counted(running: Rig) -> None:
    session = await open_unsigned(running)
    blocked = {**CALL, "call_id": "c2", "allowed": False, "stage": "budget", "ttl_remaining_s": 7}
    await session.record(*STEPS, blocked)
    receipt = await session.promote()
    assert receipt["tool_calls"] == {"total": 2, "allowed": 1, "blocked": 1}
    assert receipt["cost"]["cost_usd_micros"] == 250_000
    assert receipt["ai_agent"]["ttl_remaining_s"] == 7
    assert session.outcome is not None
    assert receipt["stop_reason_id"] == session.outcome.stop_reason_id == 92


# -- G4, G6: what an auditor gets ---------------------------------------------------------------------


async def test_g4_verify_recomputes_the_digest_of_a_trajectory_file(running: Rig, tmp_path: Path) -> None:
    session = await open_unsigned(running)
    await session.record(*STEPS)
    await session.promote()
    folder, key = running.folder(session.session_id), str(running.data.keys / "public.json")
    verify = ["verify", str(folder / "receipt.json"), "--key", key, "--trajectory"]
    assert command([*verify, str(folder / "trajectory.json")]) == 0
    assert command([*verify, str(folder / "trajectory.json"), "--events", str(folder)]) == 0
    assert command(["verify", str(folder), "--key", key]) == 0
    changed = tmp_path / "changed.json"
    changed.write_bytes((folder / "trajectory.json").read_bytes().replace(b"needle", b"noodle", 1))
    assert command([*verify, str(changed)]) == 1


async def test_g6_a_promoted_session_bundles_and_verifies(
    running: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = await open_unsigned(running)
    await session.record(*STEPS)
    await session.promote()
    assert session.outcome is not None
    made = tmp_path / "session.zip"
    write_bundle(DirectoryReader(running.data.evidence), session.session_id, session.outcome.generation, made)
    journal_key = str(running.data.keys / "journal.key")
    arguments = ["verify", str(made), "--key", str(running.data.keys / "public.json"), "--journal-key", journal_key]
    capsys.readouterr()
    assert command([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "valid"
    names = {check["name"] for check in told["checks"]}
    assert {"trajectory", "provenance", "chain", "totals", "lifecycle", "captures", "outcome"} <= names
    assert Keyring.parse((running.data.keys / "public.json").read_bytes()).find(told["receipt"]["key_id"])


async def test_g6_an_unsigned_session_that_was_not_promoted_has_nothing_to_bundle(
    running: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = await open_unsigned(running)
    await session.record(*STEPS)
    await session.close()
    bundle = ["bundle", session.session_id, "-o", str(tmp_path / "s.zip"), "--data-dir", str(running.data.root)]
    assert command(bundle) == 1
    told = capsys.readouterr().err
    assert "has no receipt: it is unsigned;" in told
    assert told.endswith(f" promote {session.session_id}` gets one first\n")


# -- case 22 ------------------------------------------------------------------------------------------


async def test_case_22_format_conformance(running: Rig) -> None:
    """Orphans, repeated ids, a result before its call, no metrics, calls on a message of the system."""
    system = {"role": "system", "content": "rules", "tool_calls": [{"call_id": "s1", "name": "x", "arguments": {}}]}
    twice = [{"call_id": "d", "name": "one", "arguments": {"n": 1}}, {"call_id": "d", "name": "two", "arguments": {}}]
    session = await open_unsigned(running)
    await session.record(
        {"kind": "model_request", "messages": [system, {"role": "user", "content": "go"}]},
        {"kind": "tool_result", "content": "of no call"},
        {"kind": "tool_result", "call_id": "early", "content": "before its call"},
        {"kind": "model_response", "text": "both", "tool_calls": twice},
        {"kind": "tool_result", "call_id": "d", "content": {"n": 1}},
        {"kind": "model_response", "text": "late", "tool_calls": [{"call_id": "early", "name": "x", "arguments": {}}]},
        {"kind": "model_response", "text": "end", "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    outcome = await session.close()
    assert outcome.status == "closed"
    _, document = trajectory_of(running, session.session_id)
    accept(document)  # our strict check and more, the schema, and the independent package
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    assert all("tool_calls" not in step for step in steps if step["source"] != "agent")
    totals = document["final_metrics"]
    sums = [sum(step.get("metrics", {}).get(name, 0) for step in steps) for name in ("prompt_tokens", "cached_tokens")]
    assert [totals["total_prompt_tokens"], totals["total_cached_tokens"]] == sums
    assert totals["total_steps"] == len(steps)
    orphans = [
        result["extra"]["affidavit"]["orphan_call_id"]
        for step in steps
        for result in step.get("observation", {}).get("results", ())
        if "orphan_call_id" in result.get("extra", {}).get("affidavit", {})
    ] + [
        step["extra"]["affidavit"]["orphan_call_id"]
        for step in steps
        if "orphan_call_id" in step.get("extra", {}).get("affidavit", {})
    ]
    assert orphans == ["early"]
    assert json.dumps(document).count("of no call") == json.dumps(document).count("before its call") == 1


# -- a recorded run, in and out -----------------------------------------------------------------------


async def test_a_replayed_run_compares_equal_to_the_original(running: Rig) -> None:
    original = json.loads((ROOT / "affidavit/samples/support-agent.json").read_text())
    run = read_run(json.dumps(original).encode())
    session = await running.client.open(run.spec(mode="unsigned"))
    for turn in run.turns():
        await session.record(*turn)
    await session.close()
    _, document = trajectory_of(running, session.session_id)
    assert compare(original, document) == []
    assert validate(document, "writer") == []


async def test_every_construct_of_the_format_survives_a_real_session(running: Rig) -> None:
    """The runs that the exporter is tested with, reported to sessions of their own, all at once."""

    async def difference(original: dict[str, Any]) -> list[Any]:
        run = read_run(json.dumps(original).encode())
        session = await running.client.open(run.spec(mode="unsigned"))
        for turn in run.turns():
            await session.record(*turn)
        assert (await session.close()).status == "closed"
        _, document = trajectory_of(running, session.session_id)
        accept(document)
        return compare(original, document)

    found = await asyncio.gather(*(difference(original) for original in RUNS.values()))
    assert dict(zip(RUNS, found, strict=True)) == {name: [] for name in RUNS}


def _cli(server: DevServer, rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, "AFFIDAVIT_DATA_DIR": str(rig.data.root)}
    return subprocess.run(
        [sys.executable, "-m", "affidavit.cli", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


async def test_the_commands_from_replay_to_verify(server: DevServer, rig: Rig, tmp_path: Path) -> None:
    """replay --mode unsigned, export, compare, promote, bundle, verify: as an operator types them."""
    sample = str(ROOT / "affidavit/samples/support-agent.json")
    session_id, key = f"replayed-{uuid.uuid4()}", str(rig.data.keys / "public.json")
    exported, zipped = str(tmp_path / "out.json"), str(tmp_path / "session.zip")

    async def said(*arguments: str) -> str:
        done = await asyncio.to_thread(_cli, server, rig, *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    # The commands know the product's own task queue alone.
    default = Rig(rig.client, rig.data, rig.settings.model_copy(update={"task_queue": "affidavit"}))
    async with default.worker():
        replayed = await said("replay", sample, "--mode", "unsigned", "--session-id", session_id)
        assert "closed" in replayed
        assert "the stored bytes" in await said("trajectory", "export", session_id, "-o", exported)
        assert "VALID (writer)" in await said("trajectory", "validate", exported, "--profile", "writer")
        assert "EQUAL" in await said("trajectory", "compare", sample, exported)
        receipt = json.loads(await said("promote", session_id, "--json"))
    digest = hashlib.sha256(Path(exported).read_bytes()).hexdigest()
    assert receipt["subject"]["trajectory_digest"] == digest
    await said("bundle", session_id, "-o", zipped)
    assert (await said("verify", zipped, "--key", key)).splitlines()[-1] == "receipt: VALID"


# -- a long session -----------------------------------------------------------------------------------


async def test_a_5_000_step_session_exports_and_nothing_of_it_passes_through_one_payload(
    running: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step for number in range(500) for step in _turn(number)]
    session = await open_unsigned(running, breaker={"min_tokens": 1_000_000}, limits={"queue": 10_000})
    for first in range(0, len(steps), 1000):
        await session.record(*steps[first : first + 1000])
        await session.flush()
    outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 5000)
    data, document = trajectory_of(running, session.session_id)
    assert len(document["steps"]) == 1000
    assert validate(document, "writer") == []
    receipt = await session.promote()
    assert receipt["subject"]["trajectory_digest"] == outcome.trajectory_digest == hashlib.sha256(data).hexdigest()
    sizes = [
        size
        for workflow_id in (session.session_id, promotion_id(session.session_id, outcome.generation))
        for size in await sizes_at_the_end(running, workflow_id)
    ]
    with capsys.disabled():
        print(f"\n5 000 steps, a trajectory of {len(data) / 1e6:.1f} MB: no event of its end over {max(sizes)} bytes")
    assert len(sizes) == 10
    assert max(sizes) < 20_000 < len(data)


async def sizes_at_the_end(rig: Rig, workflow_id: str) -> list[int]:
    """Bytes of the history events that stand for what is done when a session ends, inputs and results alike."""
    ending, sizes = set(), []
    async for event in rig.client.temporal.get_workflow_handle(workflow_id).fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name in ("trajectory", "promote", "lifecycle", "outcome"):
            ending.add(event.event_id)
        completed = event.activity_task_completed_event_attributes.scheduled_event_id
        if event.event_id in ending or completed in ending or event.HasField(RESULT_OF_A_WORKFLOW):
            sizes.append(event.ByteSize())
    return sizes


def _turn(number: int) -> list[dict[str, Any]]:
    """Ten steps: a question, an answer with four calls, the calls and their results."""
    text = f"{number} " + "x" * 400
    calls = [{"call_id": f"c{number}-{n}", "name": "search", "arguments": {"n": n}} for n in range(4)]
    ids = [call["call_id"] for call in calls]
    return [
        {"kind": "model_request", "messages": [{"role": "user", "content": text}]},
        {"kind": "model_response", "text": text, "tool_calls": calls, "usage": {"prompt_tokens": 1}},
        *({"kind": "tool_call", "call_id": call_id, "tool": "search", "allowed": True} for call_id in ids),
        *({"kind": "tool_result", "call_id": call_id, "content": text} for call_id in ids),
    ]
