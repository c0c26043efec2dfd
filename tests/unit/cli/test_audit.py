"""`affidavit audit` (behaviours G6). The stores are built from formats.md with the standard library alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from affidavit.cli import run as command

ROOT = Path(__file__).parents[3]
KEY = bytes(range(32))
GENERATION = "0198a7c0-0000-7000-8000-00000000000a"
OTHER = "0198a7c0-0000-7000-8000-00000000000b"
T0 = 1_786_320_000_000  # 2026-08-10T00:00:00Z
HOUR = 3_600_000
IDENTITY = {"version": "1", "charter": {"name": "tester", "type_id": 1}, "instance_uid": "i-1"}
CAPTURE = b'{"call_id":"c","kind":"tool_call"}'
BUS = """
CREATE TABLE records (position INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, partition INTEGER, "offset" INTEGER,
    key TEXT, uid TEXT, session TEXT, generation TEXT, time_ms INTEGER, headers TEXT, value BLOB);
PRAGMA application_id = 1097231463;
PRAGMA user_version = 1;
"""


def compact(value: Any) -> bytes:
    """Canonical, for what these tests put in: ASCII, integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def envelope(domain: str, index: int, payload: Any, key: bytes = KEY) -> bytes:
    name, content = domain.encode(), compact(payload)
    message = b"agentvisor-journal-v1\0" + len(name).to_bytes(8, "big") + name + index.to_bytes(8, "big")
    message += len(content).to_bytes(8, "big") + content
    mac = hmac.new(key, message, "sha256").hexdigest()
    return b'{"index":%d,"payload":%b,"mac":"%b"}' % (index, content, mac.encode())


def event(session: str, sequence: int, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"sequence": sequence, "uid": f"uid-{session}-{sequence}"},
        "class_name": "agent.session",
        "session_uid": session,
        "time": T0 + 1000 * sequence,
        "payload": payload,
    }


class Made:
    """A generation of `steps` events after the opening, one a segment, ended as asked; on disk and on the bus."""

    def __init__(
        self, data: Path, session: str = "s-1", generation: str = GENERATION, *, mode: str = "signed", steps: int = 2
    ) -> None:
        self.data, self.session, self.generation, self.mode, self.count = data, session, generation, mode, steps + 1
        self.domain = f"{session}#{generation}"
        stem = hashlib.sha256(session.encode()).hexdigest()[:32]
        self.folder = data / "evidence" / "sessions" / stem / generation
        self.stem = stem
        self.bus_events: list[dict[str, Any]] = []
        registration: dict[str, Any] = {"mode": mode}
        metadata = {
            "journal_version": 3,
            "session_id": session,
            "generation": generation,
            "mode": mode,
            "content": "store",
            "identity": IDENTITY,
            "product_version": "0.1.0",
            "trajectory_id": "t-1",
            "registration": registration,
            "registration_sha256": hashlib.sha256(compact(registration)).hexdigest(),
        }
        self.write("metadata.json", envelope(f"{self.domain}:metadata", 0, metadata))
        self.segment(0, [event(session, 0, {"action": "opened", "generation": generation})], [b"{}"])
        for sequence in range(1, self.count):
            payload = {"action": "tool_call", "capture_sha256": hashlib.sha256(CAPTURE).hexdigest()}
            self.segment(sequence, [event(session, sequence, payload)], [CAPTURE])

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def segment(self, first: int, events: list[dict[str, Any]], captures: list[bytes]) -> None:
        counts = ("tool_calls", "tool_allowed", "tool_blocked", "prompt_tokens", "completion_tokens", "cached_tokens")
        rest = {**dict.fromkeys(counts, 0), "cost_usd_micros": 0, "stop_reason_id": None, "attempt": None}
        payloads = [{"event": each, "identity": IDENTITY, **rest} for each in events]
        lines = [envelope(f"{self.domain}:active", each["event"]["metadata"]["sequence"], each) for each in payloads]
        self.write(f"journal/{first:012d}.ndjson", b"\n".join(lines) + b"\n")
        self.write(f"captures/{first:012d}.ndjson", b"\n".join(captures) + b"\n")
        self.bus_events += events

    def lifecycle(self, sequence: int, action: str) -> None:
        made = event(self.session, sequence, {"action": action})
        self.write(f"lifecycle/{sequence:012d}.json", envelope(f"{self.domain}:lifecycle", sequence, {"event": made}))
        self.bus_events.append(made)

    def receipt(self) -> bytes:
        document = {
            "receipt_version": 1,
            "receipt_id": "0198a7c0-0000-7000-8000-0000000000ff",
            "session_id": self.session,
            "issued_at": T0 + 9000,
            "issued_at_iso": "2026-08-10T00:00:09.000Z",
            "ai_agent": IDENTITY,
            "subject": {"kind": "event_chain", "chain_head": "0" * 64, "event_count": self.count},
            "tool_calls": {"total": 0, "allowed": 0, "blocked": 0},
            "cost": {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0, "cost_usd_micros": 0},
            "stop_reason_id": 4,
            "stop_reason": "Session Closed",
            "key_id": "0" * 32,
            "public_key_b64": base64.b64encode(bytes(32)).decode(),
            "signature_b64": base64.b64encode(bytes(64)).decode(),
        }
        data = json.dumps(document, indent=2).encode() + b"\n"
        self.write("receipt.json", data)
        return data

    def outcome(self, status: str = "closed", **more: Any) -> None:
        payload = {
            "session_id": self.session,
            "generation": self.generation,
            "mode": self.mode,
            "status": status,
            "event_count": self.count,
            "published": True,
            **more,
        }
        self.write("outcome.json", envelope(f"{self.domain}:outcome", 0, payload))

    def end(self) -> Made:
        """End it as a session does."""
        if self.mode == "signed":
            digest = hashlib.sha256(self.receipt()).hexdigest()
            self.lifecycle(self.count, "receipt")
            self.lifecycle(self.count + 1, "closed")
            self.outcome(receipt_sha256=digest)
        else:
            self.write("trajectory.json", b"{}\n")
            provenance = {"trajectory_digest": hashlib.sha256(b"{}\n").hexdigest()}
            self.write("trajectory.provenance.json", envelope(f"{self.domain}:trajectory", 0, provenance))
            self.lifecycle(self.count, "closed")
            self.outcome(trajectory_digest=provenance["trajectory_digest"])
        return self

    def publish(self, *, without: tuple[int, ...] = ()) -> Made:
        """Put all events on the bus but some."""
        for each in self.bus_events:
            if each["metadata"]["sequence"] not in without:
                self.put(compact(each))
        return self

    def put(self, value: bytes, headers: str = "{}") -> None:
        file = self.data / "bus.sqlite"
        new = not file.exists()
        with closing(sqlite3.connect(file)) as bus:
            if new:
                bus.executescript(BUS)
            row = ("agent.session", 0, 0, "i-1", "u", self.session, self.generation, T0, headers, value)
            bus.execute(
                'INSERT INTO records (topic, partition, "offset", key, uid, session, generation, time_ms, headers,'
                " value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            bus.commit()


class Auditor:
    """Runs the command at a given time, over a data folder with a journal key."""

    def __init__(self, data: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.data, self._capfd = data, capfd
        self.now = T0 + 24 * HOUR
        monkeypatch.setattr("affidavit.cli.audit._now_ms", lambda: self.now)
        (data / "keys").mkdir(parents=True)
        (data / "keys" / "journal.key").write_bytes(KEY)
        (data / "keys" / "journal.key").chmod(0o600)

    def raw(self, *arguments: str) -> tuple[int, str, str]:
        code = command(["audit", "--data-dir", str(self.data), *arguments])
        out, err = self._capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    def __call__(self, *arguments: str) -> list[str]:
        """The findings as `kind: what`; code, text and JSON must agree on them."""
        code, out, err = self.raw("--json", *arguments)
        said = json.loads(out)
        listed = [*said["findings"], *said["open"]]
        assert (code, err, said["clean"]) == (1 if said["findings"] else 0, "", not said["findings"])
        number = len(said["findings"])
        again, out, _ = self.raw(*arguments)
        *rows, _, verdict = out.splitlines()
        wording = "CLEAN" if number == 0 else "1 FINDING" if number == 1 else f"{number} FINDINGS"
        assert (again, verdict.removesuffix(", MACs not checked")) == (code, f"audit: {wording}")
        words = [f"{each['kind'].replace('_', ' '):<17}  {each['session']}  {each['generation']}  " for each in listed]
        assert sorted(rows) == sorted(word + each["what"] for word, each in zip(words, listed, strict=True))
        return [f"{each['kind']}: {each['what']}" for each in listed]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def audit(data: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Auditor:
    return Auditor(data, capfd, monkeypatch)


# --- nothing to find ---


def test_g6_complete_sessions_are_clean(audit: Auditor, data: Path) -> None:
    Made(data).end().publish()
    Made(data, generation=OTHER).end().publish()
    Made(data, "s-2", mode="unsigned").end().publish()
    failed = Made(data, "s-3")
    failed.lifecycle(3, "quarantined")
    failed.outcome("quarantined")
    failed.publish()
    assert audit() == []
    assert audit.raw() == (
        0,
        "looked at 3 sessions (4 generations, 0 open), 18 events in the journal, 18 events on the bus; MACs checked\n"
        "audit: CLEAN\n",
        "",
    )


def test_g6_without_bus_and_key_the_rest_is_audited(audit: Auditor, data: Path) -> None:
    Made(data).end()
    (data / "keys" / "journal.key").unlink()
    assert audit.raw()[1].splitlines() == [
        "looked at 1 session (1 generation, 0 open), 5 events in the journal, no bus; MACs not checked: no journal key",
        "audit: CLEAN, MACs not checked",
    ]


def test_g6_a_bare_evidence_store_is_audited_too(audit: Auditor, data: Path) -> None:
    Made(data).end()
    audit.data = data / "evidence"
    assert audit("--journal-key", str(data / "keys" / "journal.key")) == []


def test_g6_captures_deleted_later_are_no_finding(audit: Auditor, data: Path) -> None:
    made = Made(data).end()
    shutil.rmtree(made.folder / "captures")
    assert audit() == []


# --- sessions without an end ---


@pytest.mark.parametrize(("mode", "lacks"), [("signed", "no receipt"), ("unsigned", "no trajectory")])
def test_g6_a_session_without_an_outcome_is_open_or_abandoned(
    audit: Auditor, data: Path, mode: str, lacks: str
) -> None:
    Made(data, mode=mode).publish()
    said = f"{lacks}, no outcome; last event 2026-08-10T00:00:02.000Z"
    assert audit() == [f"open_or_abandoned: {said}"]
    audit.now = T0 + 2000 + HOUR + 1
    assert audit() == [f"open_or_abandoned: {said}"]
    audit.now = T0 + 2000 + HOUR
    assert audit() == [f"open: {said}"]
    assert audit("--older-than", "59m") == [f"open_or_abandoned: {said}"]
    assert audit("--older-than", "2d") == [f"open: {said}"]


def test_g6_an_event_far_in_the_future_does_not_keep_a_session_open(audit: Auditor, data: Path) -> None:
    Made(data).publish()
    audit.now = T0 - 24 * HOUR
    assert audit() == ["open_or_abandoned: no receipt, no outcome; last event 2026-08-10T00:00:02.000Z"]


def test_g6_a_receipt_without_an_outcome(audit: Auditor, data: Path) -> None:
    made = Made(data).end()
    (made.folder / "outcome.json").unlink()
    assert audit() == ["open_or_abandoned: no outcome; last event 2026-08-10T00:00:04.000Z"]


def test_g6_a_session_of_metadata_alone(audit: Auditor, data: Path) -> None:
    made = Made(data, steps=0)
    shutil.rmtree(made.folder / "journal")
    assert audit() == [
        "open_or_abandoned: no receipt, no outcome; no event",
        "missing: the opening event",
        "orphan_captures: captures/000000000000.ndjson goes with no journal segment",
    ]


# --- outcomes without the evidence they name ---


@pytest.mark.parametrize(
    ("mode", "name"),
    [("signed", "receipt.json"), ("unsigned", "trajectory.json"), ("unsigned", "trajectory.provenance.json")],
)
def test_g6_an_outcome_without_what_it_names(audit: Auditor, data: Path, mode: str, name: str) -> None:
    made = Made(data, mode=mode).end()
    (made.folder / name).unlink()
    assert audit() == [f"missing: {name}, though the outcome is closed"]


def test_g6_an_outcome_that_names_another_receipt(audit: Auditor, data: Path) -> None:
    made = Made(data).end()
    made.outcome(receipt_sha256="0" * 64)
    assert audit() == ["differs: receipt.json is not the one that the outcome names"]


def test_g6_an_outcome_that_names_more_or_fewer_events(audit: Auditor, data: Path) -> None:
    made = Made(data, steps=4).end()
    (made.folder / "journal" / "000000000004.ndjson").unlink()
    (made.folder / "captures" / "000000000004.ndjson").unlink()
    (made.folder / "lifecycle" / "000000000005.json").unlink()
    (made.folder / "lifecycle" / "000000000006.json").unlink()
    assert audit() == ["gap: event 4 is missing in the journal", "gap: lifecycle events 5-6 are missing in the journal"]
    made.outcome("quarantined", event_count=2)
    assert audit() == ["differs: the outcome names 2 events, the journal holds event 3"]


# --- sequences ---


def test_g6_gaps_in_the_journal(audit: Auditor, data: Path) -> None:
    made = Made(data, steps=6).end()
    for sequence in (1, 3, 4):
        (made.folder / "journal" / f"{sequence:012d}.ndjson").unlink()
        (made.folder / "captures" / f"{sequence:012d}.ndjson").unlink()
    assert audit() == ["gap: event 1 is missing in the journal", "gap: events 3-4 are missing in the journal"]


def test_g6_duplicates_in_the_journal(audit: Auditor, data: Path) -> None:
    made = Made(data)
    made.segment(1, [event("s-1", 1, {}), event("s-1", 2, {})], [b"{}", b"{}"])
    made.bus_events = made.bus_events[:3]
    made.end()
    assert audit() == ["duplicate: event 2 stands 2 times in the journal"]


def test_g6_duplicates_on_the_bus(audit: Auditor, data: Path) -> None:
    made = Made(data).end().publish()
    made.put(compact(made.bus_events[1]))
    made.put(compact({**made.bus_events[2], "time": 1}))
    assert audit() == [
        "duplicate: event 1 stands 2 times on the bus",
        "duplicate: event 2 stands 2 times on the bus",
        "differs: event 2 is on the bus with other content than in the journal",
    ]


def test_g6_journal_events_that_are_not_on_the_bus(audit: Auditor, data: Path) -> None:
    Made(data, steps=4).end().publish(without=(1, 2, 5, 6))
    assert audit() == [
        "gap: events 1-2 are missing on the bus",
        "not_on_bus: events 5-6 are in the journal and not on the bus",
    ]


def test_g6_what_is_on_its_way_to_the_bus_is_no_finding(audit: Auditor, data: Path) -> None:
    made = Made(data, steps=4).publish(without=(2, 4))
    audit.now = T0 + 5000
    state = "no receipt, no outcome; last event 2026-08-10T00:00:04.000Z"
    assert audit() == ["gap: event 2 is missing on the bus", f"open: {state}"]
    made.end()  # what has ended is on the bus, however recent
    assert audit() == [
        "gap: event 2 is missing on the bus",
        "not_on_bus: events 4-6 are in the journal and not on the bus",
    ]


def test_g6_bus_events_that_are_not_in_the_journal(audit: Auditor, data: Path) -> None:
    made = Made(data).end().publish()
    made.put(compact(event("s-1", 5, {})))
    for session, generation in (("s-2", GENERATION), ("s-1", OTHER)):
        gone = Made(data, session, generation).publish()
        shutil.rmtree(gone.folder)
    assert audit() == [
        "not_in_journal: event 5 is on the bus and not in the journal",
        "not_in_journal: events 0-2 are on the bus, but the store has no such generation",
        "not_in_journal: events 0-2 are on the bus, but the store has no such generation",
    ]


# --- objects ---


def test_g6_orphan_captures(audit: Auditor, data: Path) -> None:
    made = Made(data)
    made.write("captures/000000000003.ndjson", CAPTURE + b"\n")
    made.write("captures/000000000009.ndjson", CAPTURE + b"\n")
    audit.now = T0 + 5000  # the next batch of a live session: captures are written first
    state = "no receipt, no outcome; last event 2026-08-10T00:00:02.000Z"
    assert audit() == ["orphan_captures: captures/000000000009.ndjson goes with no journal segment", f"open: {state}"]
    audit.now = T0 + 24 * HOUR
    assert audit() == [
        f"open_or_abandoned: {state}",
        "orphan_captures: captures/000000000003.ndjson goes with no journal segment",
        "orphan_captures: captures/000000000009.ndjson goes with no journal segment",
    ]


def test_g6_captures_that_are_not_the_events(audit: Auditor, data: Path) -> None:
    made = Made(data).end()
    made.write("captures/000000000001.ndjson", b'{"call_id":"d"}\n')
    made.write("captures/000000000002.ndjson", CAPTURE + b"\n{}\n")
    assert audit() == [
        "differs: captures/000000000001.ndjson: the capture of event 1 is not the one it names",
        "differs: captures/000000000002.ndjson has 2 lines for 1 events",
    ]


def test_g6_unreadable_objects(audit: Auditor, data: Path) -> None:
    made = Made(data).end()
    for name in ("outcome.json", "metadata.json", "receipt.json", "journal/000000000001.ndjson"):
        made.write(name, b"{")
    lifecycle = made.folder / "lifecycle" / "000000000003.json"
    lifecycle.rename(made.folder / "elsewhere.json")
    lifecycle.symlink_to(made.folder / "elsewhere.json")
    (made.folder / "captures" / "000000000002.ndjson").write_bytes(b"")
    os.mkfifo(made.folder / "captures" / "000000000004.ndjson")
    found = audit()
    assert [each.split(":")[0] for each in found] == [
        *("unreadable",) * 2,
        "misplaced",
        "unreadable",
        "differs",
        *("unreadable",) * 2,
        "orphan_captures",
    ]
    named = ("outcome.json", "metadata.json", "elsewhere.json", "journal/000000000001.ndjson line 1")
    named += ("captures/000000000002.ndjson", "lifecycle/000000000003.json", "receipt.json", "captures/000000000004")
    for line, name in zip(found, named, strict=True):
        assert name in line


def test_g6_another_key_s_macs_are_one_line_a_segment(audit: Auditor, data: Path, tmp_path: Path) -> None:
    made = Made(data, steps=0)
    made.segment(1, [event("s-1", number, {}) for number in (1, 2, 3)], [b"{}"] * 3)
    made.count = 4
    made.end()
    other = tmp_path / "other.key"
    other.write_bytes(bytes(range(1, 33)))
    other.chmod(0o600)
    assert audit("--journal-key", str(other)) == [
        "unreadable: outcome.json: authentication failed",
        "unreadable: metadata.json: authentication failed",
        "unreadable: journal/000000000000.ndjson line 1: authentication failed",
        "unreadable: journal/000000000001.ndjson line 1: authentication failed, and 2 more",
        "unreadable: lifecycle/000000000004.json: authentication failed",
        "unreadable: lifecycle/000000000005.json: authentication failed",
    ]
    assert audit("--journal-key", str(other), "--journal-key", str(data / "keys" / "journal.key")) == []


def test_g6_evidence_in_another_session_s_folder(audit: Auditor, data: Path) -> None:
    made = Made(data, "s-1").end()
    other = Made(data, "s-2").end()
    shutil.copy(made.folder / "receipt.json", other.folder)
    shutil.copy(made.folder / "journal" / "000000000001.ndjson", other.folder / "journal")
    found = audit()
    assert found == [
        "unreadable: journal/000000000001.ndjson line 1: authentication failed",
        "misplaced: receipt.json is of another session",
        "differs: receipt.json is not the one that the outcome names",
    ]
    (data / "keys" / "journal.key").unlink()
    assert "unreadable: journal/000000000001.ndjson line 1: an event of another session" in audit()


def test_g6_what_tells_no_session_is_shown_by_its_stem(audit: Auditor, data: Path) -> None:
    made = Made(data)
    shutil.rmtree(made.folder / "journal")
    shutil.rmtree(made.folder / "captures")
    (made.folder / "metadata.json").unlink()
    found = json.loads(audit.raw("--json")[1])["findings"]
    assert {(each["session"], each["generation"]) for each in found} == {(made.stem, GENERATION)}
    assert [each["what"] for each in found] == [
        "metadata.json",
        "no receipt, no outcome; no event",
        "the opening event",
    ]


def test_g6_foreign_names_are_escaped(audit: Auditor, data: Path) -> None:
    made = Made(data).end()
    made.write("journal/\x1b[31mred", b"")
    (data / "evidence" / "sessions" / "\x1b]0;x").mkdir()
    made.session = "\x1b[2J#"
    made.put(compact(event("\x1b[2J#", 0, {})))
    code, out, _ = audit.raw()
    assert (code, "\x1b" in out) == (1, False)
    assert "misplaced          \\x1b]0;x  -  is no folder of a session\n" in out
    assert "journal/\\x1b[31mred is no object of a generation\n" in out
    assert "not in journal     \\x1b[2J#  " in out


# --- the bus file ---


def test_g6_unreadable_records_on_the_bus(audit: Auditor, data: Path) -> None:
    made = Made(data).end().publish()
    made.put(b"{")
    made.put(b"[]")
    foreign = compact(event("s-2", 9, {}))
    made.put(foreign)
    found = audit()
    assert found[0].startswith("unreadable: record 6 on the bus: ")
    assert found[1:] == [
        "unreadable: record 7 on the bus is no event with a sequence",
        "misplaced: event 9 on the bus is of another session",
        "gap: events 5-8 are missing on the bus",
        "not_in_journal: event 9 is on the bus and not in the journal",
    ]


def test_g6_a_bus_that_cannot_be_read_is_a_finding_and_the_store_is_audited(audit: Auditor, data: Path) -> None:
    made = Made(data)
    made.publish()
    open_ = "open_or_abandoned: no receipt, no outcome; last event 2026-08-10T00:00:02.000Z"
    made.put(compact(event("s-1", 7, {})), headers="{")
    assert audit() == ["unreadable: after record 3, so it was not compared: damaged", open_]
    (data / "bus.sqlite").write_bytes(b"nonsense" * 100)
    assert audit() == [
        "unreadable: after record 0, so it was not compared: bus.sqlite is not a SQLite database",
        open_,
    ]


# --- usage ---


def test_g6_bad_usage_is_exit_2(audit: Auditor, data: Path, tmp_path: Path) -> None:
    code, out, err = audit.raw()
    assert (code, out, err.startswith("error: no evidence in ")) == (2, "", True)
    Made(data).end()
    for arguments in (("--older-than", "1"), ("--older-than", "-1h"), ("--journal-key", "missing"), ("--nonsense",)):
        code, out, err = audit.raw(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
    nothing = "error: no evidence store in {} (--store)\n"
    for place in (tmp_path / "nowhere", tmp_path, data / "keys" / "journal.key"):
        assert audit.raw("--store", str(place)) == (2, "", nothing.format(place))
    (data / "keys" / "journal.key").chmod(0o644)
    assert audit.raw()[::2] == (2, "error: journal.key is open to group or others (mode 0644, must be 0600)\n")


def test_g5_it_runs_where_only_the_base_is_installed(data: Path) -> None:
    Made(data).end().publish()
    blocked = "import sys; sys.modules.update(dict.fromkeys(('temporalio', 'numpy', 'aiokafka')))"
    script = f"{blocked}; from affidavit.cli import main; main()"
    arguments = [sys.executable, "-c", script, "audit", "--data-dir", str(data)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "audit: CLEAN, MACs not checked", "")
