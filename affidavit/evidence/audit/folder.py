"""A folder of evidence as an audit reads it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from affidavit.evidence.bundle import DirectoryReader, StoreReader
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable


class AuditedFolder(StoreReader, Protocol):
    """A folder of evidence as an audit looks at it, on a disk or in an object store."""

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """What is right below the folder `prefix`, and whether it is a folder itself; not sorted."""

    def has(self, name: str) -> bool:
        """Whether there is anything under `name`."""

    def sha256(self, name: str) -> str:
        """Digest of an object that need not fit into memory."""

    def below(self, *names: str) -> AuditedFolder:
        """The folder below this one."""


class StoreFolder(DirectoryReader):
    """A directory of evidence, read for an audit: links and pipes are listed too, and refused when they are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._folder = root

    def list(self, prefix: str) -> list[str]:
        """Names of everything but directories below `prefix`, sorted; a hidden file is a crash's scrap, no object."""
        return sorted(self._names(self._folder / prefix, f"{prefix}/" if prefix else ""))

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """What is right below `prefix`, and whether it is a directory; not sorted."""
        with suppress(FileNotFoundError), os.scandir(self._folder / prefix) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name, entry.is_dir(follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether there is anything under `name`."""
        return os.path.lexists(self._folder / name)

    def sha256(self, name: str) -> str:
        """Digest of an object that need not fit into memory."""
        path = self._folder / name
        if path.is_symlink() or not path.is_file():
            raise EvidenceError(f"{printable(name)} is not a regular file")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def below(self, *names: str) -> StoreFolder:
        """The directory below this one."""
        return StoreFolder(self._folder.joinpath(*names))

    def _names(self, folder: Path, prefix: str) -> Iterator[str]:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._names(folder / entry.name, f"{prefix}{entry.name}/")
                else:
                    yield f"{prefix}{entry.name}"
