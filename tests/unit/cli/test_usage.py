"""What the commands say: of input that is none, of folders, in hints and summaries."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from affidavit.cli.embedded import sample
from affidavit.cli.output import CommandError, hint, program, read_file
from affidavit.evidence.keys import Signer, generate
from affidavit.importing import read_run
from tests.unit.cli.test_offline import GENERATION, SESSION, Cli, Evidence, last
from tests.unit.cli.test_offline import cli as cli
from tests.unit.cli.test_offline import evidence as evidence
from workers.dev import DataDir

ROOT = Path(__file__).parents[3]
OTHER = "0198a7c0-0000-7000-8000-00000000000b"


# --- what verify is given ---


def test_verify_of_an_empty_path_is_bad_usage(cli: Cli) -> None:
    code, out, err = cli("verify", "")
    assert (code, out) == (2, "")
    assert err == "error: Invalid value for 'FILE': the path is empty (see affidavit verify --help)\n"


def test_verify_of_what_is_no_regular_file_is_bad_usage(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/null")):
            assert cli("verify", path) == (2, "", f"error: {path.name}: neither a regular file nor a folder\n")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00\x01\x02", b"[1, 2]", b"12"])
def test_verify_of_junk_says_not_a_receipt_or_bundle(cli: Cli, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "junk"
    file.write_bytes(content)
    assert cli("verify", file) == (2, "", "error: junk: not a receipt or bundle\n")


def test_verify_of_another_json_object_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a":1}', "utf-8")
    code, out, _ = cli("verify", file)
    assert (code, last(out)) == (1, "receipt: REFUSED: unknown field a")


@pytest.mark.parametrize("folder", [".", "evidence", "evidence/sessions", "evidence/sessions/*"])
def test_verify_of_a_folder_finds_the_single_generation(cli: Cli, evidence: Evidence, folder: str) -> None:
    (given,) = evidence.data.glob(folder) if folder != "." else (evidence.data,)
    code, out, _ = cli("verify", given, "--key", evidence.keys)
    assert (code, last(out)) == (0, "receipt: VALID")


def test_verify_of_a_store_with_several_generations_lists_them(cli: Cli, evidence: Evidence) -> None:
    shutil.copytree(evidence.folder, evidence.folder.with_name(OTHER))
    code, out, err = cli("verify", evidence.data, "--key", evidence.keys)
    assert (code, out) == (2, "")
    stem = evidence.folder.parent.name
    assert err == (
        "error: data: 2 generations, give one of the folders in it: "
        f"evidence/sessions/{stem}/{GENERATION} (no metadata), evidence/sessions/{stem}/{OTHER} (no metadata)\n"
    )


def test_verify_of_a_folder_without_evidence_is_bad_usage(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert cli("verify", tmp_path / "empty")[::2] == (2, "error: empty: a folder without evidence of a session\n")
    code, _, err = cli("verify", evidence.folder / "journal")
    assert (code, err) == (2, "error: journal: a journal alone; give the folder above it, or it as --events\n")


def test_a_key_file_that_is_none_is_named(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk", "utf-8")
    code, out, err = cli("verify", evidence.receipt, "--key", tmp_path / "junk")
    assert (code, out) == (2, "")
    assert err == "error: junk: neither a JSON list of keys nor one key of 32 bytes as base64 or hex\n"


# --- what verify prints ---


def test_verify_ends_with_a_summary_and_the_verdict(cli: Cli, evidence: Evidence) -> None:
    _, out, _ = cli("verify", evidence.folder, "--key", evidence.keys)
    summary = out.split("\n\n")[-2].splitlines()
    assert [row.split("  ")[0] for row in summary] == [
        "session",
        "generation",
        "agent",
        "issued at",
        "events",
        "tool calls",
        "tokens",
        "cost",
        "stop reason",
        "key id",
    ]
    said = dict(row.split(None, 1) for row in summary if row.split()[0] in ("session", "generation", "agent", "events"))
    assert said == {"session": SESSION, "generation": GENERATION, "agent": "tester 1 (i-1)", "events": "2"}
    assert "issued at    2026-08-10T" in out
    assert "stop reason  Session Closed" in out
    assert "cost         0.000000 USD" in out
    assert last(out) == "receipt: VALID"


def test_a_refusal_lists_what_was_not_reached(cli: Cli, evidence: Evidence) -> None:
    segment = evidence.folder / "journal" / f"{0:012d}.ndjson"
    segment.write_bytes(segment.read_bytes().replace(b'"tool":"t"', b'"tool":"u"'))
    code, out, _ = cli("verify", evidence.folder, "--key", evidence.keys)
    assert code == 1
    rows = [row.split(None, 2) for row in out.splitlines() if row.startswith("not checked")]
    unreached = [row[2].rsplit("  ", 1) for row in rows if row[2].endswith("not reached")]
    assert [name.strip() for name, _ in unreached] == [
        "opening",
        "event form",
        "identity",
        "totals",
        "stop reason",
        "lifecycle",
        "captures",
        "metadata",
    ]
    _, out, _ = cli("verify", evidence.folder, "--key", evidence.keys, "--json")
    assert {"name": "totals", "reason": "not reached"} in json.loads(out)["unchecked"]


def test_a_dump_of_several_sessions_hints_at_events_session(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    _, dump, _ = cli("events", "--data-dir", evidence.data)
    file = tmp_path / "dump"
    file.write_text(dump + dump.replace('"session-1"', '"session-2"'), "utf-8")
    code, out, _ = cli("verify", evidence.receipt, "--key", evidence.keys, "--events", file)
    assert code == 1
    assert last(out).endswith("the events of one session alone: affidavit events --session session-1")


def test_an_unknown_topic_is_refused_naming_the_six(cli: Cli, evidence: Evidence) -> None:
    code, out, err = cli("events", "--topic", "agent.tool", "--data-dir", evidence.data)
    assert (code, out) == (2, "")
    assert err == (
        "error: no topic 'agent.tool'; there are agent.tool_call, agent.stop_reason, agent.receipt, "
        "agent.compression, agent.identity, agent.session\n"
    )


# --- files ---


def test_a_run_too_large_is_refused_by_its_size_before_it_is_read(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)  # reading it would take all memory
    assert cli("replay", file) == (2, "", "error: run.json: 1099511627776 bytes, at most 268435456 are read\n")


def test_a_pipe_is_read_up_to_the_limit(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"12345")
    try:
        with pytest.raises(CommandError, match=r"more than 4 bytes, at most 4 are read"):
            read_file(Path(f"/dev/fd/{read}"), 4)
    finally:
        os.close(read)
        os.close(write)


def test_a_run_that_is_none_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}", "utf-8")
    code, _, err = cli("replay", tmp_path / "run.json")
    assert (code, err) == (
        2,
        "error: run.json: not an ATIF trajectory: a missing schema_version is none of ATIF-v1.0 to ATIF-v1.8\n",
    )


def test_a_bundle_that_cannot_be_made_names_no_temporary_file(cli: Cli, evidence: Evidence, tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "out.zip"
    assert cli("bundle", SESSION, "-o", out, "--data-dir", evidence.data)[::2] == (
        2,
        "error: out.zip: No such file or directory (there is no folder nowhere)\n",
    )


def test_the_run_that_dev_names_can_be_replayed() -> None:
    assert read_run(sample().read_bytes()).agent_name == "etoile-support"
    assert sample().is_absolute()


def test_a_missing_option_names_the_help_of_its_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["program"])
    for arguments, of in ((("bundle", "s"), "bundle"), (("trajectory", "compare", "a"), "trajectory compare")):
        code, _, err = cli(*arguments)
        assert (code, err.endswith(f"(see affidavit {of} --help)\n")) == (2, True), err


def test_validate_names_the_file_that_is_no_json(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# notes")
    code, _, err = cli("trajectory", "validate", tmp_path / "notes.md")
    assert (code, err.startswith("error: notes.md: ")) == (2, True), err


def test_prune_of_no_data_folder_says_so_before_it_asks_for_a_key(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("prune", "--closed-before", "2026-01-01", "--data-dir", tmp_path / "nowhere")
    assert (code, err.startswith("error: no evidence in ")) == (2, True), err


def test_show_names_the_folder_and_the_option(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    code, _, err = cli("show", "nobody", "--data-dir", tmp_path)
    assert code == 4
    assert err.endswith(f"and there is no evidence of this session in {tmp_path} (choose the folder with --data-dir)\n")


# --- hints and help ---


def test_hints_name_the_command_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / ".venv" / "bin" / "affidavit"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", [".venv/bin/affidavit", "demo"])
    assert program() == ".venv/bin/affidavit"
    assert hint("show", "a b", "--data-dir", tmp_path / "data") == ".venv/bin/affidavit show 'a b' --data-dir data"
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setattr("sys.argv", [str(script), "demo"])
    assert program() == "affidavit"
    monkeypatch.setattr("sys.argv", [str(tmp_path / "affidavit" / "cli" / "__main__.py")])
    assert program() == "python -m affidavit.cli"


@pytest.mark.parametrize("arguments", [[], ["verify"], ["dev"], ["trajectory"], ["trajectory", "validate"]])
def test_help_shows_no_value_beside_a_flag(cli: Cli, arguments: list[str]) -> None:
    code, out, _ = cli(*arguments, "--help")
    assert code == 0
    assert "bool" not in out


def test_the_help_of_the_demo_says_that_it_uses_a_server_of_its_own(cli: Cli) -> None:
    out = " ".join(cli("demo", "--help")[1].split())
    assert (
        "Always starts an embedded mode of its own, on free ports, whatever server runs here or is configured." in out
    )


# --- the embedded mode's folder ---


def test_a_failed_start_leaves_no_data_folder(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("dev", "--data-dir", tmp_path / "new" / "data", "--port", str(port))
    assert (code, err) == (
        4,
        f"error: the embedded mode did not start: port {port} cannot be used: Address already in use\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_unusable_keys_are_exit_2(cli: Cli, tmp_path: Path) -> None:
    made = generate(tmp_path / "keys")
    made.seed.chmod(0o644)
    made.public_keys.unlink()  # to be made anew, from a seed that cannot be used
    assert cli("dev", "--data-dir", tmp_path)[::2] == (
        2,
        "error: the embedded mode did not start: signing.seed is open to group or others (mode 0644, must be 0600)\n",
    )


def test_public_keys_that_are_gone_are_made_again_from_the_seed(tmp_path: Path) -> None:
    made = generate(tmp_path / "keys")
    before = made.public_keys.read_bytes()
    made.public_keys.unlink()
    settings = DataDir(tmp_path).settings()
    assert made.public_keys.read_bytes() == before
    assert settings.read_keyring(Signer.from_file(made.seed)) == before


def test_the_embedded_mode_takes_no_roles_and_no_secrets_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFFIDAVIT_ROLES", "session")
    monkeypatch.setenv("AFFIDAVIT_JOURNAL_KEY", "no key")
    monkeypatch.setenv("AFFIDAVIT_SIGNING_SEED_FILE", "")
    settings = DataDir(tmp_path).settings()
    assert settings.roles == ("session", "signing")
    assert settings.read_journal_keys() == [(tmp_path / "keys" / "journal.key").read_bytes()]
    assert settings.read_signer().key_id == Signer.from_file(tmp_path / "keys" / "signing.seed").key_id


# --- Ctrl-C ---


def test_ctrl_c_while_modules_load_is_no_traceback() -> None:
    """The signal comes in the middle of the imports: a module that is imported on the way sends it."""
    script = (
        "import sys, os, signal\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from affidavit.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
