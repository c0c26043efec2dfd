"""The commands that need no server: verdicts, exit codes, one-line errors (behaviours G1, G5, G6, I1, I5)."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from affidavit.buslog import SCHEMA
from affidavit.cli import run as command
from affidavit.cli.app import app
from affidavit.cli.trajectory import app as trajectory
from affidavit.evidence import chain
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.journal import domain_active, record_payload, seal
from affidavit.evidence.keys import Signer, generate, read_secret_file
from affidavit.evidence.layout import journal_name, receipt_name
from affidavit.evidence.ocsf import build_event
from affidavit.evidence.receipt import event_chain, issue, to_bytes, unsigned_body
from affidavit.evidence.totals import Totals

ROOT = Path(__file__).parents[3]
SESSION = "session-1"
GENERATION = "0198a7c0-0000-7000-8000-00000000000a"
NOW = 1_786_320_000_000
IDENTITY = {"version": "1", "charter": {"name": "tester", "type_id": 1}, "instance_uid": "i-1"}


@dataclass
class Evidence:
    """A data folder that holds one signed session of two events."""

    data: Path

    @property
    def keys(self) -> str:
        return str(self.data / "keys" / "public.json")

    @property
    def journal_key(self) -> str:
        return str(self.data / "keys" / "journal.key")

    @property
    def folder(self) -> Path:
        return (self.data / "evidence" / receipt_name(SESSION, GENERATION)).parent

    @property
    def receipt(self) -> Path:
        return self.folder / "receipt.json"


def event(sequence: int, class_name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return build_event(
        uid=f"0198a7c0-0000-7000-8000-{sequence:012d}",
        sequence=sequence,
        time_ms=NOW + sequence,
        class_name=class_name,
        session_id=SESSION,
        identity=IDENTITY,
        product_version="0.1.0",
        status_id=1,
        severity_id=1,
        payload=payload,
        metrics={},
        stop=None,
    )


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    made = Evidence(tmp_path / "data")
    keys = generate(made.data / "keys")
    opened = {"action": "opened", "mode": "signed", "content": "store", "generation": GENERATION}
    call = {"action": "tool_call", "call_id": "c", "tool": "t", "allowed": True, "arguments_sha256": "0" * 64}
    events = [
        event(0, "agent.session", {**opened, "registration_sha256": "0" * 64}),
        event(1, "agent.tool_call", call),
    ]
    counts: list[dict[str, int]] = [{}, {"tool_calls": 1, "tool_allowed": 1}]
    key = read_secret_file(keys.journal_key)
    lines = [
        seal(
            key,
            domain_active(SESSION, GENERATION),
            index,
            record_payload(event=each, identity=IDENTITY, counts=count, stop_reason_id=None, attempt=None),
        )
        for index, (each, count) in enumerate(zip(events, counts, strict=True))
    ]
    journal = made.data / "evidence" / journal_name(SESSION, GENERATION, 0)
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"\n".join(lines) + b"\n")
    body = unsigned_body(
        receipt_id="0198a7c0-0000-7000-8000-0000000000ff",
        session_id=SESSION,
        issued_at=NOW + 5,
        ai_agent=IDENTITY,
        subject=event_chain(chain.chain_head(SESSION, events), 2),
        totals=Totals(tool_total=1, tool_allowed=1),
        stop_reason_id=4,
    )
    made.receipt.write_bytes(to_bytes(issue(body, Signer.from_file(keys.seed))))
    with closing(sqlite3.connect(made.data / "bus.sqlite")) as bus:
        bus.executescript(SCHEMA)
        for place, each in enumerate(events):
            topic, uid = each["class_name"], each["metadata"]["uid"]
            row = (topic, 0, place, "i-1", uid, SESSION, GENERATION, each["time"], "{}", canonicalize(each))
            bus.execute(
                'INSERT INTO records (topic, partition, "offset", key, uid, session, generation, time_ms, headers,'
                " value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        bus.commit()
    return made


class Cli:
    """Runs a command in this process; an error must be one line on standard error."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        code = command([str(each) for each in arguments])
        out, err = self._capfd.readouterr()
        assert "Traceback" not in out + err
        assert err.count("\n") <= 1
        assert bool(err) == err.startswith("error: ")
        return code, out, err


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


def last(out: str) -> str:
    return out.splitlines()[-1]


# --- verify ---


def test_g1_valid_with_a_trusted_key(cli: Cli, evidence: Evidence) -> None:
    code, out, _ = cli("verify", evidence.receipt, "--key", evidence.keys)
    assert (code, last(out)) == (0, "receipt: VALID")
    assert "not checked  events" in out


def test_g1_without_a_key_only_integrity(cli: Cli, evidence: Evidence) -> None:
    code, out, _ = cli("verify", evidence.receipt)
    assert code == 3
    assert last(out) == "receipt: INTEGRITY ONLY, signer not trusted"
    assert "integrity only, signer not trusted" in out
    assert "VALID" not in out


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"total": 1', b'"total": 2', "tool_calls.total"),
        (b'"type_id": 1', b'"type_id": 1, "type_id": 1', "duplicate key"),
        (b'"instance_uid": "i-1"', b'"instance_uid": "i-2"', "signature does not match"),
        (b"{", b'{"extra": 1,', "unknown field extra"),
        (b"{", b"[", ""),
    ],
)
def test_g1_a_changed_receipt_is_refused(cli: Cli, evidence: Evidence, old: bytes, new: bytes, reason: str) -> None:
    evidence.receipt.write_bytes(evidence.receipt.read_bytes().replace(old, new, 1))
    code, out, err = cli("verify", evidence.receipt, "--key", evidence.keys)
    assert (code, err) == (1, "")
    assert last(out).startswith("receipt: REFUSED: ")
    assert reason in last(out)


def test_g1_another_key_is_untrusted(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    other = generate(tmp_path / "other").public_keys
    code, out, _ = cli("verify", evidence.receipt, "--key", other)
    assert code == 1
    assert last(out).startswith("receipt: REFUSED: untrusted key: ")


def test_g1_json_says_the_same(cli: Cli, evidence: Evidence) -> None:
    verdicts = {}
    for arguments in (("--key", evidence.keys), ()):
        code, out, _ = cli("verify", evidence.receipt, "--json", *arguments)
        verdicts[code] = json.loads(out)
    assert {code: each["verdict"] for code, each in verdicts.items()} == {0: "valid", 3: "integrity_only"}
    assert verdicts[0]["receipt"]["session_id"] == SESSION
    assert {each["outcome"] for each in verdicts[0]["checks"]} == {"passed"}
    assert verdicts[3]["unchecked"]


@pytest.mark.parametrize("argument", ["missing.json", "--key=missing.json", "--events=missing", "--nonsense"])
def test_g1_bad_usage_is_exit_2(cli: Cli, evidence: Evidence, argument: str) -> None:
    arguments = [argument] if argument == "missing.json" else [str(evidence.receipt), argument]
    code, out, err = cli("verify", *arguments)
    assert (code, out) == (2, "")
    assert err


def test_g3_the_dump_of_events_verifies_with_the_receipt(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    code, dump, _ = cli("events", "--session", SESSION, "--data-dir", evidence.data)
    assert code == 0
    assert [set(json.loads(line)) for line in dump.splitlines()] == [{"generation", "event"}] * 2
    file = tmp_path / "dump.ndjson"
    file.write_text(dump, "utf-8")
    arguments = ("verify", evidence.receipt, "--key", evidence.keys, "--events", file)
    code, out, _ = cli(*arguments)
    assert (code, last(out)) == (0, "receipt: VALID")
    file.write_text(dump.splitlines()[0] + "\n", "utf-8")
    code, out, _ = cli(*arguments)
    assert code == 1
    assert "the last 1 events are missing" in last(out)


@pytest.mark.parametrize("folder", ["", "journal"])
def test_g3_a_journal_folder_verifies_and_places_an_alteration(cli: Cli, evidence: Evidence, folder: str) -> None:
    arguments = ("verify", evidence.receipt, "--key", evidence.keys, "--events", evidence.folder / folder)
    assert cli(*arguments, "--journal-key", evidence.journal_key)[0] == 0
    segment = evidence.folder / "journal" / f"{0:012d}.ndjson"
    segment.write_bytes(segment.read_bytes().replace(b'"tool":"t"', b'"tool":"u"'))
    code, out, _ = cli(*arguments, "--journal-key", evidence.journal_key)
    assert (code, last(out)) == (1, "receipt: REFUSED: altered: event 1")
    code, out, _ = cli(*arguments)
    assert (code, last(out)) == (1, "receipt: REFUSED: altered, place unknown")


def test_i1_a_journal_key_that_others_can_read_is_refused(cli: Cli, evidence: Evidence) -> None:
    Path(evidence.journal_key).chmod(0o644)
    code, _, err = cli("verify", evidence.receipt, "--journal-key", evidence.journal_key)
    assert code == 2
    assert err == "error: journal.key is open to group or others (mode 0644, must be 0600)\n"


# --- bundle ---


def test_g6_a_bundle_is_written_once_and_verifies(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    file = tmp_path / "out.zip"
    code, out, _ = cli("bundle", SESSION, "-o", file, "--data-dir", evidence.data)
    assert (code, SESSION in out) == (0, True)
    assert cli("bundle", SESSION, "-o", file, "--data-dir", evidence.data) == (1, "", "error: out.zip exists\n")
    code, out, _ = cli("verify", file, "--key", evidence.keys)
    assert (code, last(out)) == (0, "receipt: VALID")
    assert cli("verify", file)[0] == 3


def test_g5_a_bundle_verifies_where_only_the_base_is_installed(evidence: Evidence, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "out.zip"
    assert cli("bundle", SESSION, "-o", file, "--data-dir", evidence.data)[0] == 0
    blocked = "import sys; sys.modules.update(dict.fromkeys(('temporalio', 'numpy', 'aiokafka')))"
    script = f"{blocked}; from affidavit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "verify", str(file), "--key", evidence.keys],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert (done.returncode, last(done.stdout), done.stderr) == (0, "receipt: VALID", "")
    needs = [sys.executable, "-c", script, "close", SESSION]
    done = subprocess.run(
        needs,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "TEMPORAL_ADDRESS": "localhost:1"},
    )
    assert done.returncode == 4
    assert "client extra" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_session_without_evidence(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("bundle", "nobody", "-o", tmp_path / "x.zip", "--data-dir", tmp_path)
    assert code == 1
    assert "no evidence of session nobody" in err
    assert cli("bundle", "no#body", "-o", tmp_path / "x.zip")[0] == 2


def test_the_receipt_comes_from_the_data_folder(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    stored = evidence.receipt.read_bytes()
    code, out, _ = cli("receipt", SESSION, "--data-dir", evidence.data)
    assert (code, out.encode()) == (0, stored)
    copy = tmp_path / "copy.json"
    assert cli("receipt", SESSION, "--data-dir", evidence.data, "-o", copy)[0] == 0
    assert copy.read_bytes() == stored
    assert cli("receipt", SESSION, "--data-dir", evidence.data, "-o", copy)[::2] == (1, "error: copy.json exists\n")


# --- events and schemas ---


def test_events_by_topic(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    code, out, _ = cli("events", "--topic", "agent.tool_call", "--data-dir", evidence.data)
    assert code == 0
    assert [json.loads(line)["event"]["payload"]["tool"] for line in out.splitlines()] == ["t"]
    assert cli("events", "--session", "other", "--data-dir", evidence.data)[:2] == (0, "")
    assert cli("events", "--data-dir", tmp_path)[::2] == (
        2,
        f"error: there is no event log bus.sqlite in {tmp_path} (choose the folder with --data-dir)\n",
    )


def test_schemas_are_listed_and_printed(cli: Cli) -> None:
    names = json.loads(cli("schema", "--json")[1])
    assert names == cli("schema")[1].splitlines()
    assert {"tool_call", "model_response", "session-spec", "event", "receipt"} <= set(names)
    for name in names:
        code, out, _ = cli("schema", name)
        assert (code, json.loads(out)["$schema"]) == (0, "https://json-schema.org/draft/2020-12/schema")
    assert cli("schema", "nothing")[0] == 2


# --- keys ---


def test_i1_keygen_makes_private_files_once(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("keygen", tmp_path / "keys", "--json")
    made = json.loads(out)
    modes = {name: (tmp_path / "keys" / name).stat().st_mode & 0o777 for name in ("signing.seed", "journal.key")}
    assert (code, modes) == (0, {"signing.seed": 0o600, "journal.key": 0o600})
    seed = (tmp_path / "keys" / "signing.seed").read_bytes()
    assert made["key_id"] == Signer(seed).key_id
    assert seed.hex() not in out
    code, _, err = cli("keygen", tmp_path / "keys")
    assert (code, err) == (1, "error: signing.seed exists; keys are generated once and never overwritten\n")
    assert (tmp_path / "keys" / "signing.seed").read_bytes() == seed
    assert cli("keygen", "--data-dir", tmp_path / "data")[0] == 0
    assert (tmp_path / "data" / "keys" / "public.json").is_file()


# --- errors ---


def test_i5_errors_show_base_names_and_escape_foreign_text(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    code, _, err = cli("verify", tmp_path / "deep" / "mi\x1b[31mssing.json")
    assert (code, err) == (2, "error: mi\\x1b[31mssing.json: No such file or directory (there is no folder deep)\n")
    forged = json.loads(evidence.receipt.read_text("utf-8")) | {"[red]bold\x1b[31m": 1}
    evidence.receipt.write_text(json.dumps(forged), "utf-8")
    _, out, _ = cli("verify", evidence.receipt)
    assert last(out) == "receipt: REFUSED: unknown field [red]bold\\x1b[31m"


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), ("{}", "schema_version"), ("nonsense", "not an ATIF trajectory")]
)
def test_replaying_what_is_no_run(cli: Cli, tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content, "utf-8")
    code, out, err = cli("replay", file)
    assert (code, out) == (2, "")
    assert reason in err


def test_no_server_says_how_to_start_one(tmp_path: Path) -> None:
    environment = {**os.environ, "TEMPORAL_ADDRESS": "127.0.0.1:1", "AFFIDAVIT_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "affidavit.cli", "show", "nobody"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "error: no Temporal server answers at 127.0.0.1:1; `python -m affidavit.cli dev` starts one; "
        f"and there is no evidence of this session in {tmp_path} (choose the folder with --data-dir)\n"
    )


def test_without_the_worker_packages_the_embedded_mode_says_where_they_are(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("affidavit.cli.embedded.MODULE", "no_such_workers.dev")
    code, out, err = cli("dev", "--data-dir", tmp_path)
    assert (code, out) == (4, "")
    assert "come with a clone of the repository" in err


def test_an_unforeseen_error_is_one_line_too(cli: Cli, evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("affidavit.cli.offline.judge", lambda *_, **__: {}["boom"])
    code, _, err = cli("verify", evidence.receipt)
    assert (code, err) == (1, "error: internal error: KeyError (set AFFIDAVIT_DEBUG=1 for the trace)\n")


def test_every_command_documents_its_exit_codes(cli: Cli) -> None:
    names = [each.name for each in app.registered_commands if each.name]
    assert len(names) == 22
    commands = [[name] for name in names]
    commands += [["trajectory", each.callback.__name__] for each in trajectory.registered_commands if each.callback]
    assert len(commands) == 22 + 3
    for arguments in ([], ["trajectory"], *commands):
        code, out, _ = cli(*arguments, "--help")
        assert code == 0
        assert "Exit codes:" in out
    for arguments in commands:
        assert "--json" in cli(*arguments, "--help")[1]
