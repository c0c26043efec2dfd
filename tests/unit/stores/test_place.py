"""What names an evidence store: a path or a URL, the same for workers, clients and commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from affidavit.stores.errors import StorePlaceError
from affidavit.stores.local import DirectoryStore
from affidavit.stores.place import StoreOptions, StoreUrl, open_store, place_of
from workers.settings import WorkerSettings


@pytest.mark.parametrize(
    ("text", "url", "shown"),
    [
        ("s3://bucket", StoreUrl("s3", "bucket", ""), "s3://bucket"),
        ("s3://bucket/", StoreUrl("s3", "bucket", ""), "s3://bucket"),
        ("gs://my.bucket/a/b", StoreUrl("gs", "my.bucket", "a/b"), "gs://my.bucket/a/b"),
        ("az://container/prefix/", StoreUrl("az", "container", "prefix"), "az://container/prefix"),
    ],
)
def test_a_url_is_read_and_shown(text: str, url: StoreUrl, shown: str) -> None:
    assert place_of(text) == url
    assert str(url) == shown


@pytest.mark.parametrize("text", ["evidence", "/var/lib/evidence", "s3:/bucket", "a:b", "C:/x"])
def test_everything_else_is_a_path(text: str) -> None:
    assert place_of(text) == Path(text)


PLANTED = "planted-secret"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            f"s3://user:{PLANTED}@bucket/x",
            "a store's URL holds no credentials; they come from the store's own environment",
        ),
        (f"s3://{PLANTED}@bucket", "a store's URL holds no credentials; they come from the store's own environment"),
        (f"az://c/x?sig={PLANTED}", "a store's URL holds no options; they come from the store's own environment"),
        (f"s3://bucket/x#{PLANTED}", "a store's URL holds no options; they come from the store's own environment"),
        (f"https://{PLANTED}/x", "an object store's URL starts with one of s3://, gs://, az://"),
        (f"S3://{PLANTED}/x", "an object store's URL starts with one of s3://, gs://, az://"),
        (f"file:///{PLANTED}", "an object store's URL starts with one of s3://, gs://, az://"),
        (f"s3:///{PLANTED}", "a store's URL names a bucket after its scheme"),
        (f"s3://_{PLANTED}/x", "a store's URL names a bucket after its scheme"),
        (f"s3://b/../{PLANTED}", "the segments of a store's prefix are letters, digits, '.', '_' and '-'"),
        (f"s3://b/a//{PLANTED}", "the segments of a store's prefix are letters, digits, '.', '_' and '-'"),
        (f"s3://b/{PLANTED} ", "the segments of a store's prefix are letters, digits, '.', '_' and '-'"),
        ("", "is set, but empty"),
    ],
)
def test_i1_any_other_url_is_refused_and_not_repeated(text: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorePlaceError) as caught:
        open_store(text)
    assert str(caught.value) == why
    from pydantic import ValidationError

    from workers.running import worded

    monkeypatch.setenv("AFFIDAVIT_STORE", text)
    with pytest.raises(ValidationError) as refused:
        WorkerSettings()
    assert worded(refused.value) == f"AFFIDAVIT_STORE: {why}"


def test_the_setting_takes_a_path_or_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFFIDAVIT_STORE", raising=False)
    assert WorkerSettings().store == Path(".affidavit/evidence")
    monkeypatch.setenv("AFFIDAVIT_STORE", "/mnt/evidence")
    assert WorkerSettings().store == Path("/mnt/evidence")
    monkeypatch.setenv("AFFIDAVIT_STORE", "s3://bucket/prefix")
    assert WorkerSettings().store == StoreUrl("s3", "bucket", "prefix")


def test_a_directory_stays_the_default(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path / "evidence")), DirectoryStore)
    assert isinstance(open_store(tmp_path / "evidence", create=False), DirectoryStore)


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    assert StoreOptions.from_environment({}) == StoreOptions(30.0, False, None)
    (tmp_path / "ca.pem").write_bytes(b"pem")
    environment = {
        "AFFIDAVIT_STORE_TIMEOUT_S": "2.5",
        "AFFIDAVIT_STORE_ALLOW_HTTP": "True",
        "AFFIDAVIT_STORE_CA_FILE": str(tmp_path / "ca.pem"),
    }
    assert StoreOptions.from_environment(environment) == StoreOptions(2.5, True, b"pem")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("AFFIDAVIT_STORE_TIMEOUT_S", "0", "AFFIDAVIT_STORE_TIMEOUT_S is a number of seconds, at most 600"),
        ("AFFIDAVIT_STORE_TIMEOUT_S", "nan", "AFFIDAVIT_STORE_TIMEOUT_S is a number of seconds, at most 600"),
        ("AFFIDAVIT_STORE_TIMEOUT_S", "soon", "AFFIDAVIT_STORE_TIMEOUT_S is a number of seconds, at most 600"),
        ("AFFIDAVIT_STORE_ALLOW_HTTP", "maybe", "AFFIDAVIT_STORE_ALLOW_HTTP is true or false"),
        (
            "AFFIDAVIT_STORE_CA_FILE",
            "/nowhere/ca.pem",
            "AFFIDAVIT_STORE_CA_FILE: the file cannot be read: No such file or directory",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(name: str, value: str, why: str) -> None:
    with pytest.raises(StorePlaceError) as caught:
        StoreOptions.from_environment({name: value})
    assert str(caught.value) == why


def test_without_the_extra_a_url_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "affidavit.stores.object", raising=False)
    monkeypatch.delitem(sys.modules, "affidavit.stores.faults", raising=False)
    with pytest.raises(StorePlaceError, match=r"^an object store needs the s3 extra \(affidavit\[s3\]\): no obstore$"):
        open_store("s3://bucket/prefix")
