"""Erasing objects, in a directory and in an object store: once, and nothing but evidence (P19, I7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from affidavit.stores.base import ErasableStore, ObjectMissing
from affidavit.stores.errors import StoreUnavailable
from affidavit.stores.object import ObjectStore
from tests.support.s3server import PATIENT, S3Server, fresh_url, hasty

NAME = "sessions/aa/bb/captures/000000000000.ndjson"
BESIDE = "sessions/aa/bb/metadata.json"


@pytest.fixture
def store(open_one: Callable[[], ErasableStore]) -> ErasableStore:
    made = open_one()
    made.create(NAME, b"secret\n")
    made.create(BESIDE, b"{}")
    return made


def test_p19_an_object_is_erased_once_and_its_name_is_free_again(
    store: ErasableStore, open_one: Callable[[], ErasableStore]
) -> None:
    assert (store.delete(NAME), store.delete(NAME)) == (True, False)
    assert open_one().list("") == [BESIDE, "store.id"]
    with pytest.raises(ObjectMissing):
        store.read(NAME)
    assert store.create(NAME, b"another\n") is True
    assert store.read(NAME) == b"another\n"


@pytest.mark.parametrize(
    "name",
    [
        "store.id",
        "public.json",
        "sessions",
        "/etc/passwd",
        "../outside",
        "sessions/../store.id",
        "sessions/./x",
        "sessions//x",
        "sessions/.tmp-1",
        "sessions/",
        "other/x",
        "",
    ],
)
def test_p19_only_evidence_is_erased(store: ErasableStore, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_text("mine")
    with pytest.raises(ValueError, match="not"):
        store.delete(name)
    assert (tmp_path / "outside").read_text() == "mine"
    assert store.list("") == [NAME, BESIDE, "store.id"]


def test_p19_a_prefix_is_no_object_and_takes_nothing_with_it(s3_environment: S3Server) -> None:
    """Nor is a store beside this one in the bucket reached."""
    url = fresh_url()
    store = ObjectStore(url, options=PATIENT)
    store.create(NAME, b"secret\n")
    bucket = S3Store(url.bucket, client_options={"allow_http": True})
    obstore.put(bucket, NAME, b"of another store")
    for name in ("sessions/aa", "sessions/aa/bb", "sessions/aa/bb/captures", "sessions/aa/bb/cap"):
        assert store.delete(name) is False
    assert store.delete(NAME) is True
    assert obstore.get(bucket, NAME).bytes().to_bytes() == b"of another store"


def test_p19_two_that_erase_one_object_both_succeed(s3_environment: S3Server) -> None:
    url = fresh_url()
    stores = [ObjectStore(url, options=PATIENT) for _ in range(2)]
    stores[0].create(NAME, b"secret\n")
    ready = threading.Barrier(2)

    def erase(store: ObjectStore) -> bool:
        ready.wait()
        return store.delete(NAME)

    with ThreadPoolExecutor(2) as pool:
        assert True in list(pool.map(erase, stores))
    assert stores[0].list("sessions") == []


@pytest.mark.timeout(120)
def test_e1_what_cannot_be_erased_now_is_told_and_stays(s3_environment: S3Server) -> None:
    url = fresh_url()
    ObjectStore(url, options=PATIENT).create(NAME, b"secret\n")
    store = hasty(url, 1)
    with s3_environment.hung(), pytest.raises(StoreUnavailable):
        store.delete(NAME)
    assert ObjectStore(url, options=PATIENT).read(NAME) == b"secret\n"
