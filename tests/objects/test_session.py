"""A signed session whose evidence is in an object store: attested, bundled, audited; and an outage in the middle."""

from __future__ import annotations

import hashlib
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from affidavit.cli.app import run
from affidavit.client import SessionClient
from affidavit.evidence.scalars import session_stem
from affidavit.stores.object import ObjectStore
from affidavit.stores.place import StoreOptions, StoreUrl, open_store
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig, actions
from tests.support.s3server import BUCKET, SECRET_KEY, S3Server, fresh_url
from tests.support.waiting import eventually
from workers.dev import DataDir
from workers.devserver import DevServer

LARGE = 2_000_000


@pytest.fixture
def url(s3_environment: S3Server) -> StoreUrl:
    return fresh_url()


async def rig_on(server: DevServer, root: Path, url: StoreUrl) -> Rig:
    """A product whose evidence is in the object store; the client shares it, by the URL."""
    open_store(url)
    data, queue = DataDir(root), f"test-{uuid.uuid4()}"
    client = await SessionClient.connect(address=server.address, task_queue=queue, admit_timeout=40, store=str(url))
    settings = data.settings().model_copy(update={"task_queue": queue, "store": url, "grace_s": 2.0})
    return Rig(client, data, settings)


def objects(url: StoreUrl, session_id: str) -> dict[str, bytes]:
    """What is there of a session, by its name below the session's folder; read without the product's code."""
    bucket = S3Store(url.bucket, prefix=url.prefix, client_options={"allow_http": True})
    folder = f"sessions/{session_stem(session_id)}"
    names = [meta["path"] for chunk in obstore.list(bucket, folder) for meta in chunk]
    return {name.removeprefix(f"{folder}/"): obstore.get(bucket, name).bytes().to_bytes() for name in names}


def journal(url: StoreUrl, session_id: str) -> list[dict[str, Any]]:
    found = sorted((name, data) for name, data in objects(url, session_id).items() if "/journal/" in name)
    return [json.loads(line)["payload"]["event"] for _, data in found for line in data.splitlines()]


def call(number: int) -> dict[str, object]:
    return {"kind": "tool_call", "call_id": f"c{number}", "tool": "search", "allowed": True}


def last_line(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command ends with, once it has exited with the code that is expected."""
    capsys.readouterr()
    exited = run(arguments)
    shown = capsys.readouterr()
    assert exited == code, shown.err or shown.out
    return (shown.out or shown.err).rstrip("\n").rpartition("\n")[2]


@pytest.mark.timeout(170)
async def test_a_signed_session_with_a_large_result_is_attested_bundled_and_audited(
    server: DevServer, url: StoreUrl, s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = await rig_on(server, tmp_path / "data", url)
    log = tmp_path / "worker.log"
    # As docker-compose.yml has them: two session workers without the seed, and the signer apart.
    session_env = environment(
        rig,
        server.address,
        **s3.environment,
        AFFIDAVIT_ROLES="session",
        AFFIDAVIT_SIGNING_SEED_FILE=None,
        AFFIDAVIT_PUBLIC_KEYS=None,
    )
    signer_env = environment(rig, server.address, **s3.environment, AFFIDAVIT_ROLES="signing")
    assert session_env["AFFIDAVIT_STORE"] == signer_env["AFFIDAVIT_STORE"] == str(url)
    async with (
        process(WORKERS, session_env, log),
        process(WORKERS, session_env, log),
        process(WORKERS, signer_env, log),
    ):
        session = await rig.open()
        await session.record(call(1), {"kind": "tool_result", "call_id": "c1", "content": "y" * LARGE})
        await session.record(call(2))
        outcome = await session.close()
    assert (outcome.status, outcome.steps, outcome.published) == ("closed", 3, True)
    expected = ["opened", "tool_call", "tool_result", "tool_call"]
    assert actions(journal(url, session.session_id)) == expected
    assert actions(rig.bus(session.session_id)) == [*expected, "receipt", "closed"]

    # The large payload lies there once, and neither in the history nor in the directory of the default.
    found = objects(url, session.session_id)
    large = [name for name, data in found.items() if name.startswith("payloads/") and len(data) > LARGE]
    assert len(large) == 1
    history = await rig.client.temporal.get_workflow_handle(session.session_id).fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 64_000
    assert not rig.data.evidence.exists()

    # As an auditor: from the store to a bundle, and from there without it.
    place, key = ("--store", str(url)), str(rig.settings.public_keys)
    made = tmp_path / "session.zip"
    last_line(capsys, "bundle", session.session_id, "-o", str(made), *place)
    assert last_line(capsys, "verify", str(made), "--key", key) == "receipt: VALID"
    with zipfile.ZipFile(made) as archive:
        assert any(len(archive.read(name)) > LARGE for name in archive.namelist() if "captures" in name)
    journal_key = str(rig.settings.journal_key_files[0])
    assert last_line(capsys, "audit", *place, "--journal-key", journal_key) == "audit: CLEAN"
    exported = tmp_path / "trajectory.json"
    last_line(capsys, "trajectory", "export", session.session_id, "-o", str(exported), *place)
    assert exported.stat().st_size > LARGE
    last_line(capsys, "receipt", session.session_id, "-o", str(tmp_path / "receipt.json"), *place)
    assert json.loads((tmp_path / "receipt.json").read_bytes()) == outcome.receipt

    # What is not there is said by every command in one line, and a store that is away is no finding.
    stem, generation = session_stem(session.session_id), outcome.generation
    obstore.delete(
        S3Store(url.bucket, prefix=url.prefix, client_options={"allow_http": True}),
        f"sessions/{stem}/{generation}/outcome.json",
    )
    assert last_line(capsys, "audit", *place, "--older-than", "0s", code=1) == "audit: 1 FINDING, MACs not checked"
    elsewhere = f"s3://{BUCKET}/nothing/here"
    gone = "store.id is gone from the evidence store"
    assert last_line(capsys, "audit", "--store", elsewhere, code=4) == f"error: {gone}"
    refused = "error: --store: a store's URL holds no credentials; they come from the store's own environment"
    assert last_line(capsys, "audit", "--store", f"s3://user:word@{BUCKET}/x", code=2) == refused

    # I1: the store's secret is nowhere in what was written.
    written = [log.read_bytes(), made.read_bytes(), *found.values(), *(e.SerializeToString() for e in history.events)]
    assert not [data for data in written if SECRET_KEY.encode() in data]


@pytest.mark.timeout(170)
async def test_e1_an_outage_of_the_object_store_stalls_and_never_poisons(
    server: DevServer, url: StoreUrl, s3: S3Server, tmp_path: Path
) -> None:
    rig = await rig_on(server, tmp_path / "data", url)
    store = ObjectStore(url, options=StoreOptions(timeout_s=5, allow_http=True))
    async with rig.worker(store=store):
        session = await rig.open()
        await session.submit(call(1))
        s3.kill()
        try:
            await session.record(call(2))
            view = await eventually(session.view, lambda view: view.stalled is not None, within=40)
            assert view.stalled is not None
            assert view.stalled.stage in ("journal", "publish")
            assert (view.state, view.poisoned) == ("open", None)
            await session.record(call(3))
        finally:
            s3.start()
        view = await eventually(session.view, lambda view: view.event_count == 4 and view.stalled is None, within=60)
        assert (view.poisoned, view.unprocessed) == (None, 0)
        outcome = await session.close()
    assert (outcome.status, outcome.steps, outcome.published) == ("closed", 3, True)
    expected = ["opened", "tool_call", "tool_call", "tool_call"]
    assert actions(journal(url, session.session_id)) == expected
    assert actions(rig.bus(session.session_id)) == [*expected, "receipt", "closed"]


@pytest.mark.timeout(110)
async def test_f8_an_unsigned_session_leaves_its_trajectory_there_and_is_promoted(
    server: DevServer, url: StoreUrl, tmp_path: Path
) -> None:
    rig = await rig_on(server, tmp_path / "data", url)
    async with rig.worker():
        session = await rig.open(mode="unsigned")
        await session.record({"kind": "model_request", "messages": [{"role": "user", "content": "hello"}]}, call(1))
        outcome = await session.close()
        receipt = await session.promote()
    stored = objects(url, session.session_id)[f"{outcome.generation}/trajectory.json"]
    digest = hashlib.sha256(stored).hexdigest()
    assert outcome.trajectory_digest == digest
    assert receipt["subject"] == {
        "kind": "atif_trajectory",
        "trajectory_digest": digest,
        "step_count": 2,
        "retroactive": True,
    }


@pytest.mark.timeout(110)
async def test_a_session_of_another_object_store_waits_for_its_own(
    server: DevServer, url: StoreUrl, tmp_path: Path
) -> None:
    """EvidenceStoreMismatch: a worker on another store writes nothing; the right one goes on."""
    rig = await rig_on(server, tmp_path / "data", url)
    other = fresh_url()
    async with rig.worker():
        session = await rig.open()
    async with rig.worker(store=open_store(other)):
        await session.record(call(1))
        handle = rig.client.temporal.get_workflow_handle(session.session_id)

        async def failures() -> list[str]:
            pending = (await handle.describe()).raw_description.pending_activities
            return [each.last_failure.application_failure_info.type for each in pending if each.attempt > 1]

        assert "EvidenceStoreMismatch" in await eventually(failures, bool, within=30)
    assert objects(other, session.session_id) == {}
    async with rig.worker():
        outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 1)
    assert actions(journal(url, session.session_id)) == ["opened", "tool_call"]


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "the evidence store does not answer: store.id"),
        (
            {"AWS_SECRET_ACCESS_KEY": "another-planted-secret"},
            "the evidence store refuses the credentials (403 SignatureDoesNotMatch): store.id",
        ),
    ],
    ids=["away", "refused"],
)
async def test_a_worker_that_cannot_reach_its_store_says_so_in_one_line(
    server: DevServer, url: StoreUrl, s3: S3Server, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    rig = await rig_on(server, tmp_path / "data", url)
    log = tmp_path / "worker.log"
    async with process(WORKERS, environment(rig, server.address, **{**s3.environment, **changes}), log) as worker:
        assert await worker.wait() == 4
    assert log.read_text() == f"error: {said}\n"
