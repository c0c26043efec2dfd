"""`affidavit trajectory`: verdicts and exit codes; an export is the stored bytes, or says that it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.sealed import SealedEvidence
from activities.trajectory import TrajectoryActivity
from affidavit.cli import run as command
from affidavit.cli.evidence import find
from affidavit.evidence.keys import generate
from affidavit.stores.local import DirectoryStore
from tests.support.stored import StoredSession

ROOT = Path(__file__).parents[3]
SESSION = "session-1"
STEPS: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle ✓"}]},
    {"kind": "model_response", "text": "It is here.", "finish_reason": "stop", "usage": {"prompt_tokens": 9}},
]
RUN: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "run-0",
    "agent": {"name": "builder", "version": "2.0"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "go"},
        {"step_id": 2, "source": "agent", "message": "ok"},
    ],
}


class Data:
    """A data folder with one session, whose trajectory is stored unless the session is a signed one."""

    def __init__(self, root: Path, **spec: Any) -> None:
        self.root = root
        key = generate(root / "keys").journal_key.read_bytes()
        evidence = SealedEvidence(DirectoryStore(root / "evidence"), [key])
        self.session = StoredSession(evidence, SESSION, **spec)
        for step in STEPS:
            self.session.report(step)
        if self.session.spec.mode == "unsigned":
            self.session.run(TrajectoryActivity(evidence).write, self.session.claims())
        self.session.end()
        life = find(SESSION, None, [root])
        assert life is not None
        self.folder = Path(life.folder)

    @property
    def stored(self) -> bytes:
        return (self.folder / "trajectory.json").read_bytes()

    def export(self, *arguments: str) -> int:
        return command(["trajectory", "export", SESSION, "--data-dir", str(self.root), *arguments])


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def changed(**step: Any) -> dict[str, Any]:
    return {**RUN, "steps": [RUN["steps"][0], {**RUN["steps"][1], **step}]}


# -- validate -----------------------------------------------------------------------------------------


def test_a_valid_trajectory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["trajectory", "validate", write(tmp_path / "run.json", RUN)]) == 0
    assert capsys.readouterr().out == "trajectory: VALID (strict)\n"


def test_the_profile_writer_wants_token_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["trajectory", "validate", write(tmp_path / "run.json", RUN), "--profile", "writer"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "steps.1.metrics.prompt_tokens: is missing; a step that a model made has token counts",
        "steps.1.metrics.completion_tokens: is missing; a step that a model made has token counts",
        "trajectory: NOT VALID, 2 issues",
    ]


def test_every_issue_is_listed_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "run.json", {**changed(step_id=0, source="robot"), "odd\u202e": 1})
    assert command(["trajectory", "validate", file, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["valid"], told["profile"]) == (False, "strict")
    assert {issue["path"] for issue in told["issues"]} == {"odd\\u202e", "steps.1.step_id", "steps.1.source"}
    assert "expected 2 (sequential from 1), got 0" in [issue["message"] for issue in told["issues"]]


@pytest.mark.parametrize("text", ["{", '{"a":1,"a":1}', "[]x"])
def test_what_is_no_json_is_an_unusable_file(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(text)
    assert command(["trajectory", "validate", str(tmp_path / "run.json")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert command(["trajectory", "validate", str(tmp_path / "none.json")]) == 2
    assert command(["trajectory", "validate", str(tmp_path / "run.json"), "--profile", "lax"]) == 2


# -- compare ------------------------------------------------------------------------------------------


def test_equal_trajectories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path / "a.json", RUN), write(tmp_path / "b.json", changed(llm_call_count=1))
    assert command(["trajectory", "compare", one, other]) == 0
    assert capsys.readouterr().out == "trajectories: EQUAL\n"
    assert command(["trajectory", "compare", other, one]) == 1  # only the second may have it added


def test_different_trajectories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path / "a.json", RUN), write(tmp_path / "b.json", changed(message="no"))
    assert command(["trajectory", "compare", one, other]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "steps.1.message: ok became no",
        "trajectories: DIFFERENT, 1 difference",
    ]
    assert command(["trajectory", "compare", one, other, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "equal": False,
        "differences": [{"path": "steps.1.message", "said": "steps.1.message: ok became no"}],
    }


def test_what_is_no_trajectory_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path / "a.json", RUN), write(tmp_path / "b.json", {"steps": RUN["steps"]})
    assert command(["trajectory", "compare", one, other]) == 2
    assert capsys.readouterr().err.startswith("error: b.json: not a valid trajectory")


# -- export -------------------------------------------------------------------------------------------


def test_an_export_is_the_stored_bytes(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.json"
    assert data.export("-o", str(output)) == 0
    assert output.read_bytes() == data.stored
    told = capsys.readouterr().out.strip()
    assert told.endswith(f"2 steps of session {SESSION}, the stored bytes")
    assert data.export("-o", str(output)) == 1
    assert capsys.readouterr().err == "error: out.json exists\n"


def test_an_export_is_rebuilt_not_copied(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = data.stored
    (data.folder / "trajectory.json").unlink()
    assert data.export("-o", str(tmp_path / "out.json"), "--json") == 0
    assert (tmp_path / "out.json").read_bytes() == kept
    told = json.loads(capsys.readouterr().out)
    assert (told["stored"], told["step_count"], told["bytes"]) == ("absent", 2, len(kept))


def test_an_export_goes_to_a_pipe_as_it_is(data: Data) -> None:
    arguments = ["trajectory", "export", SESSION, "--data-dir", str(data.root)]
    done = subprocess.run(
        [sys.executable, "-m", "affidavit.cli", *arguments], cwd=ROOT, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (data.stored, b"")
    assert "✓".encode() in done.stdout


def test_an_export_says_so_where_the_stored_file_differs(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = data.stored
    (data.folder / "trajectory.json").write_bytes(kept.replace(b"needle", b"noodle"))
    assert data.export("-o", str(tmp_path / "out.json")) == 1
    printed = capsys.readouterr()
    assert printed.out.strip().endswith("NOT the stored bytes")
    assert printed.err == "error: the stored trajectory.json differs from what the captures give\n"
    assert (tmp_path / "out.json").read_bytes() == kept


def test_a_signed_session_has_a_trajectory_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Data(tmp_path / "data", mode="signed", content="full")
    assert data.export("-o", str(tmp_path / "out.json")) == 0
    assert capsys.readouterr().out.strip().endswith("none is stored")
    assert command(["trajectory", "validate", "--profile", "writer", str(tmp_path / "out.json")]) == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("journal/000000000001.ndjson", b'"roles":["user"]', b'"roles":["usir"]', "authentication failed"),
        ("captures/000000000001.ndjson", b"needle", b"noodle", "the capture of event 1 is not the one it was made of"),
        ("metadata.json", b'"mac":"', b'"mac":"0', "authentication failed"),
    ],
)
def test_nothing_is_exported_from_what_was_changed(
    data: Data, tmp_path: Path, name: str, old: bytes, new: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data.folder / name
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert data.export("-o", str(tmp_path / "out.json")) == 2
    assert capsys.readouterr().err == f"error: {reason}\n"
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("captures/000000000002.ndjson", "the captures from event 2 on are not there any more"),
        ("journal/000000000001.ndjson", "event 1 is missing from the journal"),
    ],
)
def test_nothing_is_exported_where_something_is_gone(
    data: Data, name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (data.folder / name).unlink()
    assert data.export() == 2
    assert capsys.readouterr().err == f"error: {reason}\n"


def test_an_unknown_session_has_no_export(data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["trajectory", "export", "nobody", "--data-dir", str(data.root)]) == 1
    assert "no evidence of session nobody" in capsys.readouterr().err
    assert command(["trajectory", "export", "a#b", "--data-dir", str(data.root)]) == 2


def test_the_group_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["trajectory", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("validate", "export", "compare"))
