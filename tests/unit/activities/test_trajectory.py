"""The trajectory activity: what it writes, once, from what; and that it never holds a session in memory."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.sealed import SealedEvidence
from activities.trajectory import TrajectoryActivity
from affidavit.evidence.trajectory import MAX_BYTES, validate
from affidavit.stores.local import DirectoryStore
from tests.support import proof
from tests.support.stored import StoredSession, environment
from tests.support.trajectories import accept

ROOT = Path(__file__).parents[3]
KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
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


@pytest.fixture
def evidence(tmp_path: Path) -> SealedEvidence:
    return SealedEvidence(DirectoryStore(tmp_path / "evidence"), [KEY])


@pytest.fixture
def session(evidence: SealedEvidence) -> StoredSession:
    """Events 0 | 1 2 | 3 4."""
    made = StoredSession(evidence)
    made.report(REQUEST, RESPONSE)
    made.report(CALL, RESULT)
    return made


def folder(session: StoredSession, tmp_path: Path) -> Path:
    stem = hashlib.sha256(session.life.session_id.encode()).hexdigest()[:32]
    return tmp_path / "evidence" / "sessions" / stem / session.life.generation


def written(session: StoredSession, **wrong: Any) -> Any:
    return session.run(TrajectoryActivity(session.evidence).write, session.claims(**wrong))


def refused(session: StoredSession, **wrong: Any) -> tuple[str | None, str]:
    with pytest.raises(ApplicationError) as failed:
        written(session, **wrong)
    assert failed.value.non_retryable
    return failed.value.type, failed.value.message


def test_f1_the_trajectory_and_its_provenance_are_written(session: StoredSession, tmp_path: Path) -> None:
    result = written(session)
    data = (folder(session, tmp_path) / "trajectory.json").read_bytes()
    document = json.loads(data)
    accept(document)
    assert [step["source"] for step in document["steps"]] == ["user", "agent"]
    assert document["session_id"] == session.life.session_id
    assert document["final_metrics"]["extra"]["tool_calls"] == 1
    assert (result.trajectory_digest, result.step_count, result.size) == (
        hashlib.sha256(data).hexdigest(),
        2,
        len(data),
    )
    journal = sorted((folder(session, tmp_path) / "journal").iterdir())
    events = [json.loads(line)["payload"]["event"] for file in journal for line in file.read_text().splitlines()]
    domain = f"{session.life.session_id}#{session.life.generation}:trajectory"
    assert (folder(session, tmp_path) / "trajectory.provenance.json").read_bytes() == proof.envelope(
        KEY,
        domain,
        0,
        {
            "trajectory_digest": result.trajectory_digest,
            "step_count": 2,
            "chain_head": proof.chain_head(session.life.session_id, events),
            "event_count": 5,
            "generation": session.life.generation,
        },
    )


def test_a_repeat_finds_the_same_bytes(session: StoredSession, tmp_path: Path) -> None:
    first = written(session)
    kept = {path: (path.read_bytes(), path.stat().st_ino) for path in folder(session, tmp_path).glob("traj*")}
    assert len(kept) == 2
    assert written(session) == first
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in folder(session, tmp_path).glob("traj*")} == kept


def test_a_repeat_under_a_rotated_key_finds_the_provenance(session: StoredSession) -> None:
    first = written(session)
    session.evidence = SealedEvidence(session.evidence.store, [OTHER_KEY, KEY])
    assert written(session) == first


@pytest.mark.parametrize("name", ["trajectory.json", "trajectory.provenance.json"])
def test_other_bytes_in_its_place_are_an_integrity_error(session: StoredSession, tmp_path: Path, name: str) -> None:
    first = written(session)
    path = folder(session, tmp_path) / name
    data = path.read_bytes()
    path.write_bytes(data.replace(first.trajectory_digest.encode(), b"0" * 64) if "prov" in name else data + b" ")
    kind, message = refused(session)
    assert kind == "IntegrityError"
    assert (
        message
        == {
            "trajectory.json": "trajectory.json exists with other content",
            "trajectory.provenance.json": "trajectory.provenance.json: authentication failed",
        }[name]
    )


def test_f3_without_a_captured_step_there_is_no_trajectory(evidence: SealedEvidence, tmp_path: Path) -> None:
    session = StoredSession(evidence)
    session.own("cancel_requested")
    stop = {"stop_reason_id": 99}
    assert refused(session, **stop) == ("NoCapturedSteps", "no captured steps")
    assert list(folder(session, tmp_path).glob("traj*")) == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "chain head": ({"head": "11" * 32}, "the journal does not have the claimed chain head"),
    "event count": ({"count": 4}, "the journal does not have the claimed event count"),
    "totals": ({"totals": {"tool_calls": 2}}, "the journal does not have the claimed totals"),
    "stop reason": ({"stop_reason_id": 1}, "the journal does not have the claimed stop reason"),
    "generation": ({"generation": "another"}, "the generation is not the caller's own"),
}


@pytest.mark.parametrize("name", WRONG)
def test_f10_claims_that_the_journal_does_not_bear_out(session: StoredSession, tmp_path: Path, name: str) -> None:
    wrong, reason = WRONG[name]
    assert refused(session, **wrong) == ("IntegrityError", reason)
    assert list(folder(session, tmp_path).glob("traj*")) == []


TAMPERED: dict[str, tuple[str, bytes, bytes, str]] = {
    "an event": ("journal/000000000001.ndjson", b'"roles":["user"]', b'"roles":["usir"]', "journal record 1: auth"),
    "a capture": ("captures/000000000003.ndjson", b"here", b"hare", "the capture of event 4 is not the one digested"),
    "the metadata": ("metadata.json", b'{"index":0,', b'{"index":1,', "metadata.json: authentication"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_f10_one_byte_changed_on_disk_and_there_is_no_trajectory(
    session: StoredSession, tmp_path: Path, name: str
) -> None:
    place, old, new, reason = TAMPERED[name]
    path = folder(session, tmp_path) / place
    assert path.read_bytes().count(old) == 1
    path.write_bytes(path.read_bytes().replace(old, new))
    kind, message = refused(session)
    assert (kind, message[: len(reason)]) == ("IntegrityError", reason)
    assert list(folder(session, tmp_path).glob("traj*")) == []


def test_a_missing_captures_segment_makes_no_trajectory(session: StoredSession, tmp_path: Path) -> None:
    (folder(session, tmp_path) / "captures/000000000003.ndjson").unlink()
    assert refused(session) == ("IntegrityError", "000000000003.ndjson is not in the evidence store")


def test_a_signed_session_gets_none(evidence: SealedEvidence) -> None:
    session = StoredSession(evidence, mode="signed")
    session.report(REQUEST)
    assert refused(session) == ("IntegrityError", "a signed session gets no trajectory at its end")


@pytest.mark.parametrize(
    ("workflow_type", "run_id", "reason"),
    [
        ("Stranger", None, "only a session reaches its evidence"),
        ("AgentSession", "another-run", "the session was reset; its capture cannot be continued"),
    ],
)
def test_f10_nobody_but_the_session_itself(
    session: StoredSession, workflow_type: str, run_id: str | None, reason: str
) -> None:
    stranger = environment(workflow_type, session.life.session_id, run_id or session.life.generation)
    with pytest.raises(ApplicationError, match=reason):
        stranger.run(TrajectoryActivity(session.evidence).write, session.claims())


def test_an_outage_of_the_store_may_pass(session: StoredSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session.evidence.store, "create_from_file", full)
    with pytest.raises(ApplicationError, match="No space left on device") as failed:
        written(session)
    assert not failed.value.non_retryable


def test_a_5_000_step_session_exports_in_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured in a process of its own: how far the export raises the memory that the process needs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.long_session", str(tmp_path / "evidence")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["events"] == 5001
    with capsys.disabled():
        print(f"\n5 000 steps, a trajectory of {told['size'] / 1e6:.1f} MB: {told['peak'] / 1e6:.1f} MB more memory")
    assert told["size"] > 20_000_000
    assert told["peak"] < 12_000_000
    # Each segment is told of at least twice: when it is checked and when it is printed.
    assert told["heartbeats"] >= 2 * 80
    (path,) = (tmp_path / "evidence").glob("sessions/*/*/trajectory.json")
    data = path.read_bytes()
    assert len(data) == told["size"] < MAX_BYTES
    assert hashlib.sha256(data).hexdigest() == told["trajectory_digest"]
    document = json.loads(data)
    assert len(document["steps"]) == told["step_count"] == 2500
    assert validate(document, "writer") == []
