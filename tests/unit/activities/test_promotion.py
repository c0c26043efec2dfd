"""F8, as far as the signer decides it: what a trajectory must be to be attested, and that it is attested once."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities import heartbeats
from activities.promotion import PromotionActivity
from activities.receipts import Receipts
from activities.sealed import Life, SealedEvidence
from activities.signing import SigningActivity
from activities.trajectory import TrajectoryActivity
from affidavit.activity_api import PromoteRequest, PromoteResult, SealRequest
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer
from affidavit.evidence.trajectory import read_trajectory
from affidavit.evidence.verify import verify_receipt, verify_with_events
from affidavit.stores.local import DirectoryStore
from tests.support import proof
from tests.support.stored import T0, StoredSession, environment

KEY = bytes(range(32))
SEED, OTHER_SEED = b"s" * 32, b"o" * 32
SIGNER = Signer(SEED)
RING = json.dumps([{"public_key_b64": SIGNER.public_key_b64}]).encode()
NOW = T0 + 3_600_000
STEPS: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}]},
    {
        "kind": "model_response",
        "text": "I will look.",
        "tool_calls": [{"call_id": "c1", "name": "search", "arguments": {"q": "needle"}}],
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost_usd": 0.25},
    },
    {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "ttl_remaining_s": 77},
    {"kind": "tool_result", "call_id": "c1", "content": "here"},
]


class Store:
    """An evidence store on disk, and a signer beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.evidence = SealedEvidence(DirectoryStore(root), [KEY])

    def folder(self, life: Life) -> Path:
        return self.root / "sessions" / hashlib.sha256(life.session_id.encode()).hexdigest()[:32] / life.generation

    def promote(self, life: Life, *, ring: bytes = RING, seed: bytes = SEED, **request: Any) -> PromoteResult:
        caller = environment("TrajectoryPromotion", f"promote#{life.session_id}#{life.generation}", "run-1")
        activity = PromotionActivity(self.evidence, Receipts(self.evidence.store, Signer(seed), Keyring.parse(ring)))
        return caller.run(activity.promote, asked(life, **request))

    def refusal(self, life: Life, **more: Any) -> tuple[str | None, str]:
        """Type and text of the refusal; no receipt comes of it, and the one that stands stays."""
        path = self.folder(life) / "receipt.json"
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(ApplicationError) as failed:
            self.promote(life, **more)
        assert failed.value.non_retryable
        assert (path.read_bytes() if path.exists() else None) == before
        return failed.value.type, failed.value.message


def asked(life: Life, **more: Any) -> PromoteRequest:
    fields = {"receipt_id": uuid7(1), "issued_at": NOW, "event_uid": uuid7(2)}
    return PromoteRequest(session_id=life.session_id, generation=life.generation, **{**fields, **more})


def uuid7(number: int) -> str:
    return f"0198e1f0-0000-7000-8000-{number:012d}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "evidence")


def unended(store: Store, **spec: Any) -> StoredSession:
    """An unsigned session whose trajectory is written: events 0 | 1 2 3 4, one trajectory of two steps."""
    session = StoredSession(store.evidence, f"session-{uuid.uuid4()}", **spec)
    session.report(*STEPS)
    session.run(TrajectoryActivity(store.evidence).write, session.claims())
    return session


@pytest.fixture
def session(store: Store) -> StoredSession:
    """An unsigned session that has ended."""
    made = unended(store)
    made.end()
    return made


def test_f8_one_signature_over_the_trajectory_from_the_store_alone(store: Store, session: StoredSession) -> None:
    life = session.life
    result = store.promote(life)
    stored = (store.folder(life) / "receipt.json").read_bytes()
    receipt = json.loads(stored)
    assert (result.receipt, result.receipt_sha256) == (receipt, hashlib.sha256(stored).hexdigest())
    proof.check_signature(receipt, json.loads(RING))
    trajectory = (store.folder(life) / "trajectory.json").read_bytes()
    assert receipt["subject"] == {
        "kind": "atif_trajectory",
        "trajectory_digest": hashlib.sha256(trajectory).hexdigest(),
        "step_count": 2,
        "retroactive": True,
    }
    assert (receipt["receipt_id"], receipt["issued_at"]) == (uuid7(1), NOW)
    assert receipt["ai_agent"]["ttl_remaining_s"] == 77
    assert receipt["tool_calls"] == {"total": 1, "allowed": 1, "blocked": 0}
    assert receipt["cost"] == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "cached_tokens": 0,
        "cost_usd_micros": 250_000,
    }
    assert (receipt["stop_reason_id"], receipt["stop_reason"]) == (1, "Stop")


def test_f8_the_receipt_event_is_the_second_after_the_chain(store: Store, session: StoredSession) -> None:
    result = store.promote(session.life)
    assert (result.event_sequence, result.event_stood) == (6, False)
    closed, announced = proof.lifecycle(store.folder(session.life))
    assert (closed["metadata"]["sequence"], announced["metadata"]["sequence"]) == (5, 6)
    assert (announced["class_name"], announced["status_id"], announced["severity_id"]) == ("agent.receipt", 1, 1)
    assert announced["metadata"]["uid"] == uuid7(2)
    assert announced["metadata"]["product"]["version"] == "0.0.1"  # the one that opened the session
    assert announced["payload"] == {
        "action": "receipt",
        "receipt_id": uuid7(1),
        "key_id": SIGNER.key_id,
        "subject": result.receipt["subject"],
        "receipt": result.receipt,
    }
    path = store.folder(session.life) / "lifecycle/000000000006.json"
    domain = f"{session.life.session_id}#{session.life.generation}:lifecycle"
    assert path.read_bytes() == proof.envelope(KEY, domain, 6, {"event": announced})


def test_g4_an_auditor_finds_everything_in_order(store: Store, session: StoredSession) -> None:
    store.promote(session.life)
    folder = store.folder(session.life)
    receipt, trajectory = (folder / "receipt.json").read_bytes(), (folder / "trajectory.json").read_bytes()
    assert verify_receipt(receipt, Keyring.parse(RING), trajectory=trajectory).trusted
    report = verify_with_events(None, folder, Keyring.parse(RING), [KEY])
    assert report.trusted
    names = {check.name for check in report.checks}
    assert {"trajectory", "provenance", "chain", "totals", "stop reason", "lifecycle", "lifecycle MACs"} <= names


def test_f8_a_repeat_returns_the_standing_receipt_and_event(store: Store, session: StoredSession) -> None:
    first = store.promote(session.life)
    files = {path: path.read_bytes() for path in store.folder(session.life).rglob("*.json")}
    again = store.promote(session.life)
    later = store.promote(session.life, receipt_id=uuid7(8), issued_at=NOW + 1, event_uid=uuid7(9))
    assert {path: path.read_bytes() for path in store.folder(session.life).rglob("*.json")} == files
    expected = first.model_copy(update={"event_stood": True})
    assert (again, later) == (expected, expected)


def test_f8_killed_between_receipt_and_event_the_next_attempt_writes_that_event(
    store: Store, session: StoredSession
) -> None:
    first = store.promote(session.life)
    path = store.folder(session.life) / "lifecycle/000000000006.json"
    written = path.read_bytes()
    path.unlink()
    assert store.promote(session.life) == first
    assert path.read_bytes() == written
    path.unlink()
    other = store.promote(session.life, receipt_id=uuid7(8), issued_at=NOW + 1, event_uid=uuid7(9))
    assert (other.receipt, other.event_stood) == (first.receipt, False)
    event = json.loads(path.read_bytes())["payload"]["event"]
    assert (event["metadata"]["uid"], event["payload"]["receipt_id"]) == (uuid7(9), uuid7(1))


def test_f8_a_signed_session_gives_its_own_receipt(store: Store) -> None:
    session = StoredSession(store.evidence, "signed-1", mode="signed")
    session.report(*STEPS)
    claims = session.claims().model_dump()
    receipts = Receipts(store.evidence.store, SIGNER, Keyring.parse(RING))
    sealed = session.run(
        SigningActivity(store.evidence, receipts).seal, SealRequest(**claims, receipt_id=uuid7(3), issued_at=NOW)
    )
    session.end()
    result = store.promote(session.life)
    assert (result.receipt, result.receipt_sha256) == (sealed.receipt, sealed.receipt_sha256)
    assert (result.receipt["receipt_id"], result.receipt["subject"]["kind"]) == (uuid7(3), "event_chain")
    assert result.event_sequence is None
    (store.folder(session.life) / "receipt.json").unlink()
    assert store.refusal(session.life) == ("IntegrityError", "receipt.json is not in the evidence store")


def test_f8_a_session_that_has_not_ended_is_refused(store: Store) -> None:
    session = unended(store)
    assert store.refusal(session.life) == ("SessionNotEnded", "session has not ended")


def test_f8_a_session_that_nobody_knows_is_refused(store: Store) -> None:
    reason = "the evidence store has no such session, or no such life of it"
    assert store.refusal(Life("nobody", "no-run")) == ("SessionUnknown", reason)


def test_f8_a_quarantined_session_has_nothing_to_attest(store: Store) -> None:
    session = StoredSession(store.evidence)
    session.end("quarantined", reason="no captured steps")
    reason = "session ended quarantined: no captured steps"
    assert store.refusal(session.life) == ("NothingToAttest", reason)


def _flip(name: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        assert data.count(old) >= 1
        (folder / name).write_bytes(data.replace(old, new, 1))

    return change


def _drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


JOURNAL = "journal/000000000001.ndjson"
TRAJECTORY, PROVENANCE = "trajectory.json", "trajectory.provenance.json"
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one byte of the trajectory": (
        _flip(TRAJECTORY, b"needle", b"noodle"),
        "trajectory.json is not the one that its provenance names",
    ),
    "a byte behind the trajectory": (
        lambda folder: (folder / TRAJECTORY).write_bytes((folder / TRAJECTORY).read_bytes() + b" "),
        "trajectory.json is not the one that its provenance names",
    ),
    "trajectory missing": (_drop(TRAJECTORY), "trajectory.json is not in the evidence store"),
    "provenance missing": (_drop(PROVENANCE), "trajectory.provenance.json is not in the evidence store"),
    "one byte of the provenance": (
        _flip(PROVENANCE, b'"step_count":2', b'"step_count":3'),
        "trajectory.provenance.json: authentication failed",
    ),
    "one byte of the journal": (
        _flip(JOURNAL, b'"tool":"search"', b'"tool":"sea4ch"'),
        "journal record 3: authentication failed",
    ),
    "a journal segment missing": (
        _drop(JOURNAL),
        "trajectory.provenance.json has another chain_head, event_count than the evidence",
    ),
    "one byte of the metadata": (
        _flip("metadata.json", b'"index":0', b'"index":1'),
        "metadata.json: authentication failed",
    ),
    "one byte of the outcome": (
        _flip("outcome.json", b'"status":"closed"', b'"status":"cloSed"'),
        "outcome.json: authentication failed",
    ),
    "the closing event missing": (
        _drop("lifecycle/000000000005.json"),
        "000000000005.json is not in the evidence store",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("attested", [False, True], ids=["before", "after the promotion"])
def test_f8_what_was_changed_or_is_missing_is_refused(
    store: Store, session: StoredSession, name: str, attested: bool
) -> None:
    change, reason = CHANGES[name]
    if attested:
        store.promote(session.life)
    change(store.folder(session.life))
    assert store.refusal(session.life) == ("IntegrityError", reason)


def _reseal(store: Store, life: Life, name: str, domain: str, index: int, change: Callable[[Any], None]) -> None:
    """Change an envelope as a holder of the journal key can."""
    path = store.folder(life) / name
    payload = json.loads(path.read_bytes())["payload"]
    change(payload)
    path.write_bytes(proof.envelope(KEY, f"{life.session_id}#{life.generation}:{domain}", index, payload))


def _retold(store: Store, life: Life, change: Callable[[Any], None]) -> None:
    """Replace a trajectory by another one, and have its provenance name that."""
    path = store.folder(life) / TRAJECTORY
    document = json.loads(path.read_bytes())
    change(document)
    data = json.dumps(document).encode()
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    _reseal(store, life, PROVENANCE, "trajectory", 0, lambda payload: payload.update(trajectory_digest=digest))


FORGED: dict[str, tuple[Callable[[Any], object], str]] = {
    "not valid": (
        lambda document: document["steps"][1].update(step_id=7),
        "trajectory.json: not a valid trajectory: steps.1.step_id: expected 2 (sequential from 1), got 7",
    ),
    "of another session": (
        lambda document: document.update(session_id="another"),
        "trajectory.json has another session_id",
    ),
    "of another opening": (
        lambda document: document.update(trajectory_id="another"),
        "trajectory.json has another trajectory_id",
    ),
    "shorter than stated": (
        lambda document: document["steps"].pop(),
        "trajectory.provenance.json has another step_count than the evidence",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_f8_a_holder_of_the_journal_key_gets_no_receipt_for_another_file(
    store: Store, session: StoredSession, name: str
) -> None:
    change, reason = FORGED[name]
    _retold(store, session.life, change)
    assert store.refusal(session.life) == ("IntegrityError", reason)


def test_f8_nor_for_another_stop_reason_or_end(store: Store, session: StoredSession) -> None:
    _reseal(store, session.life, "outcome.json", "outcome", 0, lambda payload: payload.update(stop_reason_id=2))
    reason = "outcome.json has a stop reason that does not follow from the events"
    assert store.refusal(session.life) == ("IntegrityError", reason)
    other = unended(store)
    other.end()

    def reopen(payload: Any) -> None:
        payload["event"]["payload"]["action"] = "opened"

    _reseal(store, other.life, "lifecycle/000000000005.json", "lifecycle", 5, reopen)
    reason = "the event after the chain does not say that this session closed"
    assert store.refusal(other.life) == ("IntegrityError", reason)


def test_f5_a_session_that_closed_itself_when_idle_is_attested_as_closed(store: Store) -> None:
    session = unended(store)
    session.end(stop_reason_id=4)
    receipt = store.promote(session.life).receipt
    assert (receipt["stop_reason_id"], receipt["stop_reason"]) == (4, "Session Closed")


def test_f8_captures_that_were_deleted_since_are_not_needed(store: Store, session: StoredSession) -> None:
    for path in (store.folder(session.life) / "captures").iterdir():
        path.unlink()
    assert store.promote(session.life).receipt["subject"]["step_count"] == 2


def test_b11_no_receipt_is_dated_before_the_session_closed(store: Store, session: StoredSession) -> None:
    receipt = store.promote(session.life, issued_at=T0 - 5).receipt
    (closed, announced) = proof.lifecycle(store.folder(session.life))
    assert receipt["issued_at"] == closed["time"] == announced["time"] > T0


def test_f10_another_receipt_in_its_place_is_refused(store: Store, session: StoredSession) -> None:
    other = unended(store)
    other.end()
    store.promote(other.life)
    path = store.folder(session.life) / "receipt.json"
    path.write_bytes((store.folder(other.life) / "receipt.json").read_bytes())
    assert store.refusal(session.life) == ("IntegrityError", "receipt.json is another receipt")


def test_f10_a_receipt_under_a_key_that_was_rotated_out_is_returned(store: Store, session: StoredSession) -> None:
    first = store.promote(session.life)
    keys = [SIGNER.public_key_b64, Signer(OTHER_SEED).public_key_b64]
    both = json.dumps([{"public_key_b64": key} for key in keys]).encode()
    assert store.promote(session.life, ring=both, seed=OTHER_SEED).receipt == first.receipt
    alone = json.dumps([{"public_key_b64": keys[1]}]).encode()
    kind, message = store.refusal(session.life, ring=alone, seed=OTHER_SEED)
    assert kind == "IntegrityError"
    assert message == f"receipt.json: untrusted key: key id {SIGNER.key_id} is not in the keyring"


@pytest.mark.parametrize(
    ("workflow_type", "workflow_id"),
    [
        ("Stranger", "promote#{0}#{1}"),
        ("TrajectoryPromotion", "promote#{0}#{1}x"),
        ("AgentSession", "{0}"),
    ],
)
def test_f10_nobody_but_the_promotion_of_that_session(
    store: Store, session: StoredSession, workflow_type: str, workflow_id: str
) -> None:
    life = session.life
    caller = environment(workflow_type, workflow_id.format(life.session_id, life.generation), life.generation)
    activity = PromotionActivity(store.evidence, Receipts(store.evidence.store, SIGNER, Keyring.parse(RING)))
    with pytest.raises(ApplicationError, match="only the promotion of a session asks for its receipt"):
        caller.run(activity.promote, asked(life))
    assert not (store.folder(life) / "receipt.json").exists()


def test_a_long_look_at_a_long_trajectory_does_not_look_like_a_dead_worker(
    store: Store, session: StoredSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, beats, beaten = session.life, list[Any](), threading.Semaphore(0)

    def slowly(data: bytes) -> Any:
        for _ in range(3):
            beaten.acquire(timeout=10)
        return read_trajectory(data)

    def heard(*details: Any) -> None:
        beats.append(details)
        if not details:
            beaten.release()

    monkeypatch.setattr(heartbeats, "INTERVAL_S", 0.05)
    monkeypatch.setattr(heartbeats, "_PACEMAKER", heartbeats._Pacemaker())  # the other one may sleep for 2 s
    monkeypatch.setattr("activities.promotion.read_trajectory", slowly)
    caller = environment("TrajectoryPromotion", f"promote#{life.session_id}#{life.generation}", "run-1")
    caller.on_heartbeat = heard
    activity = PromotionActivity(store.evidence, Receipts(store.evidence.store, SIGNER, Keyring.parse(RING)))
    caller.run(activity.promote, asked(life))
    assert beats.count(()) >= 3
    before = len(beats)
    time.sleep(0.2)
    assert len(beats) == before
