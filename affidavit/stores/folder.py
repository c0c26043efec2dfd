"""Reading evidence for a command: by folder and name, with the limits of what is read, wherever the store is.

A directory is read without being opened as a store, because an auditor may have a part of it or no leave to write. An
object store is opened as one that exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from affidavit.evidence.audit import AuditedFolder, StoreFolder
from affidavit.evidence.bundle import BundleTooLarge, DirectoryReader, StoreReader, size_limit
from affidavit.evidence.text import printable
from affidavit.stores.base import ObjectMissing
from affidavit.stores.place import Place, open_store

if TYPE_CHECKING:
    from affidavit.stores.object import ObjectStore


class ObjectFolder:
    """A folder of an object store; see `AuditedFolder` for the methods."""

    def __init__(self, store: ObjectStore, prefix: str = "") -> None:
        self._store = store
        self._prefix = prefix

    def read(self, name: str) -> bytes:
        """Bytes of an object; `FileNotFoundError` if there is none."""
        size = self._store.size(self._full(name))
        if size is None:
            raise FileNotFoundError(f"there is no object {printable(name)}")
        if size > size_limit(name):
            raise BundleTooLarge(f"{printable(name)} is larger than is read")
        try:
            return self._store.read(self._full(name))
        except ObjectMissing:
            raise FileNotFoundError(f"there is no object {printable(name)}") from None

    def list(self, prefix: str) -> list[str]:
        """Names of all objects below `prefix`, sorted; those that do not belong there too."""
        above = len(self._prefix) + 1 if self._prefix else 0
        return [name[above:] for name in self._store.everything(self._full(prefix))]

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """What is right below `prefix`, and whether it is a folder."""
        yield from self._store.entries(self._full(prefix))

    def has(self, name: str) -> bool:
        """Whether there is an object of this name."""
        return self._store.size(self._full(name)) is not None

    def sha256(self, name: str) -> str:
        """Digest of an object that need not fit into memory."""
        digest = hashlib.sha256()
        for chunk in self._store.chunks(self._full(name)):
            digest.update(chunk)
        return digest.hexdigest()

    def below(self, *names: str) -> ObjectFolder:
        """The folder below this one."""
        return ObjectFolder(self._store, self._full("/".join(names)))

    def _full(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, name) if part)


def reader_of(place: Place) -> StoreReader:
    """What reads the evidence at a place. Raises what `open_store` raises for an object store."""
    return DirectoryReader(place) if isinstance(place, Path) else _objects(place)


def folder_of(place: Place) -> AuditedFolder:
    """The same for an audit, which also sees what does not belong there."""
    return StoreFolder(place) if isinstance(place, Path) else _objects(place)


def _objects(place: Place) -> ObjectFolder:
    from affidavit.stores.object import ObjectStore

    store = open_store(place, create=False)
    assert isinstance(store, ObjectStore)
    return ObjectFolder(store)
