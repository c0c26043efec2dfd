"""Evidence in a local directory, the default store."""

import errno
import io
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from affidavit.stores.base import (
    STORE_ID_NAME,
    ObjectExists,
    ObjectMissing,
    base_name,
    is_segment,
    new_store_id,
    read_store_id,
    split_erasable,
    split_name,
    split_prefix,
)
from affidavit.stores.errors import IntegrityError

# Never through a symlink: one planted inside the root must not lead a write, or a read, out of it.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking, so that a pipe in the place of a file is refused and not waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1024 * 1024
_SCRAP = ".tmp-"
_SCRAP_AGE_S = 3600
"""A temporary file that is older is nobody's any more."""


class DirectoryStore:
    """An `EvidenceStore` of files (0600) in directories (0700) under one root.

    An object is written to a temporary file, synced, and hard-linked to its name, which fails if the name is
    taken: no reader ever sees a part of it, and of several creators one wins. A process killed in between
    leaves a temporary file that no listing shows and no later call uses.

    Opening the store makes the root and its id if they are not there, unless it is to be one that exists.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        """Opens a store.

        Args:
            root: Its directory.
            create: Whether it may be a new one; a client that shares a worker's store says no.

        Raises:
            OSError: The root cannot be made or written.
            IntegrityError: Its id is damaged.
            EvidenceStoreMismatch: There is no store, and it is not to be made.
        """
        # Resolved once: the root itself may be a symlink, that is the operator's business.
        self._root = root.resolve()
        self._known_id: tuple[tuple[int, ...], str] | None = None
        if create:
            made = [directory for directory in (self._root, *self._root.parents) if not directory.exists()]
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in made:
                with ExitStack() as stack:
                    os.fsync(_open_directory(directory.parent, None, stack))
            with suppress(ObjectExists):
                self.create(STORE_ID_NAME, new_store_id())
        _ = self.store_id

    def create(self, name: str, data: bytes) -> bool:
        """See `EvidenceStore.create`."""
        return self._create(name, io.BytesIO(data))

    def create_from_file(self, name: str, source: Path | BinaryIO) -> bool:
        """See `EvidenceStore.create_from_file`."""
        if not isinstance(source, Path):
            return self._create(name, source)
        with source.open("rb") as file:
            return self._create(name, file)

    def read(self, name: str) -> bytes:
        """See `EvidenceStore.read`."""
        *parents, base = split_name(name)
        try:
            with _directories(self._root, parents) as directories, _opened(directories[-1], base) as file:
                return file.read()
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def delete(self, name: str) -> bool:
        """See `ErasableStore.delete`. A symlink in the place of an object is removed, not what it leads to."""
        *parents, base = split_erasable(name)
        try:
            with _directories(self._root, parents) as directories:
                _sweep(directories[-1])
                try:
                    os.unlink(base, dir_fd=directories[-1])
                except (IsADirectoryError, PermissionError):
                    if stat.S_ISDIR(os.stat(base, dir_fd=directories[-1], follow_symlinks=False).st_mode):
                        raise IntegrityError(f"{base_name(name)} in the evidence store is not a file") from None
                    raise
                os.fsync(directories[-1])
                _remove_empty(parents, directories)
        except FileNotFoundError:
            return False
        return True

    def folders(self, prefix: str) -> list[str]:
        """See `EvidenceStore.folders`. A symlink is no directory."""
        segments = split_prefix(prefix)
        try:
            with _directories(self._root, segments) as directories, os.scandir(directories[-1]) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted("/".join([*segments, name]) for name in names if is_segment(name))

    def list(self, prefix: str) -> list[str]:
        """See `EvidenceStore.list`. Files whose names are no objects' are left out."""
        segments = split_prefix(prefix)
        try:
            with _directories(self._root, segments) as directories:
                return sorted(_names(directories[-1], segments))
        except FileNotFoundError:
            return []

    @property
    def store_id(self) -> str:
        """See `EvidenceStore.store_id`. Asked with every write, so read anew only if the file is not as it was."""
        found, known = self._identity(), self._known_id
        if found is not None and known is not None and known[0] == found:
            return known[1]
        store_id = read_store_id(self)
        # Remembered only if nothing was mounted over it in between.
        self._known_id = (found, store_id) if found is not None and found == self._identity() else None
        return store_id

    def _identity(self) -> tuple[int, ...] | None:
        try:
            status = (self._root / STORE_ID_NAME).lstat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size

    def _create(self, name: str, source: BinaryIO) -> bool:
        *parents, base = split_name(name)
        with _directories(self._root, parents, make=True) as directories:
            # Looked for first: a replay writes again what is there, megabytes of it.
            created = not _is_there(directories[-1], base) and _link_new(directories[-1], base, source)
            if not created and not _holds(directories[-1], base, source):
                raise ObjectExists(name)
            # In the other case too: whoever linked it, or made a directory, may have died before syncing it.
            for directory in reversed(directories):
                os.fsync(directory)
        return created


@contextmanager
def _directories(root: Path, segments: list[str], *, make: bool = False) -> Iterator[list[int]]:
    """Opens the root and each directory below it in turn; yields their descriptors."""
    with ExitStack() as stack:
        opened = [_open_directory(root, None, stack)]
        for segment in segments:
            try:
                opened.append(_open_directory(segment, opened[-1], stack))
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(segment, 0o700, dir_fd=opened[-1])
                opened.append(_open_directory(segment, opened[-1], stack))
        yield opened


def _open_directory(name: str | Path, parent: int | None, stack: ExitStack) -> int:
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:  # what Linux says of a symlink, too
        raise IntegrityError(f"{base_name(str(name))} in the evidence store is not a directory") from None
    stack.callback(os.close, descriptor)
    return descriptor


def _is_there(directory: int, base: str) -> bool:
    try:
        os.stat(base, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _link_new(directory: int, base: str, source: BinaryIO) -> bool:
    """Writes a synced file and links it to `base`; False if that name is taken."""
    temporary = f"{_SCRAP}{uuid4().hex}"
    try:
        with os.fdopen(os.open(temporary, _CREATE, 0o600, dir_fd=directory), "wb") as file:
            source.seek(0)
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, base, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        with suppress(OSError):  # the object counts, not the scrap
            os.unlink(temporary, dir_fd=directory)
    return True


def _sweep(directory: int) -> None:
    """Remove what killed creators have left: it may hold what is to be erased."""
    with os.scandir(directory) as entries:
        scraps = [entry.name for entry in entries if entry.name.startswith(_SCRAP)]
    for scrap in scraps:
        with suppress(FileNotFoundError):
            if time.time() - os.stat(scrap, dir_fd=directory, follow_symlinks=False).st_mtime > _SCRAP_AGE_S:
                os.unlink(scrap, dir_fd=directory)


def _remove_empty(segments: list[str], directories: list[int]) -> None:
    """Remove the directories that have become empty, the innermost first; the outermost stays."""
    for place in range(len(segments) - 1, 0, -1):
        try:
            os.rmdir(segments[place], dir_fd=directories[place])
        except OSError:  # not empty, or somebody makes something in it
            return
        os.fsync(directories[place])


def _holds(directory: int, base: str, source: BinaryIO) -> bool:
    """Whether the object is what `source` has; it is synced on the way."""
    with _opened(directory, base) as file:
        os.fsync(file.fileno())
        source.seek(0)
        while True:
            ours, theirs = source.read(_CHUNK), file.read(_CHUNK)
            if ours != theirs:
                return False
            if not ours:
                return True


@contextmanager
def _opened(directory: int, base: str) -> Iterator[BinaryIO]:
    refusal = IntegrityError(f"{base_name(base)} in the evidence store is not a file")
    try:
        descriptor = os.open(base, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symlink, a socket
            raise refusal from None
        raise
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise refusal
        yield stack.enter_context(os.fdopen(descriptor, "rb", closefd=False))


def _names(directory: int, above: list[str]) -> Iterator[str]:
    """Walks down from an open directory. A symlink is listed like a file, so that reading it is refused."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not is_segment(entry.name):
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield "/".join([*above, entry.name])
                continue
            with ExitStack() as stack, suppress(FileNotFoundError):  # a directory pruned meanwhile
                yield from _names(_open_directory(entry.name, directory, stack), [*above, entry.name])
