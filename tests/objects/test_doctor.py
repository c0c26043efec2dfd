"""`affidavit doctor` on an object store: in order, out of order, and nothing left behind."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from affidavit.doctor import local
from affidavit.doctor.places import Places
from affidavit.doctor.report import Verdict, blocking, examine
from affidavit.doctor.sessions import SessionChecks
from affidavit.stores.object import ObjectStore
from affidavit.stores.place import StoreUrl
from tests.e2e.test_operating import COMMAND, ran
from tests.objects.test_session import rig_on
from tests.support.processes import environment
from tests.support.rig import AGENT
from tests.support.s3server import PATIENT, READER_KEY, SECRET_KEY, S3Server, fresh_url
from workers.devserver import DevServer


@pytest.fixture
def url(s3_environment: S3Server) -> StoreUrl:
    return fresh_url()


@pytest.fixture
def store(url: StoreUrl) -> ObjectStore:
    return ObjectStore(url, options=PATIENT)


def looked_at(url: StoreUrl | str) -> Verdict:
    return local.store(Places.told({"AFFIDAVIT_STORE": str(url)}, Path("none")))


def names(url: StoreUrl) -> list[str]:
    """All that is there, hidden names too."""
    bucket = S3Store(url.bucket, prefix=url.prefix, client_options={"allow_http": True})
    return sorted(meta["path"] for chunk in obstore.list(bucket) for meta in chunk)


def test_a_store_in_order_is_named_by_its_id_and_left_as_it_was(store: ObjectStore, url: StoreUrl) -> None:
    verdict = looked_at(url)
    assert (verdict.status, verdict.what) == (
        "ok",
        f"{url} takes puts and overwrites nothing, id {store.store_id}; how much room it has, it does not tell",
    )
    assert names(url) == ["store.id"]


def test_a_place_that_is_no_store_is_not_made_one(url: StoreUrl) -> None:
    verdict = looked_at(url)
    assert (verdict.status, verdict.what) == ("failed", "store.id is gone from the evidence store")
    assert names(url) == []
    assert looked_at("s3://no-such-bucket/x").what == "the evidence store's bucket is not there"


def test_credentials_that_only_read_fail(store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    assert ObjectStore(url, options=PATIENT, create=False).store_id == store.store_id
    verdict = looked_at(url)
    assert (verdict.status, verdict.what, verdict.do) == (
        "failed",
        "the evidence store refuses the credentials (403 AccessDenied): store.id",
        "a worker needs the rights to read, list and put",
    )


def test_i1_wrong_credentials_fail_and_are_not_told(
    store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-planted-secret")
    verdict = looked_at(url)
    assert verdict.status == "failed"
    assert "403 SignatureDoesNotMatch" in verdict.what
    assert "planted" not in repr(verdict)


def test_a_store_that_overwrites_fails(store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put

    def heedless(bucket: S3Store, name: str, data: bytes, **_: object) -> object:
        return put(bucket, name, data)

    before = store.store_id
    monkeypatch.setattr(obstore, "put", heedless)
    verdict = looked_at(url)
    assert verdict.status == "failed"
    assert "does not honour If-None-Match" in verdict.what
    assert store.store_id == before


@pytest.mark.timeout(120)
async def test_a_store_that_hangs_is_given_up(store: ObjectStore, url: StoreUrl, s3_environment: S3Server) -> None:
    with s3_environment.hung():
        (finding,) = await examine({"evidence store": blocking(lambda: looked_at(url))}, limit_s=40)
    assert (finding.status, finding.what) == ("failed", "the evidence store does not answer: store.id")


@pytest.mark.timeout(150)
async def test_the_command_compares_the_store_with_the_sessions_and_tells_no_secret(
    store: ObjectStore, url: StoreUrl, s3: S3Server, server: DevServer, tmp_path: Path
) -> None:
    rig = await rig_on(server, tmp_path / "data", url)
    async with rig.worker(store=store):
        session = await rig.client.open({"agent": AGENT}, session_id=f"here-{uuid.uuid4()}")
        await session.close()
    env = environment(rig, server.address, **s3.environment)
    _, output, errors = await ran((*COMMAND, "doctor", "--json"), env, tmp_path / "log")
    found = {each["check"]: (each["status"], each["what"]) for each in json.loads(output)["checks"]}
    assert found["evidence store"][0] == "ok"
    assert found["store of sessions"] == ("ok", f"session {session.session_id} was opened in this one")
    assert SECRET_KEY not in output + errors
    # Another store is found out; one that cannot be read says nothing of the sessions.
    other = fresh_url()
    ObjectStore(other, options=PATIENT)
    checks = SessionChecks(rig.client)
    places = [Places.told({"AFFIDAVIT_STORE": str(each)}, tmp_path) for each in (other, fresh_url())]
    assert (await checks.same_store(places[0])).status == "failed"
    verdict = await checks.same_store(places[1])
    assert (verdict.status, verdict.what) == ("not checked", "this machine's evidence store cannot be read")
