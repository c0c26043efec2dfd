"""The activities of the naive shape; each does the least that its stage must do to be one."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temporalio import activity

from activities.embedders import HashEmbedder


class NaiveStages:
    """Embeds the text, appends the step to a file and syncs it, inserts it into SQLite."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._embedder = HashEmbedder()
        self._lock = threading.Lock()
        self._bus = sqlite3.connect(folder / "bus.sqlite", check_same_thread=False)
        self._bus.execute("PRAGMA journal_mode = WAL")
        self._bus.execute("CREATE TABLE IF NOT EXISTS records (session TEXT, value TEXT)")

    def all(self) -> list[Callable[..., Any]]:
        return [self.embed, self.journal, self.publish]

    @activity.defn(name="naive_embed")
    def embed(self, step: dict[str, Any]) -> list[int]:
        return [int(count) for count in self._embedder.counts(str(step.get("text", "")))]

    @activity.defn(name="naive_journal")
    def journal(self, step: dict[str, Any]) -> None:
        with (self._folder / f"{activity.info().workflow_id}.ndjson").open("ab") as file:
            file.write(json.dumps(step).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @activity.defn(name="naive_publish")
    def publish(self, step: dict[str, Any]) -> None:
        with self._lock, self._bus:
            self._bus.execute("INSERT INTO records VALUES (?, ?)", (activity.info().workflow_id, json.dumps(step)))
