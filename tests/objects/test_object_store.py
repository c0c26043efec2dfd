"""The object store on a real S3 server: created once whoever races, and every failure told by its name."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from affidavit.stores.base import EvidenceStore, ObjectExists, ObjectMissing
from affidavit.stores.errors import (
    EvidenceStoreMismatch,
    IntegrityError,
    StoreDenied,
    StorePlaceError,
    StoreUnavailable,
    StoreUnfit,
)
from affidavit.stores.object import ObjectStore
from affidavit.stores.place import StoreOptions, StoreUrl, open_store
from tests.support.racing import raced
from tests.support.s3server import ACCESS_KEY, BUCKET, PATIENT, SECRET_KEY, S3Server, fresh_url, hasty

ROOT = Path(__file__).parents[2]
NAME = "sessions/aa/bb/journal/000000000000.ndjson"


@pytest.fixture
def url(s3_environment: S3Server) -> StoreUrl:
    return fresh_url()


@pytest.fixture
def store(url: StoreUrl) -> ObjectStore:
    return ObjectStore(url, options=PATIENT)


def raw(url: StoreUrl) -> S3Store:
    """The bucket without the product's code."""
    return S3Store(
        url.bucket,
        prefix=url.prefix,
        client_options={"allow_http": True, "timeout": "90s"},
        retry_config={"max_retries": 0},
    )


@pytest.mark.timeout(180)
def test_the_server_gives_one_success_to_32_concurrent_create_only_puts(url: StoreUrl) -> None:
    """What all races rest on, asked of the server by the bare library, without retries."""
    stores = [raw(url) for _ in range(32)]
    ready = threading.Barrier(32)

    def put(number: int) -> str:
        ready.wait()
        try:
            obstore.put(stores[number], "raced", b"%d" % number, mode="create")
        except AlreadyExistsError:
            return "refused"
        return "created"

    with ThreadPoolExecutor(32) as pool:
        heard = list(pool.map(put, range(32)))
    assert Counter(heard) == {"created": 1, "refused": 31}
    assert obstore.get(stores[0], "raced").bytes().to_bytes() == b"%d" % heard.index("created")


@pytest.mark.timeout(120)
def test_two_writers_of_one_segment_one_creates_it_and_equal_bytes_succeed(
    open_one: Callable[[], EvidenceStore],
) -> None:
    stores = [open_one(), open_one()]
    for number in range(5):
        name = f"sessions/aa/bb/journal/{number:012d}.ndjson"
        assert raced(2, lambda writer, name=name: stores[writer].create(name, b"segment\n")) == {
            "created": 1,
            "found": 1,
        }
        assert stores[0].read(name) == b"segment\n"


@pytest.mark.timeout(120)
def test_two_writers_of_one_segment_different_bytes_are_an_integrity_error(
    open_one: Callable[[], EvidenceStore],
) -> None:
    stores = [open_one(), open_one()]
    for number in range(5):
        name = f"sessions/aa/bb/journal/{number:012d}.ndjson"
        assert raced(2, lambda writer, name=name: stores[writer].create(name, b"%d\n" % writer)) == {
            "created": 1,
            "refused": 1,
        }
        assert stores[0].read(name) in (b"0\n", b"1\n")
    assert issubclass(ObjectExists, IntegrityError)


@pytest.mark.timeout(120)
def test_openers_race_for_the_store_id(url: StoreUrl) -> None:
    ready = threading.Barrier(4)

    def opened(_: int) -> str:
        ready.wait()
        return ObjectStore(url, options=PATIENT).store_id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(opened, range(4)))) == 1
    assert ObjectStore(url, options=PATIENT).list("") == ["store.id"]


def test_an_object_is_created_once_and_read_back(store: ObjectStore, url: StoreUrl) -> None:
    assert store.create(NAME, b"one\n") is True
    assert store.create(NAME, b"one\n") is False
    with pytest.raises(ObjectExists, match=r"^000000000000\.ndjson exists with other content$"):
        store.create(NAME, b"two\n")
    for longer_or_shorter in (b"one\none\n", b"", b"one"):
        with pytest.raises(ObjectExists):
            store.create(NAME, longer_or_shorter)
    assert store.read(NAME) == b"one\n"
    assert obstore.get(raw(url), NAME).bytes().to_bytes() == b"one\n"
    assert store.create("empty", b"") is True
    assert store.create("empty", b"") is False
    assert store.read("empty") == b""


def test_what_is_not_there_is_missing(store: ObjectStore) -> None:
    for name in (NAME, "nothing"):
        with pytest.raises(ObjectMissing):
            store.read(name)
    with pytest.raises(ObjectMissing):
        list(store.chunks(NAME))
    assert store.size(NAME) is None
    assert store.list("sessions/aa") == store.folders("sessions") == store.entries("sessions") == []


def test_listing_is_sorted_and_by_whole_segments(store: ObjectStore, url: StoreUrl) -> None:
    for name in ("s/b/2", "s/b/1", "s/b-c/1", "s/b.d", "s/a/x/y"):
        store.create(name, b"")
    for foreign in (".tmp/left-over", "s/b/.hidden", "s/b/not a name", "s/.h/x"):
        obstore.put(raw(url), foreign, b"half")
    assert store.list("s/b") == store.list("s/b/") == ["s/b/1", "s/b/2"]
    assert store.list("") == ["s/a/x/y", "s/b-c/1", "s/b.d", "s/b/1", "s/b/2", "store.id"]
    assert store.everything("s/b") == ["s/b/1", "s/b/2", "s/b/not a name"]
    assert store.folders("s") == store.folders("s/") == ["s/a", "s/b", "s/b-c"]
    assert store.folders("") == ["s"]
    assert store.entries("s") == [("a", True), ("b", True), ("b-c", True), ("b.d", False)]
    for prefix in ("../s", "/s", "s//b"):
        with pytest.raises(ValueError, match="not a name for an object"):
            store.list(prefix)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a b", "ä", "a\n", "x" * 256])
def test_other_names_are_refused(store: ObjectStore, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.create(name, b""),
        lambda: store.create_from_file(name, io.BytesIO()),
        lambda: store.read(name),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not a name for an object"):
            call()


@pytest.mark.parametrize("size", [0, 1000, 12 * 1024 * 1024 + 7])
def test_an_object_is_created_from_a_file(store: ObjectStore, url: StoreUrl, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    source = tmp_path / "source"
    source.write_bytes(data)
    assert store.create_from_file(NAME, source) is True
    assert store.create_from_file(NAME, source) is False
    assert store.create(NAME, data) is False
    with source.open("rb") as file:
        file.seek(99)  # it is read from its start, wherever it stands, and left open
        assert store.create_from_file("other", file) is True
        assert not file.closed
    assert store.read(NAME) == store.read("other") == data
    for changed in (data + b"x", data[:-1] + b"xy", b"other"):
        source.write_bytes(changed)
        with pytest.raises(ObjectExists):
            store.create_from_file(NAME, source)
    assert store.read(NAME) == data
    left = [meta["path"] for chunk in obstore.list(raw(url)) for meta in chunk]
    assert sorted(left) == ["other", NAME, "store.id"]  # nothing in parts


def test_what_a_file_object_has_buffered_is_sent_too(store: ObjectStore) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"buffered")
        assert store.create_from_file("made", file) is True
    assert store.read("made") == b"buffered"


def test_a_file_is_not_read_into_memory(store: ObjectStore, url: StoreUrl, tmp_path: Path) -> None:
    """Mapped pages are the file's own; what counts is memory that nothing but the process backs."""
    script = """
import sys, threading
from pathlib import Path
from affidavit.stores.object import ObjectStore
from affidavit.stores.place import StoreOptions, StoreUrl
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
store = ObjectStore(StoreUrl.parse(sys.argv[1]), options=StoreOptions(timeout_s=90, allow_http=True))
store.create("small", b"warm")
before, peak, done = anonymous(), [0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
assert store.create_from_file("big", Path(sys.argv[2])) and not store.create_from_file("big", Path(sys.argv[2]))
done.set()
watcher.join()
print(peak[0] - before)
"""
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", script, str(url), str(source)], env=environment, capture_output=True, timeout=80
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 24 * 1024  # KiB


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("same", "second"), [(True, "found"), (False, "refused")])
def test_two_writers_of_a_large_file_race_too(
    url: StoreUrl, monkeypatch: pytest.MonkeyPatch, same: bool, second: str
) -> None:
    # Both must have seen that the name is free before either takes it.
    both, first = threading.Barrier(2), threading.local()
    size = ObjectStore.size

    def seen(store: ObjectStore, name: str) -> int | None:
        found = size(store, name)
        if not hasattr(first, "passed"):
            first.passed = True
            both.wait(30)
        return found

    stores = [ObjectStore(url, options=PATIENT) for _ in range(2)]
    monkeypatch.setattr(ObjectStore, "size", seen)
    data = [b"x" * 6_000_000, b"x" * 6_000_000 if same else b"y" * 6_000_000]
    heard = raced(2, lambda writer: stores[writer].create_from_file("large", io.BytesIO(data[writer])))
    assert heard == {"created": 1, second: 1}
    assert stores[0].read("large") in data


def test_the_store_id_is_made_once(url: StoreUrl) -> None:
    first, other = ObjectStore(url, options=PATIENT), ObjectStore(fresh_url(), options=PATIENT)
    assert first.store_id == ObjectStore(url, options=PATIENT).store_id != other.store_id
    assert uuid.UUID(first.store_id).version == 4


def test_a_store_that_must_exist_is_not_made(url: StoreUrl) -> None:
    with pytest.raises(EvidenceStoreMismatch, match=r"^store\.id is gone from the evidence store$"):
        ObjectStore(url, options=PATIENT, create=False)
    made = ObjectStore(url, options=PATIENT)
    assert ObjectStore(url, options=PATIENT, create=False).store_id == made.store_id


def test_a_store_that_was_swapped_or_damaged_is_noticed(store: ObjectStore, url: StoreUrl) -> None:
    obstore.put(raw(url), "store.id", b"00000000-0000-4000-8000-000000000000\n")
    assert store.store_id == "00000000-0000-4000-8000-000000000000"
    obstore.put(raw(url), "store.id", b"no uuid")
    with pytest.raises(IntegrityError, match=r"^store\.id is not a store id$"):
        _ = store.store_id
    obstore.delete(raw(url), "store.id")
    with pytest.raises(EvidenceStoreMismatch, match=r"^store\.id is gone from the evidence store$"):
        _ = store.store_id


def test_a_server_that_ignores_the_condition_is_refused(url: StoreUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put

    def heedless(store: S3Store, name: str, data: bytes, **_: object) -> object:
        return put(store, name, data)

    monkeypatch.setattr(obstore, "put", heedless)
    with pytest.raises(StoreUnfit, match="does not honour If-None-Match"):
        ObjectStore(url, options=PATIENT)


def test_a_bucket_that_is_not_there_is_no_missing_object(s3_environment: S3Server) -> None:
    with pytest.raises(EvidenceStoreMismatch, match=r"^the evidence store's bucket is not there$"):
        ObjectStore(StoreUrl("s3", "no-such-bucket", "x"), options=PATIENT)
    with pytest.raises(EvidenceStoreMismatch, match=r"^the evidence store's bucket is not there$"):
        ObjectStore(StoreUrl("s3", "no-such-bucket", "x"), options=PATIENT, create=False)


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("AWS_SECRET_ACCESS_KEY", "another-planted-secret", "403 SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "AKIDNOBODY", "403 InvalidAccessKeyId"),
    ],
)
def test_i1_wrong_credentials_are_told_and_not_repeated(
    url: StoreUrl, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StoreDenied) as caught:
        ObjectStore(url, options=PATIENT)
    assert str(caught.value) == f"the evidence store refuses the credentials ({code}): store.id"
    assert caught.value.__cause__ is None
    for secret in (value, ACCESS_KEY, SECRET_KEY, BUCKET, url.prefix):
        assert secret not in str(caught.value)


def test_i5_errors_show_base_names_only(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable) as caught:
        ObjectStore(fresh_url(), options=StoreOptions(timeout_s=2, allow_http=True))
    assert str(caught.value) == "the evidence store does not answer: store.id"


def test_a_server_that_hangs_is_given_up(
    store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch, listening: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", listening)
    with pytest.raises(StoreUnavailable, match=r"^the evidence store does not answer: store\.id$"):
        ObjectStore(url, options=StoreOptions(timeout_s=0.3, allow_http=True))


@pytest.fixture
def listening() -> Iterator[str]:
    """An endpoint that takes connections and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_endpoint_without_tls_has_to_be_allowed(url: StoreUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFFIDAVIT_STORE_ALLOW_HTTP")
    with pytest.raises(StorePlaceError, match=r"^the store's endpoint is not https; AFFIDAVIT_STORE_ALLOW_HTTP=true"):
        open_store(str(url))
    monkeypatch.setenv("AFFIDAVIT_STORE_ALLOW_HTTP", "true")
    assert open_store(str(url)).list("") == ["store.id"]


def test_an_outage_is_transient_and_what_was_written_stays(
    store: ObjectStore, url: StoreUrl, s3_environment: S3Server
) -> None:
    brief = hasty(url, 0.3)
    store.create(NAME, b"evidence\n")
    calls: list[Callable[[], object]] = [
        lambda: brief.create(NAME, b"evidence\n"),
        lambda: brief.read(NAME),
        lambda: brief.list("sessions"),
        lambda: brief.folders("sessions"),
        lambda: brief.store_id,
    ]
    with s3_environment.hung():
        for call in calls:
            with pytest.raises(StoreUnavailable, match="does not answer"):
                call()
    # What was given up may have arrived all the same; it is the same bytes.
    assert raced(1, lambda _: store.create(NAME, b"evidence\n")) == {"found": 1}
    assert store.read(NAME) == b"evidence\n"
