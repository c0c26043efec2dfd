"""Spool files: what a session reports while nobody answers, for `affidavit spool push` to report later.

A spool file holds one handle's reports, one JSON text a line: a header with the session's id and spec, then the
messages as they would have been signalled, their steps numbered and with the time at which they were reported, at last
how the session was to end. It is created exclusively with mode 0600 and only ever appended to, each line synced before
its report returns; of a line that could not be written whole, nothing is left. A lock tells whether its writer lives or
somebody pushes it.

Beside it, `.push` says how far a push has come. What it does not know yet is sent again and dropped by the session.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from affidavit.contract import BATCH_BYTES, BATCH_STEPS
from affidavit.evidence.durable import sync_directory
from affidavit.evidence.layout import check_generation
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
        self._size = 0
        self._broken = False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.append(_text({"spool": FORMAT, "session_id": session_id, "generation": generation, "spec": spec}))
            sync_directory(folder)
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)  # nothing is in it that was ever reported
            raise

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._file < 0

    def append(self, line: bytes) -> None:
        """Write a message, and have it on disk.

        Raises:
            OSError: it is not. The file is as it was before; where it could not be made so, it takes nothing more.
        """
        if self._broken:
            raise OSError(errno.EIO, "an earlier write failed in part and could not be undone; it takes nothing more")
        data = rest = line + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fdatasync(self._file)
        except BaseException:
            self._undo()
            raise
        self._size += len(data)

    def _undo(self) -> None:
        # A part that stayed would swallow the next line, whose report would return all the same.
        self._broken = True
        with suppress(OSError):
            os.ftruncate(self._file, self._size)
            os.fdatasync(self._file)
            self._broken = False

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
    """What a spool file says.

    `torn`: its last line was not written to its end, so its report never returned. `bad`: whole lines that say nothing
    that can be reported; the lines beside them are not touched by that.
    """

    session_id: str
    generation: str | None
    spec: dict[str, Any]
    messages: list[bytes] = field(default_factory=list)
    end: End | None = None
    torn: bool = False
    bad: int = 0


class Progress(BaseModel):
    """How far a push has come: the life it reports to, messages that the server has, whether it has closed it.

    `rejected`: what that life had rejected before the first message was sent.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    generation: Annotated[str, AfterValidator(check_generation)] | None = None
    sent: Annotated[int, Field(ge=0)] = 0
    closing: bool = False
    rejected: Annotated[int, Field(ge=0)] | None = None


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
        header = _object(lines[0]) if lines else {}  # nothing can be done without it
        if header.get("spool") != FORMAT or not isinstance(header.get("session_id"), str):
            raise SpoolError("no spool file, or of another version")
        found = Spooled(header["session_id"], header.get("generation"), header.get("spec") or {}, torn=bool(rest))
        for line in lines[1:]:
            said = _said(line) if found.end is None else None
            if said is None:
                found.bad += 1
            elif said == "message":
                found.messages.append(line)
            else:
                found.end = said
        return found

    def progress(self, messages: int) -> Progress:
        """What earlier pushes have noted.

        Args:
            messages: how many there are in the spool file.

        Raises:
            SpoolError: what is there is none of this file; nothing is to be sent, and nothing removed, by its word.
        """
        noted: dict[str, Any] = {}
        if os.path.lexists(self._progress):
            with self._opened(os.O_RDONLY) as file:
                for line in file.read().split(b"\n")[:-1]:
                    noted.update(_object(line))
        try:
            found = Progress.model_validate(noted)
        except ValidationError:
            raise SpoolError("its progress file says what no push writes") from None
        if found.sent > messages:
            raise SpoolError("its progress file speaks of more messages than there are")
        return found

    def note(self, **what: Any) -> None:
        """Note a field of the progress, and have it on disk.

        Raises:
            SpoolError: something else is in its place.
        """
        with self._opened(os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            file.truncate(file.read().rfind(b"\n") + 1)  # a note that was cut off would swallow this one
            file.write(_text(what) + b"\n")
            file.flush()
            os.fdatasync(file.fileno())

    @contextmanager
    def _opened(self, flags: int) -> Iterator[BinaryIO]:
        """The progress file, if it is a file: whoever else may write to the folder could have put anything there."""
        try:
            number = os.open(self._progress, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise SpoolError("its progress file is no file") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise SpoolError("its progress file is no file")
            with os.fdopen(number, "rb" if flags == os.O_RDONLY else "r+b", closefd=False) as file:
                yield file
        finally:
            os.close(number)

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


def _said(line: bytes) -> Literal["message"] | End | None:
    """What kind of line it is; None for one that no writer wrote, or not whole."""
    try:
        value = _object(line, len)  # numbers of any length: whether they are taken is the session's to say
    except SpoolError:
        return None
    if line.startswith(_HEAD) and line.endswith(_TAIL) and value.keys() == {"steps"} and value["steps"]:
        return "message"
    how: End | None = {"close": "close", "cancel": "cancel"}.get(str(value.get("end")))  # type: ignore[assignment]
    return how if len(value) == 1 else None


def _object(line: bytes, parse_int: Callable[[str], int] = int) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_int=parse_int)
    except (ValueError, RecursionError):
        raise SpoolError("a line of it cannot be read") from None
    if not isinstance(value, dict):
        raise SpoolError("a line of it is no object")
    return value
