"""The auditor's library: behaviours G1-G3, case 20.

The evidence is built here by hand (sorted-key JSON is canonical for ASCII and integers; `hmac`, `hashlib`), so that
nothing that is checked was made by the code under test.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from affidavit.evidence import verify as module
from affidavit.evidence.bundle import DirectoryReader, write_bundle
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.strict import DuplicateKey
from affidavit.evidence.verify import Report, verify_receipt, verify_with_events

SESSION = "session-1"
STEM = "84097828fc31a8c8d29210df48901a85"
GENERATION = "019fe9c7-fc00-7000-8000-0000000000aa"
KEY = b"\x07" * 32
RING = Keyring.parse("C+71qeZ55qPhNP4ng3v/MsfLX11E6gm8sOVCutakwMw=")
IDENTITY = {"version": "1", "charter": {"name": "test", "type_id": 1}, "instance_uid": "instance-1"}
REGISTRATION = {"mode": "signed"}
UIDS = {"agent.tool_call": 9901, "agent.stop_reason": 9902, "agent.receipt": 9903, "agent.session": 9906}
COUNTERS = (
    "tool_calls",
    "tool_allowed",
    "tool_blocked",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cost_usd_micros",
)
START = 1786320000000


def jcs(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def sealed(kind: str, index: int, payload: Any, key: bytes = KEY) -> bytes:
    domain, text = f"{SESSION}#{GENERATION}:{kind}".encode(), jcs(payload)
    message = b"agentvisor-journal-v1\0" + u64(len(domain)) + domain + u64(index) + u64(len(text)) + text
    return jcs({"index": index, "payload": payload, "mac": hmac.new(key, message, "sha256").hexdigest()})


def event(
    sequence: int,
    action: str,
    name: str = "agent.session",
    *,
    stop: tuple[int, str] | None = None,
    metrics: dict[str, int] | None = None,
    status: int = 1,
    **payload: Any,
) -> dict[str, Any]:
    made = {
        "metadata": {
            "version": "1.10.0",
            "uid": f"019fe9c7-fc00-7000-8000-{sequence:012d}",
            "product": {"name": "affidavit", "vendor_name": "Affidavit", "version": "0.1.0"},
            "sequence": sequence,
        },
        "class_name": name,
        "class_uid": UIDS[name],
        "category_uid": 6,
        "activity_id": 1,
        "type_uid": UIDS[name] * 100 + 1,
        "time": START + sequence,
        "time_iso": f"2026-08-10T00:00:00.{sequence:03d}Z",
        "severity_id": 1,
        "status_id": status,
        "session_uid": SESSION,
        "ai_agent": copy.deepcopy(IDENTITY),
        "payload": {"action": action, **payload},
        "metrics": metrics or {},
    }
    return made | ({"stop_reason_id": stop[0], "stop_reason": stop[1]} if stop else {})


CAPTURES = [
    b"{}",
    b'{"kind":"model_request"}',
    b'{"kind":"model_response"}',
    b'{"kind":"tool_call"}',
    b'{"kind":"tool_call","n":2}',
    b'{"kind":"model_response","n":2}',
]


def session() -> list[dict[str, Any]]:
    made = [
        event(
            0,
            "opened",
            mode="signed",
            content="store",
            generation=GENERATION,
            registration_sha256=sha(jcs(REGISTRATION)),
        ),
        event(1, "wake", wake_id="w"),
        event(
            2,
            "model_response",
            "agent.stop_reason",
            stop=(3, "tool_use"),
            metrics={"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 40},
            finish_reason="tool_use",
            tool_calls=2,
            assessed=True,
            cost_usd_micros=7,
        ),
        event(3, "tool_call", "agent.tool_call", call_id="c1", tool="ls", allowed=True, arguments_sha256="0" * 64),
        event(
            4,
            "tool_call",
            "agent.tool_call",
            stop=(93, "Policy Blocked"),
            status=2,
            call_id="c2",
            tool="rm",
            allowed=False,
            arguments_sha256="0" * 64,
        ),
        event(
            5,
            "model_response",
            "agent.stop_reason",
            stop=(1, "end_turn"),
            metrics={"prompt_tokens": 200, "completion_tokens": 5},
            finish_reason="end_turn",
            tool_calls=0,
            assessed=True,
            cost_usd_micros=3,
        ),
    ]
    for each, capture in zip(made[1:], CAPTURES[1:], strict=True):
        each["payload"]["capture_sha256"] = sha(capture)
    return made


INCREMENTS: list[dict[str, int]] = [
    {},
    {},
    {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 40, "cost_usd_micros": 7},
    {"tool_calls": 1, "tool_allowed": 1},
    {"tool_calls": 1, "tool_blocked": 1},
    {"prompt_tokens": 200, "completion_tokens": 5, "cost_usd_micros": 3},
]


def head(events: list[dict[str, Any]]) -> str:
    value = hashlib.sha256(b"av-genesis" + SESSION.encode()).digest()
    for each in events:
        value = hashlib.sha256(value + jcs(each)).digest()
    return value.hex()


def signed(body: dict[str, Any]) -> dict[str, Any]:
    public = "C+71qeZ55qPhNP4ng3v/MsfLX11E6gm8sOVCutakwMw="
    body = {**body, "key_id": "52168a9c192c6d153a2f0b1ce4f4144c", "public_key_b64": public}
    signature = Ed25519PrivateKey.from_private_bytes(bytes([14]) * 32).sign(jcs(body))
    return {**body, "signature_b64": base64.b64encode(signature).decode()}


def receipt_of(events: list[dict[str, Any]], **change: Any) -> dict[str, Any]:
    body = {
        "receipt_version": 1,
        "receipt_id": "019fe9c7-fc02-7000-8000-000000000003",
        "session_id": SESSION,
        "issued_at": 1786320000100,
        "issued_at_iso": "2026-08-10T00:00:00.100Z",
        "ai_agent": IDENTITY,
        "subject": {"kind": "event_chain", "chain_head": head(events), "event_count": len(events)},
        "tool_calls": {"total": 2, "allowed": 1, "blocked": 1},
        "cost": {"prompt_tokens": 300, "completion_tokens": 25, "cached_tokens": 40, "cost_usd_micros": 10},
        "stop_reason_id": 1,
        "stop_reason": "Stop",
    }
    return signed({**body, **change})


def record(each: dict[str, Any], **change: Any) -> dict[str, Any]:
    sequence = each["metadata"]["sequence"]
    increments = INCREMENTS[sequence] if sequence < len(INCREMENTS) else {}
    return {
        "event": each,
        "identity": IDENTITY,
        **{name: increments.get(name, 0) for name in COUNTERS},
        "stop_reason_id": each.get("stop_reason_id"),
        "attempt": None,
        **change,
    }


@dataclass
class Evidence:
    """A session's evidence, to be tampered with and then written as a folder or a dump."""

    events: list[dict[str, Any]] = field(default_factory=session)
    receipt: dict[str, Any] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    captures: list[bytes] = field(default_factory=lambda: list(CAPTURES))
    lifecycle: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    cut: int = 4

    def __post_init__(self) -> None:
        self.receipt = self.receipt or receipt_of(self.events)
        self.lines = self.lines or [sealed("active", number, record(each)) for number, each in enumerate(self.events)]
        count, subject = len(self.events), self.receipt["subject"]
        self.lifecycle = self.lifecycle or [
            event(
                count,
                "receipt",
                "agent.receipt",
                receipt_id=self.receipt["receipt_id"],
                key_id=self.receipt["key_id"],
                subject=subject,
                receipt=self.receipt,
            ),
            event(
                count + 1, "closed", mode="signed", outcome="closed", chain_head=head(self.events), event_count=count
            ),
        ]
        self.metadata = self.metadata or {
            "journal_version": 3,
            "session_id": SESSION,
            "generation": GENERATION,
            "mode": "signed",
            "content": "store",
            "identity": IDENTITY,
            "product_version": "0.1.0",
            "trajectory_id": "019fe9c7-fc00-7000-8000-000000000001",
            "registration_sha256": sha(jcs(REGISTRATION)),
            "registration": REGISTRATION,
        }

    @property
    def stored(self) -> bytes:
        return (json.dumps(self.receipt, indent=2) + "\n").encode()

    def files(self) -> dict[str, bytes]:
        files = {
            "receipt.json": self.stored,
            "metadata.json": sealed("metadata", 0, self.metadata),
            "outcome.json": sealed("outcome", 0, {"status": "closed"}),
        }
        for start, lines, captures in (
            (0, self.lines[: self.cut], self.captures[: self.cut]),
            (self.cut, self.lines[self.cut :], self.captures[self.cut :]),
        ):
            files[f"journal/{start:012d}.ndjson"] = b"".join(line + b"\n" for line in lines)
            files[f"captures/{start:012d}.ndjson"] = b"".join(line + b"\n" for line in captures)
        for each in self.lifecycle:
            number = each["metadata"]["sequence"]
            files[f"lifecycle/{number:012d}.json"] = sealed("lifecycle", number, {"event": each})
        return files

    def folder(self, root: Path, files: dict[str, bytes] | None = None) -> Path:
        folder = root / "sessions" / STEM / GENERATION
        for name, data in (files or self.files()).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def dump(self, root: Path, generation: str = GENERATION) -> Path:
        path = root / "dump.ndjson"
        entries = [{"generation": generation, "event": each} for each in [*self.events, *self.lifecycle]]
        path.write_bytes(b"".join(jcs(entry) + b"\n" for entry in entries))
        return path


def names(report: Report) -> set[str]:
    return {check.name for check in report.checks if check.outcome == "passed"}


def left(report: Report) -> dict[str, str]:
    return {each.name: each.reason for each in report.unchecked}


# --- G1 ---


def test_g1_a_trusted_key_makes_a_trusted_report() -> None:
    report = verify_receipt(Evidence().stored, RING)
    assert report.trusted
    assert names(report) == {"receipt form", "signature"}
    assert {"events", "time of issue"} == left(report).keys()


def test_g1_case20_without_a_key_only_integrity_is_said() -> None:
    report = verify_receipt(Evidence().stored, None)
    assert not report.trusted
    assert left(report)["signer"].startswith("integrity only, signer not trusted")
    assert not any("valid" in text for text in (*left(report).values(), *(each.detail for each in report.checks)))


def test_g1_a_refusal_carries_what_was_reached() -> None:
    evidence = Evidence()
    stored = evidence.stored.replace(b'"prompt_tokens": 300', b'"prompt_tokens": 301')
    with pytest.raises(module.VerificationError) as caught:
        verify_receipt(stored, RING)
    report = caught.value.report
    assert isinstance(report, Report)
    assert not report.trusted
    assert [(check.name, check.outcome) for check in report.checks] == [
        ("receipt form", "passed"),
        ("signature", "refused"),
    ]


def test_g2_unreadable_receipts_keep_their_named_cause() -> None:
    stored = Evidence().stored.replace(b'"total": 2', b'"total": 2, "total": 2')
    with pytest.raises(module.VerificationError, match="duplicate key") as caught:
        verify_receipt(stored, RING)
    assert isinstance(caught.value.__cause__, DuplicateKey)


def test_a_key_revoked_later_is_mentioned() -> None:
    ring = Keyring.parse(
        jcs([{"public_key_b64": "C+71qeZ55qPhNP4ng3v/MsfLX11E6gm8sOVCutakwMw=", "revoked_at": 1786320000101}])
    )
    assert "revocation" in left(verify_receipt(Evidence().stored, ring))


# --- G3, good evidence ---


def test_g3_a_folder_with_the_journal_key(tmp_path: Path) -> None:
    report = verify_with_events(None, Evidence().folder(tmp_path), RING, [b"x" * 32, KEY])
    assert report.trusted
    assert names(report) == {
        "source",
        "receipt present",
        "receipt form",
        "signature",
        "events",
        "lifecycle records",
        "journal MACs",
        "session",
        "sequence",
        "chain",
        "opening",
        "event form",
        "identity",
        "totals",
        "stop reason",
        "lifecycle",
        "lifecycle MACs",
        "captures",
        "metadata",
        "outcome",
    }
    assert left(report).keys() == {"time of issue"}


def test_g3_a_folder_without_the_journal_key(tmp_path: Path) -> None:
    report = verify_with_events(None, Evidence().folder(tmp_path), RING)
    assert report.trusted
    assert "journal MACs" not in names(report)
    assert {"journal MACs", "outcome"} <= left(report).keys()


def test_g3_a_bundle(tmp_path: Path) -> None:
    Evidence().folder(tmp_path)
    (tmp_path / "public.json").write_bytes(b"[]")
    write_bundle(DirectoryReader(tmp_path), SESSION, GENERATION, tmp_path / "b.zip")
    report = verify_with_events(None, tmp_path / "b.zip", RING, [KEY])
    assert report.trusted
    assert {"chain", "journal MACs", "captures", "metadata", "lifecycle"} <= names(report)
    assert "no trust anchor" in left(report)["public.json"]


def test_g3_a_dump_in_any_order(tmp_path: Path) -> None:
    evidence = Evidence()
    path = evidence.dump(tmp_path)
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    report = verify_with_events(evidence.stored, path, RING)
    assert report.trusted
    assert {"chain", "totals", "lifecycle", "stop reason"} <= names(report)
    assert "journal" in left(report)


def test_g3_a_dump_without_lifecycle_events(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.lifecycle = []
    report = verify_with_events(evidence.stored, evidence.dump(tmp_path), RING)
    assert "lifecycle" in left(report)
    with pytest.raises(module.NoReceipt):
        verify_with_events(None, evidence.dump(tmp_path), RING)


def test_g3_integrity_only_with_events(tmp_path: Path) -> None:
    report = verify_with_events(None, Evidence().folder(tmp_path), None, [KEY])
    assert not report.trusted
    assert "chain" in names(report)


# --- G3, what is wrong is told apart ---

Tamper = Callable[[Evidence], None]


def drop(*numbers: int) -> Tamper:
    def tamper(evidence: Evidence) -> None:
        for number in sorted(numbers, reverse=True):
            del evidence.events[number], evidence.lines[number], evidence.captures[number]

    return tamper


def extra(evidence: Evidence) -> None:
    more = event(6, "wake", wake_id="x")
    evidence.events.append(more)
    evidence.lines.append(sealed("active", 6, record(more)))
    evidence.captures.append(b"{}")
    evidence.lifecycle = []


def doubled(evidence: Evidence) -> None:
    evidence.events.insert(3, evidence.events[2])
    evidence.lines.insert(3, evidence.lines[2])
    evidence.captures.insert(3, evidence.captures[2])


def alter(evidence: Evidence) -> None:
    evidence.events[3]["payload"]["tool"] = "cat"
    evidence.lines[3] = evidence.lines[3].replace(b'"tool":"ls"', b'"tool":"cat"')
    assert b"cat" in evidence.lines[3]


def foreign(evidence: Evidence) -> None:
    evidence.events[3]["session_uid"] = "session-2"
    evidence.lines[3] = sealed("active", 3, record(evidence.events[3]))


@pytest.mark.parametrize("source", ["folder", "folder with key", "dump"])
@pytest.mark.parametrize(
    ("tamper", "error", "message"),
    [
        (drop(5), module.TailMissing, r"the last 1 events are missing \(event 5\)"),
        (drop(3, 4, 5), module.TailMissing, r"the last 3 events are missing \(events 3-5\)"),
        (drop(2), module.EventGap, "gap: event 2 missing"),
        (drop(2, 5), module.EventGap, "gap: events 2, 5 missing"),
        (drop(0), module.OpeningMissing, "opening event"),
        (extra, module.ExtraEvent, "extra event: event 6 is not covered"),
        (doubled, module.ExtraEvent, "extra event: event 2 stands more than once"),
        (foreign, module.MixedSessions, "event 3 .* another session"),
    ],
)
def test_g3_missing_tail_gap_and_extra_are_told_apart(
    tmp_path: Path, source: str, tamper: Tamper, error: type[Exception], message: str
) -> None:
    evidence = Evidence()
    tamper(evidence)
    path = evidence.dump(tmp_path) if source == "dump" else evidence.folder(tmp_path)
    with pytest.raises(error, match=message):
        verify_with_events(evidence.stored, path, RING, [KEY] if source == "folder with key" else None)


def test_g3_altered_content_is_placed_with_the_journal_key(tmp_path: Path) -> None:
    evidence = Evidence()
    alter(evidence)
    folder = evidence.folder(tmp_path)
    with pytest.raises(module.AlteredContent, match=r"\Aaltered: event 3\Z") as caught:
        verify_with_events(evidence.stored, folder, RING, [KEY])
    assert caught.value.places == (3,)
    assert isinstance(caught.value.report, Report)
    assert not caught.value.report.trusted
    assert {"signature", "events"} <= names(caught.value.report)


@pytest.mark.parametrize("source", ["folder", "dump"])
def test_g3_altered_place_unknown_without_it(tmp_path: Path, source: str) -> None:
    evidence = Evidence()
    alter(evidence)
    path = evidence.dump(tmp_path) if source == "dump" else evidence.folder(tmp_path)
    with pytest.raises(module.AlteredContent, match=r"\Aaltered, place unknown\Z") as caught:
        verify_with_events(evidence.stored, path, RING)
    assert caught.value.places == ()


def test_g3_content_altered_by_the_holder_of_the_journal_key(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.events[3]["payload"]["tool"] = "cat"
    evidence.lines[3] = sealed("active", 3, record(evidence.events[3]))
    with pytest.raises(module.AlteredContent, match="MACs agree with the altered events"):
        verify_with_events(evidence.stored, evidence.folder(tmp_path), RING, [KEY])


def test_g3_an_altered_event_that_is_no_event_any_more(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.events[3]["time"] += 1
    with pytest.raises(module.AlteredContent, match="place unknown; not valid: event 3"):
        verify_with_events(evidence.stored, evidence.dump(tmp_path), RING)


def test_g3_an_inserted_record_without_the_key_is_extra_and_placed(tmp_path: Path) -> None:
    evidence = Evidence()
    extra(evidence)
    evidence.lines[6] = sealed("active", 6, record(evidence.events[6]), b"y" * 32)
    with pytest.raises(module.ExtraEvent, match="not authentic: event 6"):
        verify_with_events(evidence.stored, evidence.folder(tmp_path), RING, [KEY])


def test_g3_another_journal_key(tmp_path: Path) -> None:
    with pytest.raises(module.JournalKeyMismatch):
        verify_with_events(None, Evidence().folder(tmp_path), RING, [b"x" * 32])


def test_g3_records_out_of_order(tmp_path: Path) -> None:
    evidence = Evidence()
    for line in (evidence.lines, evidence.captures):
        line[1], line[2] = line[2], line[1]
    with pytest.raises(module.EventOrder):
        verify_with_events(None, evidence.folder(tmp_path), RING, [KEY])


def test_g3_one_generation(tmp_path: Path) -> None:
    evidence = Evidence()
    path = evidence.dump(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(GENERATION.encode(), b"other", 1), *lines[4:]]))
    with pytest.raises(module.MixedGenerations, match="event 3"):
        verify_with_events(evidence.stored, path, RING)
    with pytest.raises(module.MixedGenerations, match="opening event"):
        verify_with_events(evidence.stored, evidence.dump(tmp_path, "other"), RING)


def test_g3_the_first_event_must_open(tmp_path: Path) -> None:
    events = session()
    events[0]["payload"]["action"] = "wake"
    with pytest.raises(module.OpeningMissing, match="not an opening event"):
        verify_with_events(None, Evidence(events).folder(tmp_path), RING)


def test_g3_events_must_be_valid(tmp_path: Path) -> None:
    events = session()
    events[1]["severity_id"] = 77
    with pytest.raises(module.InvalidChainEvent, match="event 1 is not valid"):
        verify_with_events(None, Evidence(events).folder(tmp_path), RING)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"cost": {"prompt_tokens": 301, "completion_tokens": 25, "cached_tokens": 40, "cost_usd_micros": 10}},
            module.TotalsMismatch,
        ),
        (
            {"cost": {"prompt_tokens": 300, "completion_tokens": 25, "cached_tokens": 40, "cost_usd_micros": 9}},
            module.TotalsMismatch,
        ),
        ({"tool_calls": {"total": 2, "allowed": 2, "blocked": 0}}, module.TotalsMismatch),
        ({"stop_reason_id": 99, "stop_reason": "Other"}, module.StopReasonMismatch),
        ({"ai_agent": {**IDENTITY, "instance_uid": "instance-2"}}, module.IdentityMismatch),
    ],
)
@pytest.mark.parametrize("source", ["folder", "dump"])
def test_g3_a_signer_that_was_told_made_up_totals(
    tmp_path: Path, source: str, change: dict[str, Any], error: type[Exception]
) -> None:
    evidence = Evidence(receipt=receipt_of(session(), **change))
    path = evidence.dump(tmp_path) if source == "dump" else evidence.folder(tmp_path)
    with pytest.raises(error):
        verify_with_events(evidence.stored, path, RING)


def test_g3_increments_that_are_not_those_of_the_event(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.lines[2] = sealed("active", 2, record(evidence.events[2], prompt_tokens=101))
    with pytest.raises(module.TotalsMismatch, match=r"event 2 .* prompt_tokens"):
        verify_with_events(None, evidence.folder(tmp_path), RING, [KEY])


def test_g3_an_idle_close_cannot_be_checked(tmp_path: Path) -> None:
    evidence = Evidence(receipt=receipt_of(session(), stop_reason_id=4, stop_reason="Session Closed"))
    report = verify_with_events(None, evidence.folder(tmp_path), RING, [KEY])
    assert "idle close" in left(report)["stop reason"]


def test_g3_a_renewed_ttl_is_listed(tmp_path: Path) -> None:
    evidence = Evidence(receipt=receipt_of(session(), ai_agent={**IDENTITY, "ttl_remaining_s": 5}))
    assert "ttl_remaining_s" in left(verify_with_events(None, evidence.folder(tmp_path), RING))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda e: e.lifecycle[0]["payload"]["receipt"].update(stop_reason="Length"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[0]["payload"].update(receipt_id="other"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["payload"].update(chain_head="0" * 64), module.LifecycleMismatch),
        (lambda e: e.lifecycle[0]["payload"].update(note="approved"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["payload"].update(event_count=7), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["payload"].update(outcome="cancelled"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["payload"].update(mode="unsigned"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["payload"].update(note="approved"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["ai_agent"].update(instance_uid="instance-2"), module.IdentityMismatch),
        (lambda e: e.lifecycle[1]["metadata"]["product"].update(version="9"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1].update(status_id=2), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1].update(time=START, time_iso="2026-08-10T00:00:00.000Z"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["metadata"].update(sequence=9), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1]["payload"].update(action="quarantined"), module.LifecycleMismatch),
        (lambda e: e.lifecycle[1].update(session_uid="session-2"), module.MixedSessions),
        (lambda e: e.lifecycle[1].update(severity_id=9), module.InvalidChainEvent),
        (lambda e: e.lifecycle[1]["payload"].update(action="wake"), (module.ExtraEvent, module.LifecycleMismatch)),
    ],
)
@pytest.mark.parametrize("source", ["folder", "dump"])
def test_g3_lifecycle_events_agree(tmp_path: Path, source: str, change: Tamper, error: Any) -> None:
    evidence = Evidence()
    evidence.lifecycle = copy.deepcopy(evidence.lifecycle)
    change(evidence)
    path = evidence.dump(tmp_path) if source == "dump" else evidence.folder(tmp_path)
    with pytest.raises(error):
        verify_with_events(evidence.stored, path, RING)


def test_g3_a_second_lifecycle_event_is_extra(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.lifecycle.append(event(8, "closed", chain_head=head(evidence.events), event_count=6))
    with pytest.raises(module.ExtraEvent, match="second closed"):
        verify_with_events(evidence.stored, evidence.dump(tmp_path), RING)


def test_g3_a_cancelled_session_closed_cancelled(tmp_path: Path) -> None:
    events = session()
    events[1]["payload"]["action"] = "cancel_requested"
    evidence = Evidence(events, receipt_of(events, stop_reason_id=99, stop_reason="Other"))
    evidence.lifecycle[1]["payload"]["outcome"] = "cancelled"
    assert "lifecycle" in names(verify_with_events(None, evidence.folder(tmp_path), RING, [KEY]))


UNAUTHENTIC = "agrees with the receipt, but nothing but the journal key shows who wrote it"


@pytest.mark.parametrize("source", ["folder", "dump"])
def test_g3_without_the_journal_key_nobody_knows_who_wrote_the_lifecycle_events(tmp_path: Path, source: str) -> None:
    evidence = Evidence()
    evidence.lifecycle[1]["metadata"]["uid"] = "somebody's"
    evidence.lifecycle[1] |= {"time": START + 900, "time_iso": "2026-08-10T00:00:00.900Z"}
    path = evidence.dump(tmp_path) if source == "dump" else evidence.folder(tmp_path)
    report = verify_with_events(evidence.stored, path, RING)
    assert "lifecycle MACs" not in names(report)
    assert left(report)["lifecycle MACs"] == UNAUTHENTIC


def test_g3_without_the_journal_key_nobody_knows_who_wrote_what_the_chain_does_not_cover(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.metadata["trajectory_id"] = "somebody's"
    evidence.lines[2] = sealed(
        "active", 2, record(evidence.events[2], attempt={"id": "b", "terminal": True}), b"y" * 32
    )
    report = verify_with_events(None, evidence.folder(tmp_path), RING)
    assert left(report) == {
        "time of issue": "issued_at is the signer's own clock",
        "lifecycle MACs": UNAUTHENTIC,
        "metadata MAC": "agrees with the opening event, but nothing but the journal key shows who wrote it",
        "outcome": "outcome.json was not read: nothing but the journal key shows who wrote it",
        "journal MACs": "no journal key was given; the chain covers the events, but not what is written beside them",
    }


def test_g3_a_record_names_the_agent_of_its_event(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.lines[2] = sealed("active", 2, record(evidence.events[2], identity={**IDENTITY, "version": "2"}))
    with pytest.raises(module.IdentityMismatch, match="event 2 and its record name different agents"):
        verify_with_events(None, evidence.folder(tmp_path), RING)


@pytest.mark.parametrize("absent", ["receipt", "closed"])
def test_g3_a_lifecycle_event_that_is_not_there_is_listed(tmp_path: Path, absent: str) -> None:
    evidence = Evidence()
    evidence.lifecycle = [each for each in evidence.lifecycle if each["payload"]["action"] != absent]
    report = verify_with_events(evidence.stored, evidence.dump(tmp_path), RING)
    assert left(report)["lifecycle"] == f"the source holds no {absent} event"


@pytest.mark.parametrize("keys", [[], [KEY]])
def test_metadata_and_outcome_that_are_not_there_are_listed(tmp_path: Path, keys: list[bytes]) -> None:
    files = {name: data for name, data in Evidence().files().items() if name not in ("metadata.json", "outcome.json")}
    report = verify_with_events(None, Evidence().folder(tmp_path, files), RING, keys)
    assert left(report)["metadata"] == "the source does not hold metadata.json"
    assert left(report)["outcome"] == "the source does not hold outcome.json"
    assert not {"metadata", "outcome"} & names(report)


# --- captures, metadata, damaged files ---


def test_captures_deleted_later_break_nothing_and_are_listed(tmp_path: Path) -> None:
    files = Evidence().files()
    del files["captures/000000000004.ndjson"]
    report = verify_with_events(None, Evidence().folder(tmp_path, files), RING, [KEY])
    assert report.trusted
    assert left(report)["captures"].startswith("2 are not in the source")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("captures/000000000004.ndjson", module.CaptureMismatch, "does not go with a journal segment line by line"),
        ("journal/000000000004.ndjson", module.UnreadableEvidence, "has more lines than a segment, 4096"),
    ],
)
def test_newlines_without_end_cost_no_memory(tmp_path: Path, name: str, error: type[Exception], message: str) -> None:
    size = 32 << 20
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as made:
        for each, data in (Evidence().files() | {name: b"\n" * size}).items():
            made.writestr(each, data)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            verify_with_events(None, tmp_path / "b.zip", RING)
        assert tracemalloc.get_traced_memory()[1] < 3 * size  # a list of the lines alone would take eight times
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "name",
    [
        "receipt.json",
        "metadata.json",
        "outcome.json",
        "journal/000000000000.ndjson",
        "captures/000000000000.ndjson",
        "lifecycle/000000000006.json",
        "trajectory.json",
        "trajectory.provenance.json",
    ],
)
def test_a_damaged_entry_of_a_bundle_is_a_refusal_with_a_report(tmp_path: Path, name: str) -> None:
    evidence = promoted()
    files = promoted_files(evidence, head(evidence.events))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as made:
        for each, data in files.items():
            made.writestr(each, data)
        place = made.getinfo(name).header_offset + 30 + len(name)
    damaged = bytearray((tmp_path / "b.zip").read_bytes())
    damaged[place] ^= 1  # the first byte of its content, of which the checksum knows
    (tmp_path / "b.zip").write_bytes(damaged)
    with pytest.raises(module.UnreadableEvidence, match=f"damaged entry {name}") as caught:
        verify_with_events(None, tmp_path / "b.zip", RING)
    report = caught.value.report
    assert (report.trusted, [each.outcome for each in report.checks].count("refused")) == (False, 1)


@pytest.mark.parametrize("number", range(6))
def test_an_altered_capture_is_placed(tmp_path: Path, number: int) -> None:
    evidence = Evidence()
    evidence.captures[number] = b'{"kind":"wake"}'
    with pytest.raises(module.CaptureMismatch, match=f"event {number} "):
        verify_with_events(None, evidence.folder(tmp_path), RING)


def test_a_capture_line_more_or_less(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.captures.append(b"{}")
    with pytest.raises(module.CaptureMismatch, match="line by line"):
        verify_with_events(None, evidence.folder(tmp_path), RING)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"session_id": "session-2"}, module.MixedSessions),
        ({"mode": "unsigned"}, module.MetadataMismatch),
        ({"identity": {**IDENTITY, "version": "2"}}, module.MetadataMismatch),
        ({"product_version": "9"}, module.MetadataMismatch),
        ({"registration": {"mode": "unsigned"}}, module.UnreadableEvidence),
        ({"registration": {}, "registration_sha256": sha(b"{}")}, module.MetadataMismatch),
    ],
)
def test_metadata_is_that_of_the_opening_event(tmp_path: Path, change: dict[str, Any], error: type[Exception]) -> None:
    evidence = Evidence()
    evidence.metadata = {**evidence.metadata, **change}
    with pytest.raises(error):
        verify_with_events(None, evidence.folder(tmp_path), RING, [KEY])


def test_g3_a_folder_of_another_generation(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.metadata["generation"] = "other"
    with pytest.raises(module.MixedGenerations):
        verify_with_events(None, evidence.folder(tmp_path), RING)


def test_g3_a_record_turned_into_a_lifecycle_event_is_altered(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.lines[1] = evidence.lines[1].replace(b'"action":"wake"', b'"action":"closed"')
    with pytest.raises(module.AlteredContent, match="altered: event 1"):
        verify_with_events(None, evidence.folder(tmp_path), RING, [KEY])


@pytest.mark.parametrize("name", ["metadata.json", "outcome.json", "lifecycle/000000000006.json"])
def test_other_envelopes_are_authenticated_too(tmp_path: Path, name: str) -> None:
    files = Evidence().files()
    files[name] = files[name].replace(b'"mac":"', b'"mac":"0')
    with pytest.raises(module.VerificationError, match="authentication failed"):
        verify_with_events(None, Evidence().folder(tmp_path, files), RING, [KEY])


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (b'"tool_calls":0', b'"tool_calls":"0"', module.AlteredContent, r"000000000000\.ndjson line 1"),
        (b'"index":1,', b'"index":9,', module.AlteredContent, r"000000000000\.ndjson line 2"),
        (b'{"index":2,', b'{"index":2,,', module.UnreadableEvidence, r"000000000000\.ndjson line 3"),
    ],
)
def test_damaged_records_name_the_line(
    tmp_path: Path, old: bytes, new: bytes, error: type[Exception], message: str
) -> None:
    files = Evidence().files()
    segment = files["journal/000000000000.ndjson"]
    assert old in segment
    files["journal/000000000000.ndjson"] = segment.replace(old, new, 1)
    with pytest.raises(error, match=message):
        verify_with_events(None, Evidence().folder(tmp_path, files), RING)


@pytest.mark.parametrize(
    "line", [b"{}\n", b"\n", b'{"generation":"g","event":{}}\n', b'{"generation":"g","event":{},"x":1}\n', b"\xff\n"]
)
def test_damaged_dumps_name_the_line(tmp_path: Path, line: bytes) -> None:
    evidence = Evidence()
    path = evidence.dump(tmp_path)
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(module.UnreadableEvidence, match="line 9"):
        verify_with_events(evidence.stored, path, RING)


def test_a_receipt_that_claims_very_many_events(tmp_path: Path) -> None:
    subject = {"kind": "event_chain", "chain_head": "0" * 64, "event_count": 2**53 - 1}
    evidence = Evidence()
    receipt = json.dumps(receipt_of(session(), subject=subject)).encode()
    with pytest.raises(module.TailMissing, match="the last 9007199254740985 events"):
        verify_with_events(receipt, evidence.folder(tmp_path), RING)


def test_an_empty_source_has_no_opening(tmp_path: Path) -> None:
    evidence = Evidence()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for source in (tmp_path / "empty", tmp_path / "folder"):
        with pytest.raises(module.OpeningMissing):
            verify_with_events(evidence.stored, source, RING)


# --- trajectories ---

TRAJECTORY = b'{"steps": [1, 2]}\n'


def promoted(**change: Any) -> Evidence:
    events = session()
    events[0]["payload"]["mode"] = "unsigned"
    evidence = Evidence(events)
    evidence.metadata["mode"] = "unsigned"
    subject = {"kind": "atif_trajectory", "trajectory_digest": sha(TRAJECTORY), "step_count": 2, "retroactive": True}
    evidence.receipt = receipt_of(session(), subject={**subject, **change})
    evidence.lifecycle = [
        event(6, "closed", mode="unsigned", outcome="closed", chain_head=head(evidence.events), event_count=6),
        event(
            7,
            "receipt",
            "agent.receipt",
            receipt_id=evidence.receipt["receipt_id"],
            key_id=evidence.receipt["key_id"],
            subject=evidence.receipt["subject"],
            receipt=evidence.receipt,
        ),
    ]
    return evidence


def promoted_files(evidence: Evidence, chain_head: str) -> dict[str, bytes]:
    provenance = {
        "trajectory_digest": sha(TRAJECTORY),
        "step_count": 2,
        "chain_head": chain_head,
        "event_count": 6,
        "generation": GENERATION,
    }
    return evidence.files() | {
        "trajectory.json": TRAJECTORY,
        "trajectory.provenance.json": sealed("trajectory", 0, provenance),
    }


def test_g4_a_trajectory_is_checked_by_digest_and_steps() -> None:
    assert "trajectory" in names(verify_receipt(promoted().stored, RING, trajectory=TRAJECTORY))
    assert "trajectory" in left(verify_receipt(promoted().stored, RING))
    for receipt, data in (
        (promoted(), TRAJECTORY + b"\n"),
        (promoted(step_count=3), TRAJECTORY),
        (Evidence(), TRAJECTORY),
    ):
        with pytest.raises(module.TrajectoryMismatch):
            verify_receipt(receipt.stored, RING, trajectory=data)


@pytest.mark.parametrize("chain_head", ["right", "wrong"])
def test_g3_a_promoted_session(tmp_path: Path, chain_head: str) -> None:
    evidence = promoted()
    files = promoted_files(evidence, head(evidence.events) if chain_head == "right" else "0" * 64)
    folder = evidence.folder(tmp_path, files)
    if chain_head == "wrong":
        with pytest.raises(module.AlteredContent):
            verify_with_events(None, folder, RING, [KEY])
    else:
        report = verify_with_events(None, folder, RING, [KEY])
        assert {"trajectory", "provenance", "chain", "totals", "lifecycle"} <= names(report)


def test_g3_a_promoted_session_without_provenance_says_so(tmp_path: Path) -> None:
    evidence = promoted()
    report = verify_with_events(evidence.stored, evidence.dump(tmp_path), RING, trajectory=TRAJECTORY)
    assert "no provenance" in left(report)["chain"]


# --- G5 ---


def test_g5_it_imports_neither_temporal_nor_numpy() -> None:
    code = (
        "import sys\n"
        "for name in ('temporalio', 'numpy', 'aiokafka'): sys.modules[name] = None\n"
        "import affidavit.evidence.verify\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
