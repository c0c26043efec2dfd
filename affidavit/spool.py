"""Spool files: what a session reports while nobody answers, for `affidavit spool push` to report later.

A spool file holds one handle's reports, one JSON text a line: a header with the session's id and spec, then the
messages as they would have been signalled, their steps numbered and with the time at which they were reported, at last
how the session was to end. It is created exclusively with mode 0600 and only ever appended to, each line synced before
its report returns. A lock tells whether its writer lives or somebody pushes it.

Beside it, `.push` says how far a push has come. What it does not know yet is sent again and dropped by the session.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from affidavit.contract import BATCH_BYTES, BATCH_STEPS
from affidavit.evidence.durable import sync_directory
from affidavit.evidence.scalars import session_stem

FORMAT: Final = 1
SUFFIX: Final = ".spool"
VARIABLE: Final = "AFFIDAVIT_SPOOL"
DEFAULT: Final = Path(".affidavit/spool")
_HEAD: Final = b'{"steps":['
_TAIL: Final = b"]}"
"""Around the steps of a message, as `affidavit.outgoing.record` writes it."""

End = Literal["close", "cancel"]


class SpoolError(Exception):
    """A spool file that cannot be used; the text has no path."""


class SpoolBusy(SpoolError):
    """Its writer is still at work, or another push is."""


def spool_folder(given: Path | None) -> Path:
    """Where spool files are: as given, else as the environment says, else in the data folder."""
    return given or Path(os.environ.get(VARIABLE) or DEFAULT)


def spool_files(folder: Path) -> list[Path]:
    """The spool files of a folder, the oldest first."""
    found = [path for path in folder.glob(f"*{SUFFIX}") if path.is_file()] if folder.is_dir() else []
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


class SpoolWriter:
    """A spool file being written. Closing it, or the end of the process, leaves it to be pushed."""

    def __init__(self, folder: Path, *, session_id: str, generation: str | None, spec: dict[str, Any]) -> None:
        """Creates the file.

        Args:
            generation: the life that was opened before; None where it is for the push to open one.

        Raises:
            OSError: it cannot be written.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{session_stem(session_id)}-{uuid.uuid4().hex}{SUFFIX}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.append(_text({"spool": FORMAT, "session_id": session_id, "generation": generation, "spec": spec}))
        sync_directory(folder)

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._file < 0

    def append(self, line: bytes) -> None:
        """Write a message, and have it on disk.

        Raises:
            OSError: it is not, or in part; the part is not read back.
        """
        data = line + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        os.fdatasync(self._file)

    def end(self, how: End) -> None:
        """Write how the session ends, and close the file."""
        self.append(_text({"end": how}))
        self.close()

    def close(self) -> None:
        """Leave the file to be pushed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@dataclass(slots=True)
class Spooled:
    """What a spool file says. `torn`: its last line was not written to its end, so its report never returned."""

    session_id: str
    generation: str | None
    spec: dict[str, Any]
    messages: list[bytes] = field(default_factory=list)
    end: End | None = None
    torn: bool = False


@dataclass(slots=True)
class Progress:
    """How far a push has come: the life it reports to, messages that the server has, whether it has closed it."""

    generation: str | None = None
    sent: int = 0
    closing: bool = False


class SpoolReader:
    """A spool file being pushed; locked, so that nobody else writes or pushes it."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        self._progress = path.with_suffix(".push")

    def read(self) -> Spooled:
        """Read it whole.

        Raises:
            SpoolError: it is none.
        """
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            *lines, rest = file.read().split(b"\n")
        header = _object(lines[0]) if lines else {}
        if header.get("spool") != FORMAT or not isinstance(header.get("session_id"), str):
            raise SpoolError("no spool file, or of another version")
        found = Spooled(header["session_id"], header.get("generation"), header.get("spec") or {}, torn=bool(rest))
        for line in lines[1:]:
            if line.startswith(_HEAD):
                found.messages.append(line)
            else:
                found.end = "cancel" if _object(line).get("end") == "cancel" else "close"
        return found

    def progress(self) -> Progress:
        """What earlier pushes have noted."""
        found = Progress()
        if self._progress.exists():
            for line in self._progress.read_bytes().split(b"\n")[:-1]:
                for name, value in _object(line).items():
                    setattr(found, name, value)
        return found

    def note(self, **what: Any) -> None:
        """Note a field of the progress, and have it on disk."""
        file = os.open(self._progress, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, _text(what) + b"\n")
            os.fdatasync(file)
        finally:
            os.close(file)

    def remove(self) -> None:
        """Remove the file, once all of it is reported. First the spool: alone, a progress means nothing."""
        self.path.unlink()
        self._progress.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[SpoolReader]:
    """Open a spool file for pushing.

    Raises:
        SpoolBusy: somebody else has it.
        SpoolError: it is gone: another push was faster.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise SpoolError("is not there any more") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpoolBusy("is still being written, or pushed by somebody else") from None
        if not path.exists() or not os.path.samestat(os.fstat(file), path.stat()):
            raise SpoolError("is not there any more")
        yield SpoolReader(path, file)
    finally:
        os.close(file)


def joined(messages: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Messages put together as far as one may go, each with how many of them it holds."""
    parts: list[bytes] = []
    size = steps = 0
    for message in messages:
        inner = message[len(_HEAD) : -len(_TAIL)]
        count = inner.count(b'"producer_seq":')  # at least as many as there are steps
        if parts and (size + len(inner) > BATCH_BYTES or steps + count > BATCH_STEPS):
            yield len(parts), _HEAD + b",".join(parts) + _TAIL
            parts, size, steps = [], 0, 0
        parts.append(inner)
        size += len(inner) + 1
        steps += count
    if parts:
        yield len(parts), _HEAD + b",".join(parts) + _TAIL


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        raise SpoolError("a line of it cannot be read") from None
    if not isinstance(value, dict):
        raise SpoolError("a line of it is no object")
    return value
