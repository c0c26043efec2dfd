"""Collaborators that misbehave on purpose, for `rig.worker(store=…, embedder=…)`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from activities.embedders import Counts, HashEmbedder
from activities.errors import IntegrityError
from affidavit.stores.base import EvidenceStore
from tests.support.taps import LIMIT_S

_HOLD_LIMIT_S = 2 * LIMIT_S
"""Longer than a test waits for an answer that does not wait for the store; shorter than the time limit of a journal
activity, so that a held attempt, which goes on heartbeating, is never given up and repeated."""


class HeldStore:
    """A store whose creates wait while it is held."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store
        self._free = threading.Event()
        self._free.set()
        self.waiting = threading.Event()
        """Set once a create has run into the hold."""

    @contextmanager
    def held(self) -> Iterator[None]:
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def create(self, name: str, data: bytes) -> bool:
        if not self._free.is_set():
            self.waiting.set()
            assert self._free.wait(_HOLD_LIMIT_S), "held for too long"
        return self._store.create(name, data)

    def create_from_file(self, name: str, source: Path | BinaryIO) -> bool:
        return self._store.create_from_file(name, source)

    def folders(self, prefix: str) -> list[str]:
        return self._store.folders(prefix)

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def list(self, prefix: str) -> list[str]:
        return self._store.list(prefix)

    @property
    def store_id(self) -> str:
        return self._store.store_id


class LosingStore(HeldStore):
    """A store that will never take a session's metadata."""

    def create(self, name: str, data: bytes) -> bool:
        taken = super().create(name, data)
        if name.endswith("/metadata.json"):
            raise IntegrityError("metadata.json is damaged")
        return taken


class WatchedEmbedder:
    """The real embedder, with something done before each text."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._before = before
        self._embedder = HashEmbedder()

    def counts(self, text: str) -> Counts:
        self._before(text)
        return self._embedder.counts(text)
