"""The embedded mode: a dev server with its Web UI, a worker, a directory store and a SQLite bus, as one process group.

`python -m workers.dev --data-dir DIR` prints one JSON line once everything runs, and stops on SIGTERM, SIGINT, or
when the pipe at its standard input closes, so that it ends with whoever started it. Data is kept in DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from affidavit.client import SessionClient
from affidavit.evidence.keys import generate
from workers.__main__ import CONFIGURATION_ERRORS, run_until, stop_on_signals
from workers.devserver import DevServer, DevServerError
from workers.settings import WorkerSettings
from workers.worker import build_worker


class DataDirError(Exception):
    """The data folder cannot be used; one line."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """Where the embedded mode keeps everything."""

    root: Path

    @property
    def keys(self) -> Path:
        """Folder with signing.seed, journal.key and public.json."""
        return self.root / "keys"

    @property
    def evidence(self) -> Path:
        """Root of the evidence store."""
        return self.root / "evidence"

    @property
    def bus(self) -> Path:
        """The embedded event log."""
        return self.root / "bus.sqlite"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others out: two servers on one database would break it.

        Raises:
            DataDirError: another process holds it, or it cannot be made.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.root / "lock").open("w")
        except OSError as error:
            raise DataDirError(f"data folder {self.root.name} cannot be used: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DataDirError(f"data folder {self.root.name} is in use by another process") from None
            yield

    def settings(self) -> WorkerSettings:
        """Settings of the embedded worker; keys are made on first use."""
        if not self.keys.exists():
            generate(self.keys)
        return WorkerSettings(
            store=self.evidence,
            bus=self.bus,
            journal_key_files=(self.keys / "journal.key",),
            signing_seed_file=self.keys / "signing.seed",
            public_keys=self.keys / "public.json",
        )


async def _closed(stop: asyncio.Event) -> None:
    """Set `stop` when the pipe at standard input closes; a terminal or a file is left alone."""
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass
    stop.set()


async def run(data: DataDir, *, port: int | None, ui_port: int | None) -> None:
    """Run the embedded mode until it is told to stop.

    Raises:
        DevServerError, DataDirError, KeyFileError, …: one line each.
    """
    stop = stop_on_signals()
    watcher = asyncio.create_task(_closed(stop))
    with data.held():
        settings = data.settings()
        server = await DevServer.start(
            log=data.root / "server.log", database=data.root / "temporal.db", port=port, ui_port=ui_port
        )
        try:
            client = await SessionClient.connect(address=server.address, namespace=server.namespace)
            workers = build_worker(client.temporal, settings)
            ready = {
                "address": server.address,
                "namespace": server.namespace,
                "ui": server.ui,
                "data_dir": str(data.root),
                "keys_dir": str(data.keys),
                "store": str(data.evidence),
                "bus": str(data.bus),
            }
            await run_until(stop, workers, settings.grace_s, started=lambda: print(json.dumps(ready), flush=True))
        finally:
            watcher.cancel()
            await server.stop()


def main() -> int:
    """Exit code 0 after a signal, 1 with a JSON line `{"error": …}` if it could not start."""
    parser = argparse.ArgumentParser(prog="python -m workers.dev", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--ui-port", type=int)
    arguments = parser.parse_args()
    data = DataDir(arguments.data_dir.resolve())
    try:
        with contextlib.suppress(FileNotFoundError):
            logging.basicConfig(filename=data.root / "worker.log", level=logging.INFO)
        asyncio.run(run(data, port=arguments.port, ui_port=arguments.ui_port))
    except (DevServerError, DataDirError, *CONFIGURATION_ERRORS) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
