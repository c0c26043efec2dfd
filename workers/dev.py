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
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from affidavit.codec_keys import codec_from_environment
from affidavit.converter import data_converter
from affidavit.errors import AffidavitError
from affidavit.evidence.keys import JOURNAL_KEY_FILE, PUBLIC_FILE, SEED_FILE, generate, write_public_keys
from affidavit.exiting import leave
from affidavit.registering import register
from affidavit.stores.place import open_store
from workers.devserver import DevServer, DevServerError, check_free, find_server
from workers.logs import configure
from workers.running import CONFIGURATION_ERRORS, run_until, stop_on_signals, worded
from workers.settings import WorkerSettings
from workers.worker import build_worker


class DataDirError(Exception):
    """The data folder cannot be used; one line."""


class DataDirInUse(DataDirError):
    """Another process holds it."""


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
                raise DataDirInUse(f"data folder {self.root.name} is in use by another process") from None
            yield

    def settings(self) -> WorkerSettings:
        """Settings of the embedded worker, whatever secrets and roles the environment names for another one.

        Keys are made on first use; public keys that are gone are made again from the seed.
        """
        seed, journal_key, public = (self.keys / name for name in (SEED_FILE, JOURNAL_KEY_FILE, PUBLIC_FILE))
        if not seed.exists() and not journal_key.exists():
            generate(self.keys)
        elif not public.exists():
            write_public_keys(seed, public)
        return WorkerSettings(
            roles=("session", "signing"),
            store=self.evidence,
            bus=self.bus,
            kafka=None,
            journal_key=None,
            journal_key_files=(journal_key,),
            signing_seed=None,
            signing_seed_file=seed,
            public_keys=public,
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
        # What may fail comes before anything is made.
        find_server()
        for each in (port, ui_port):
            if each is not None:
                check_free(each)
        settings = data.settings()
        codec = codec_from_environment()  # clients share these keys, so they are no secrets of another worker
        server = await DevServer.start(
            log=data.root / "server.log", database=data.root / "temporal.db", port=port, ui_port=ui_port
        )
        try:
            store = open_store(data.evidence)
            converter = data_converter(store, codec)
            temporal = await Client.connect(server.address, namespace=server.namespace, data_converter=converter)
            await register(temporal)
            workers = build_worker(temporal, settings, store=store)
            ready = {
                "address": server.address,
                "namespace": server.namespace,
                "task_queue": settings.task_queue,
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
    """Exit code 0 after a signal, 1 with a JSON line `{"error": …, "unusable": …}` if it could not start.

    `unusable` is true where keys, settings or the data folder have to be mended first.
    """
    parser = argparse.ArgumentParser(prog="python -m workers.dev", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--ui-port", type=int)
    arguments = parser.parse_args()
    data = DataDir(arguments.data_dir.resolve())
    try:
        with contextlib.suppress(FileNotFoundError):
            configure("human", file=data.root / "worker.log")
        asyncio.run(run(data, port=arguments.port, ui_port=arguments.ui_port))
    except (DevServerError, DataDirInUse, AffidavitError) as error:
        print(json.dumps({"error": str(error), "unusable": False}), flush=True)
        return 1
    except (DataDirError, *CONFIGURATION_ERRORS, OSError) as error:
        print(json.dumps({"error": worded(error), "unusable": True}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    leave(main())
