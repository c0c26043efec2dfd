"""What a session's evidence is kept in: named objects, created once and never changed (formats.md 5)."""

import re
from pathlib import Path
from typing import BinaryIO, Protocol
from uuid import UUID, uuid4

from affidavit.evidence.text import printable
from affidavit.stores.errors import EvidenceStoreMismatch, IntegrityError

STORE_ID_NAME = "store.id"
"""The object at the root that tells one store from another: a random UUID and a newline."""

ERASABLE = "sessions"
"""The one directory of which anything is ever erased."""

# A leading dot is kept for a store's own temporary files; so `.` and `..` are no segments either.
_SEGMENT = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,254}")


class ObjectExists(IntegrityError):
    """An object of this name exists and holds other bytes."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{base_name(name)} exists with other content")


class ObjectMissing(LookupError):
    """There is no object of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{base_name(name)} does not exist")


class EvidenceStore(Protocol):
    """A create-only object store.

    Names are relative POSIX paths whose segments are 1-255 of `[0-9A-Za-z._-]` without a leading dot; any
    other raises `ValueError`. The methods block: call them from a thread. Every instance is safe to share
    between threads, and several processes may work on one store. What may succeed later is raised as it
    comes (`OSError`), or as a `TransientError`.
    """

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object, durably, unless it is there already.

        Returns:
            True if this call created it, False if it existed with equal bytes; it is durable in both cases.

        Raises:
            ObjectExists: It exists with other bytes.
        """
        ...

    def create_from_file(self, name: str, source: Path | BinaryIO) -> bool:
        """Creates an object from a file's bytes, never all of them in memory; otherwise like `create`.

        Args:
            name: Of the object.
            source: A path, or an open binary file that can seek; it is read from its start and left open.
        """
        ...

    def read(self, name: str) -> bytes:
        """Returns the whole object. Raises `ObjectMissing`."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Returns the names of the directories right below one, sorted; nothing deeper is looked at."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Returns the names of all objects below a directory, sorted; "" is the root."""
        ...

    @property
    def store_id(self) -> str:
        """The store's own id, looked up each time so that a store which was swapped is noticed.

        Raises:
            EvidenceStoreMismatch: The id is gone: the place of the store holds something else.
        """
        ...


class ErasableStore(EvidenceStore, Protocol):
    """An evidence store as pruning sees it. Nothing else erases: a worker is given an `EvidenceStore`."""

    def delete(self, name: str) -> bool:
        """Erases an object, durably; on a disk also what a killed creator left beside it, and emptied directories.

        A bucket that keeps versions keeps them: what they hold goes when its own lifecycle rules say so.

        Args:
            name: Of the object, below `sessions/`; any other raises `ValueError`.

        Returns:
            True if it was there, False if there is no such object (any more).

        Raises:
            IntegrityError: Something that is no object stands there, or a symlink on the way to it.
        """
        ...


def split_name(name: str) -> list[str]:
    """Returns the segments of an object's name. Raises `ValueError` if it is not one."""
    segments = name.split("/")
    if not all(is_segment(segment) for segment in segments):
        raise ValueError(f"not a name for an object: {printable(name)}")
    return segments


def split_erasable(name: str) -> list[str]:
    """Returns the segments of the name of an object that may be erased. Raises `ValueError` for any other."""
    segments = split_name(name)
    if segments[0] != ERASABLE or len(segments) == 1:
        raise ValueError(f"not below {ERASABLE}/, so it is never erased: {base_name(name)}")
    return segments


def split_prefix(prefix: str) -> list[str]:
    """Returns the segments of a directory's name, "" being the root. Raises `ValueError` if it is not one."""
    return split_name(prefix.removesuffix("/")) if prefix else []


def new_store_id() -> bytes:
    """Returns what a new store writes as its id."""
    return f"{uuid4()}\n".encode("ascii")


def read_store_id(store: EvidenceStore) -> str:
    """Returns the id that stands in a store; raises as `store_id` does, and `IntegrityError` if it is damaged."""
    try:
        text = store.read(STORE_ID_NAME).decode("ascii").removesuffix("\n")
        if str(UUID(text)) == text:
            return text
    except ObjectMissing:
        raise EvidenceStoreMismatch(f"{STORE_ID_NAME} is gone from the evidence store") from None
    except ValueError:
        pass
    raise IntegrityError(f"{STORE_ID_NAME} is not a store id")


def is_segment(text: str) -> bool:
    """Tells whether `text` may stand between two slashes of a name."""
    return _SEGMENT.fullmatch(text) is not None


def base_name(name: str) -> str:
    """Returns the last segment of a name, safe to show."""
    return printable(name.rpartition("/")[2])
