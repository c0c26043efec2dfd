"""The embedded event bus as a file: its format, and how another process reads it.

The log is a SQLite database in WAL mode. The writer is the worker's (`activities.buses.sqlite`); what is here
needs nothing but the standard library, so that the command line and an auditor can read a log without one.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

APPLICATION_ID: Final = 0x41666C67
"""Marks the SQLite file as an event log of this product ("Aflg")."""

SCHEMA_VERSION: Final = 1

SCHEMA: Final = f"""
CREATE TABLE records (
    position   INTEGER PRIMARY KEY AUTOINCREMENT,
    topic      TEXT    NOT NULL,
    partition  INTEGER NOT NULL,
    "offset"   INTEGER NOT NULL,
    key        TEXT    NOT NULL,
    uid        TEXT    NOT NULL UNIQUE,
    session    TEXT    NOT NULL,
    generation TEXT    NOT NULL,
    time_ms    INTEGER NOT NULL,
    headers    TEXT    NOT NULL,
    value      BLOB    NOT NULL,
    UNIQUE (topic, partition, "offset")
);
CREATE INDEX records_by_session ON records (session, position);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_PAGE = 256
_SELECT = (
    'SELECT position, topic, partition, "offset", key, uid, session, generation, time_ms, headers, value'
    " FROM records WHERE position > :after AND (:topic IS NULL OR topic = :topic)"
    " AND (:session IS NULL OR session = :session) ORDER BY position LIMIT :page"
)
_SELECT_OF_SESSION = _SELECT.replace("(:session IS NULL OR session = :session)", "session = :session")
# One statement, so that all three are of one moment: another process may be making the log.
_FORMAT = (
    "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
    " (SELECT count(*) FROM sqlite_schema)"
)


class BusLogError(Exception):
    """The file cannot serve as an event log; the message says why and shows the file's base name only."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One record of the log. `position` orders all topics; `offset` counts from 0 within one topic."""

    position: int
    topic: str
    partition: int
    offset: int
    key: str
    uid: str
    session_id: str
    generation: str
    time_ms: int
    headers: dict[str, str]
    value: bytes


class BusLogReader:
    """Reads a log, also while workers write it. One reader belongs to one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Takes an open connection over; `open_read_only` makes one."""
        self._path = path
        self._connection = connection

    @classmethod
    def open_read_only(cls, path: Path) -> Self:
        """Opens an existing log.

        Raises:
            BusLogError: There is no such file, it is damaged, or it is something else.
        """
        if not path.is_file():
            raise BusLogError(f"there is no event log {path.name}")
        try:
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            try:
                if not is_event_log(connection, path):
                    raise BusLogError(f"{path.name} is empty; no worker has opened it yet")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise explained(path, error) from error
        return cls(path, connection)

    def read(
        self,
        topic: str | None = None,
        session: str | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> Iterator[LogRow]:
        """Yields records in the order in which they were published.

        Args:
            topic: Only this topic.
            session: Only this session id; all its generations.
            after: Only records with a `position` greater than this: the cursor to go on from.
            limit: At most so many.

        Raises:
            BusLogError: The file is damaged, or a writer held it for too long.
        """
        select = _SELECT if session is None else _SELECT_OF_SESSION
        position, left = -1 if after is None else after, limit
        # By pages and not by one long statement: an open read would keep the writers' WAL from being reused.
        while left is None or left > 0:
            page = _PAGE if left is None else min(_PAGE, left)
            arguments = {"after": position, "topic": topic, "session": session, "page": page}
            try:
                with closing(self._connection.execute(select, arguments)) as cursor:
                    rows = cursor.fetchall()
            except sqlite3.Error as error:
                raise explained(self._path, error) from error
            for *columns, headers, value in rows:
                yield LogRow(*(*columns, json.loads(headers), value))
            if len(rows) < page:
                return
            position = rows[-1][0]
            left = None if left is None else left - page

    def topics(self) -> list[str]:
        """Names of the topics that have a record, in order.

        Raises:
            BusLogError: The file is damaged, or a writer held it for too long.
        """
        try:
            with closing(self._connection.execute("SELECT DISTINCT topic FROM records ORDER BY topic")) as cursor:
                return [row[0] for row in cursor]
        except sqlite3.Error as error:
            raise explained(self._path, error) from error

    def close(self) -> None:
        """Closes the file; may be called again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_event_log(connection: sqlite3.Connection, path: Path) -> bool:
    """Tells an event log (True) from an empty database (False).

    Raises:
        BusLogError: The database is another program's, or of a version that is not known here.
        sqlite3.DatabaseError: The file is no database, or damaged.
    """
    application, version, objects = connection.execute(_FORMAT).fetchone()
    if (application, version, objects) == (0, 0, 0):
        return False
    if application != APPLICATION_ID:
        raise BusLogError(f"{path.name} is a database of another program")
    if version != SCHEMA_VERSION:
        raise BusLogError(f"{path.name} has format {version}; this program knows format {SCHEMA_VERSION}")
    return True


def explained(path: Path, error: sqlite3.Error) -> BusLogError:
    """Words an error of SQLite. Its own text is left out: it may quote values."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return BusLogError(f"{path.name} is not a SQLite database")
    if code == sqlite3.SQLITE_CORRUPT:
        return BusLogError(f"{path.name} is damaged")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return BusLogError(f"{path.name} cannot be used now ({name})")


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary result code of an error, 0 if it has none."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
