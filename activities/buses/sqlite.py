"""The embedded event bus: one SQLite file that workers of one machine share."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import orjson

from activities.buses.base import Ack, BusRecord
from activities.errors import IntegrityError, PermanentPublishError, TransientError
from affidavit.buslog import SCHEMA, BusLogError, explained, is_event_log, primary_code
from affidavit.evidence.durable import sync_directory

PARTITION = 0
"""An embedded topic has one partition."""

_FIND = """
SELECT topic, partition, "offset", key, session, generation, time_ms, value FROM records WHERE uid = ?
"""
_NEXT = 'SELECT coalesce(max("offset"), -1) + 1 FROM records WHERE topic = ? AND partition = ?'
_APPEND = """
INSERT INTO records (topic, partition, "offset", key, uid, session, generation, time_ms, headers, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid) DO NOTHING
"""

_Write = Callable[[sqlite3.Connection, Sequence[BusRecord]], list[Ack]]


class _NotAllNew(Exception):
    """Some records are in the log already."""


class SqliteBus:
    """An `EventBus` in a SQLite file (0600), which `affidavit.buslog` describes and reads.

    A call of `publish` is one transaction that is on the disk when it returns: all its records or none. A uid
    is unique in the file, so `look_up` has nothing to add.

    Only a bus that is made makes a log. One whose file is gone or replaced later publishes nothing: a new log would
    lack what was acknowledged before, and nobody would be told.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0) -> None:
        """Opens the log, and makes it if it is not there.

        Args:
            path: The file; its directory is made if missing.
            busy_timeout_s: How long to wait, in seconds, while another process writes.

        Raises:
            BusLogError: The file is no event log, is damaged, or cannot be opened.
        """
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        # One thread owns the connection: writes queue up here and block no thread that others need.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite-bus")
        try:
            self._thread.submit(self._connected).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        """See `EventBus.publish`."""
        try:
            work = self._thread.submit(self._publish, records)
        except RuntimeError:
            raise TransientError("the event bus is closed") from None
        # A cancelled caller leaves the transaction to finish or fail on its own: a repeat finds the uids.
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """See `EventBus.close`."""
        with suppress(RuntimeError):
            await asyncio.wrap_future(self._thread.submit(self._disconnect))
        self._thread.shutdown(wait=False)

    def _publish(self, records: Sequence[BusRecord]) -> list[Ack]:
        try:
            connection = self._connected()
            try:
                return self._committed(connection, _append, records)
            except _NotAllNew:  # a repeat
                return self._committed(connection, _append_or_find, records)
        except (sqlite3.DataError, OverflowError):
            raise PermanentPublishError("a record is too large for the event log") from None
        except sqlite3.Error as error:
            # Afresh next time. Retryable: the records are safe in the journal, a damaged file is the operator's to
            # mend, and no session has to be poisoned for a broken copy.
            self._disconnect()
            raise TransientError(str(explained(self._path, error))) from error
        except BusLogError as error:
            raise TransientError(str(error)) from error

    def _committed(self, connection: sqlite3.Connection, write: _Write, records: Sequence[BusRecord]) -> list[Ack]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            acks = write(connection, records)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._check_file()  # or the records are in a file that nobody can read
        return acks

    def _connected(self) -> sqlite3.Connection:
        self._check_file()
        if self._connection is None:
            try:
                self._connection = _open(self._path, self._busy_timeout_s, make=self._file is None)
                self._file = self._file or _identity(self._path)
            except sqlite3.Error as error:
                raise explained(self._path, error) from error
            except OSError as error:
                raise BusLogError(f"{self._path.name} cannot be opened: {error.strerror}") from error
        return self._connection

    def _check_file(self) -> None:
        # The connection stays open: as long as it does, no other file can be taken for this one.
        if self._file is not None and self._file != _identity(self._path):
            raise BusLogError(
                f"{self._path.name} is gone or was replaced; put it back, or restart the worker to begin anew"
            )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def _append(connection: sqlite3.Connection, records: Sequence[BusRecord]) -> list[Ack]:
    """Append records of which none is there yet: nearly always, and for all of them together half as dear.

    Raises:
        _NotAllNew: One is there. The transaction is to be rolled back.
    """
    offsets = {topic: _next_offset(connection, topic) for topic in {record.topic for record in records}}
    acks = []
    for record in records:
        acks.append(Ack(record.topic, PARTITION, offsets[record.topic]))
        offsets[record.topic] += 1
    rows = [_row(record, ack.offset) for record, ack in zip(records, acks, strict=True)]
    if rows and connection.executemany(_APPEND, rows).rowcount != len(rows):
        raise _NotAllNew
    return acks


def _append_or_find(connection: sqlite3.Connection, records: Sequence[BusRecord]) -> list[Ack]:
    return [_append_one_or_find(connection, record) for record in records]


def _append_one_or_find(connection: sqlite3.Connection, record: BusRecord) -> Ack:
    offset = _next_offset(connection, record.topic)
    if connection.execute(_APPEND, _row(record, offset)).rowcount:
        return Ack(record.topic, PARTITION, offset)
    topic, partition, offset, *found = connection.execute(_FIND, (record.uid,)).fetchone()
    if (topic, *found) != (
        record.topic,
        record.key,
        record.session_id,
        record.generation,
        record.time_ms,
        record.value,
    ):
        raise IntegrityError("the event bus holds another record under the uid of this one")
    return Ack(topic, partition, offset)


def _next_offset(connection: sqlite3.Connection, topic: str) -> int:
    (offset,) = connection.execute(_NEXT, (topic, PARTITION)).fetchone()
    return int(offset)


def _row(record: BusRecord, offset: int) -> tuple[object, ...]:
    return (
        record.topic,
        PARTITION,
        offset,
        record.key,
        record.uid,
        record.session_id,
        record.generation,
        record.time_ms,
        orjson.dumps(record.headers).decode(),
        record.value,
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Created here for the mode, which SQLite gives to its side files too. Never opened and closed once it
    # exists: that would drop the locks that this process holds on it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    sync_directory(path.parent)


def _open(path: Path, busy_timeout_s: float, *, make: bool) -> sqlite3.Connection:
    if make:
        _create(path)
    uri = f"{path.absolute().as_uri()}?mode=rw"  # SQLite itself never makes the file
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None)
    try:
        # Before anything is changed in a file that may be another's.
        if not is_event_log(connection, path) and not make:
            raise BusLogError(f"{path.name} is empty")
        _use_wal(connection, path, busy_timeout_s)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        if not is_event_log(connection, path):
            for statement in filter(str.strip, SCHEMA.split(";")):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    """Switches the file to WAL, where it stays. SQLite does not wait for others here, so this does."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise BusLogError(f"{path.name} lies on a file system that cannot hold a SQLite log in WAL mode")
        return
