"""`--store`: the commands read a store by its path or its URL, and say the same of the same evidence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from activities.sealed import SealedEvidence
from activities.trajectory import TrajectoryActivity
from affidavit.cli.app import run
from affidavit.evidence.keys import generate
from affidavit.evidence.scalars import session_stem
from affidavit.stores.local import DirectoryStore
from affidavit.stores.place import open_store
from tests.support.s3server import S3Server, fresh_url
from tests.support.stored import StoredSession
from workers.devserver import DevServer

SESSION = "session-1"
STEPS: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}]},
    {"kind": "model_response", "text": "It is here.", "finish_reason": "stop", "usage": {"prompt_tokens": 9}},
]


class Evidence:
    """An unsigned session in a directory; `places` copies what lies there into a bucket, whatever it is."""

    def __init__(self, root: Path) -> None:
        self.root = root / "evidence"
        self.key = generate(root / "keys").journal_key
        evidence = SealedEvidence(DirectoryStore(self.root), [self.key.read_bytes()])
        session = StoredSession(evidence, SESSION)
        for step in STEPS:
            session.report(step)
        session.run(TrajectoryActivity(evidence).write, session.claims())
        session.end()
        (self.folder,) = (self.root / "sessions").glob("*/*")

    def places(self) -> list[str]:
        url = fresh_url()
        bucket = S3Store(url.bucket, prefix=url.prefix, client_options={"allow_http": True})
        for file in sorted(path for path in self.root.rglob("*") if path.is_file()):
            obstore.put(bucket, file.relative_to(self.root).as_posix(), file.read_bytes())
        return [str(self.root), str(url)]


@pytest.fixture
def evidence(s3_environment: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:9")  # nobody there: what is told comes from the store
    monkeypatch.chdir(tmp_path)
    return Evidence(tmp_path / "made")


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    exited = run(arguments)
    shown = capsys.readouterr()
    assert exited == code, shown.err
    return shown.out


def test_an_export_is_the_stored_trajectory(
    evidence: Evidence, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = (evidence.folder / "trajectory.json").read_bytes()
    for number, place in enumerate(evidence.places()):
        made = tmp_path / f"{number}.json"
        said = told(capsys, "trajectory", "export", SESSION, "-o", str(made), "--store", place)
        assert made.read_bytes() == stored
        assert said.endswith("the stored bytes\n")


def test_a_session_is_shown_from_its_outcome(evidence: Evidence, capsys: pytest.CaptureFixture[str]) -> None:
    for place in evidence.places():
        shown = json.loads(told(capsys, "show", SESSION, "--json", "--store", place))
        assert (shown["source"], shown["outcome"]["status"]) == ("evidence store", "closed")


def test_what_is_not_there_is_said_of_the_place_that_was_named(
    evidence: Evidence, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in evidence.places():
        capsys.readouterr()
        assert run(["bundle", "nobody", "-o", "x.zip", "--store", place]) == 1
        shown = place if place.startswith("s3://") else "made/evidence"
        assert capsys.readouterr().err == f"error: no evidence of session nobody in {shown}\n"


def test_g6_an_audit_finds_the_same_on_a_disk_and_in_a_bucket(
    evidence: Evidence, capsys: pytest.CaptureFixture[str]
) -> None:
    def audits(code: int) -> list[dict[str, Any]]:
        options = ("--json", "--journal-key", str(evidence.key))
        return [json.loads(told(capsys, "audit", "--store", place, *options, code=code)) for place in evidence.places()]

    on_disk, in_bucket = audits(0)
    assert on_disk == in_bucket
    assert on_disk["clean"] is True
    assert on_disk["looked_at"]["macs_checked"] is True
    assert on_disk["looked_at"]["journal_events"] == 4

    captures = evidence.folder / "captures/000000000001.ndjson"
    captures.write_bytes(captures.read_bytes().replace(b"needle", b"noodle"))
    (evidence.folder / "journal/000000000002.ndjson").unlink()
    (evidence.folder / "surplus").write_bytes(b"")
    (evidence.folder / "not a name").write_bytes(b"")
    (evidence.folder / ".hidden").write_bytes(b"")
    (evidence.root / "sessions/foreign").write_bytes(b"")
    (evidence.folder / "trajectory.json").unlink()
    on_disk, in_bucket = audits(1)
    assert on_disk == in_bucket
    kinds = sorted(finding["kind"] for finding in on_disk["findings"])
    assert kinds == ["differs", "gap", "misplaced", "misplaced", "misplaced", "missing", "orphan_captures"]


LATER = "2100-01-01"


def below(place: str) -> list[str]:
    """Names of all objects of a store, without its id."""
    return [name for name in open_store(place, create=False).list("") if name != "store.id"]


def test_p19_prune_erases_the_same_on_a_disk_and_in_a_bucket(
    evidence: Evidence, capsys: pytest.CaptureFixture[str]
) -> None:
    (generation,) = (path.name for path in (evidence.root / "sessions").glob("*/*"))
    prefix = f"sessions/{session_stem(SESSION)}/{generation}"
    captures = [f"{prefix}/captures/00000000000{number}.ndjson" for number in (0, 1, 2)]
    on_disk, in_bucket = evidence.places()
    assert set(captures) <= set(below(in_bucket))

    def pruned(place: str, *options: str, code: int = 0) -> dict[str, Any]:
        key = ("--journal-key", str(evidence.key))
        printed = told(capsys, "prune", "--closed-before", LATER, "--json", "--store", place, *key, *options, code=code)
        document: dict[str, Any] = json.loads(printed)
        return document

    for place in (in_bucket, on_disk):
        before = below(place)
        said = pruned(place, "--captures-only", "--dry-run")
        assert (said["objects"], below(place)) == (len(captures) + 1, before)
        said = pruned(place, "--captures-only")
        assert [each["session_id"] for each in said["pruned"]] == [SESSION]
        assert said["objects"] == len(captures) + 1
        gone = {*captures, f"{prefix}/trajectory.json"}
        assert below(place) == sorted({*before, f"{prefix}/erased.json"} - gone)
        assert pruned(place, "--captures-only")["objects"] == 0
        assert told(capsys, "audit", "--store", place, "--journal-key", str(evidence.key)).endswith("audit: CLEAN\n")


async def test_p19_whole_sessions_are_pruned_in_a_bucket(
    evidence: Evidence, server: DevServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    (generation,) = (path.name for path in (evidence.root / "sessions").glob("*/*"))
    _, place = evidence.places()
    arguments = ("prune", "--closed-before", LATER, "--store", place, "--journal-key", str(evidence.key))
    said = await asyncio.to_thread(told, capsys, *arguments)
    assert said.splitlines()[-1].startswith("pruned: 1 generations, ")
    assert below(place) == [f"sessions/{session_stem(SESSION)}/{generation}/pruned.json"]
    assert (await asyncio.to_thread(told, capsys, *arguments)).splitlines() == [
        "pruned: 0 generations, 0 objects, 0 executions"
    ]
    assert "1 pruned" in told(capsys, "audit", "--store", place, "--journal-key", str(evidence.key))


def test_p19_a_store_that_is_named_is_pruned_with_a_key_that_is_named(
    evidence: Evidence, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not with the one of a data folder that happens to be here."""
    generate(tmp_path / ".affidavit/keys")
    for place in evidence.places():
        before = below(place)
        assert run(["prune", "--closed-before", LATER, "--store", place]) == 2
        assert "--journal-key" in capsys.readouterr().err
        assert below(place) == before
