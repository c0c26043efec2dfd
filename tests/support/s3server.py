"""A real S3 server on loopback: SeaweedFS, as a Python package ships it. It keeps its data over a restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from affidavit.stores.errors import StoreUnavailable
from affidavit.stores.object import ObjectStore
from affidavit.stores.place import StoreOptions, StoreUrl
from tests.support.ports import free_ports
from workers.devserver import LOOPBACK, _die_with_parent

ACCESS_KEY = "AKIDEVIDENCETESTS"
SECRET_KEY = "planted-secret-of-the-object-store"
READER_KEY = "AKIDEVIDENCEREADER"
"""Of an auditor, who may read and list alone; the secret is the same."""
BUCKET = "tests-bucket"
START_LIMIT_S = 60.0

_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")


PATIENT = StoreOptions(timeout_s=60, allow_http=True)
"""The server makes racers for one name wait for each other, for seconds where there are 32."""


def fresh_url() -> StoreUrl:
    """A place that nobody has used."""
    return StoreUrl("s3", BUCKET, f"tests/{uuid.uuid4().hex}")


def hasty(url: StoreUrl, timeout_s: float) -> ObjectStore:
    """A store that is there, with a short limit for what it is asked later; the server may be too slow for it now."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            return ObjectStore(url, options=StoreOptions(timeout_s=timeout_s, allow_http=True), create=False)
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise


def find_weed() -> str | None:
    """The server's binary, where the package is installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.is_file() else shutil.which("weed")


@dataclass
class S3Server:
    """One server process on one data folder; `stop` and `start` make an outage that loses nothing."""

    root: Path
    ports: dict[str, int] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.ports['s3.port']}"

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process of the product to use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AFFIDAVIT_STORE_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        weed = find_weed()
        assert weed is not None
        if not self.ports:
            self.ports = dict(zip((*_PORTS, "s3.port", "s3.port.grpc"), free_ports(8), strict=True))
        (self.root / "data").mkdir(parents=True, exist_ok=True)
        rights = {ACCESS_KEY: ["Admin", "Read", "Write", "List"], READER_KEY: ["Read", "List"]}
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET_KEY}], "actions": actions}
            for key, actions in rights.items()
        ]
        (self.root / "s3.json").write_text(json.dumps({"identities": identities}))
        with (self.root / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    weed,
                    "server",
                    f"-dir={self.root / 'data'}",
                    f"-ip={LOOPBACK}",
                    f"-ip.bind={LOOPBACK}",
                    "-filer",
                    "-s3",
                    f"-s3.config={self.root / 's3.json'}",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-s3.autoCreateBucket=false",
                    "-master.volumeSizeLimitMB=64",
                    "-master.telemetry=false",
                    "-volume.max=20",
                    *(f"-{name}={port}" for name, port in self.ports.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
                preexec_fn=_die_with_parent,
            )
        self._await_s3()

    def kill(self) -> None:
        """End it without a goodbye."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def hung(self) -> Iterator[None]:
        """For the length of a block it takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def make_bucket(self, name: str = BUCKET) -> None:
        """Through the filer's own interface: a bucket is a folder there, and needs no signature."""
        request = urllib.request.Request(f"http://{LOOPBACK}:{self.ports['filer.port']}/buckets/{name}/", method="POST")
        with urllib.request.urlopen(request, timeout=10):
            pass

    def _await_s3(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/status", timeout=2):
                    return
            except urllib.error.HTTPError:
                return  # it answers
            except OSError:
                time.sleep(0.05)
        log = (self.root / "server.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"the S3 server did not start: {log}")


@contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    """A running server with the bucket; killed at the end."""
    server = S3Server(root)
    try:
        server.start()
        server.make_bucket()
        yield server
    finally:
        server.kill()
