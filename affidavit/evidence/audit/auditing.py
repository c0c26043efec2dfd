"""The audit: all lives of a store one after the other, each against the bus.

It reads the store folder by folder, object by object, and the bus once; what has to be compared lies in a database in a
temporary file, so that memory does not grow with either.

Sessions may be written meanwhile. Which sessions have ended is looked at first, then the bus, then the journals: so
every event on the bus is in a journal by then, and what an ended session published is on the bus. Of a session whose
last event is recent, only the newest events may still be missing on the bus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing

from affidavit.buslog import LogRow
from affidavit.evidence.audit.bus import read_bus, unknown_lives
from affidavit.evidence.audit.documents import (
    check_erased,
    own_id,
    read_metadata,
    read_outcome,
    read_pruned,
    read_receipt,
)
from affidavit.evidence.audit.events import Events
from affidavit.evidence.audit.findings import Counts, Finding, Findings, reason_of
from affidavit.evidence.audit.folder import AuditedFolder
from affidavit.evidence.audit.life import Life
from affidavit.evidence.audit.scratch import Scratch
from affidavit.evidence.audit.sequences import check_journal, compare_with_bus
from affidavit.evidence.audit.state import check_state, orphan_captures, promise
from affidavit.evidence.layout import (
    CAPTURES,
    JOURNAL,
    LIFECYCLE,
    OUTCOME,
    PAYLOADS,
    PRUNED,
    SESSIONS,
    is_evidence,
    is_generation,
)
from affidavit.evidence.text import printable

_STEM = re.compile(r"[0-9a-f]{32}")


class Audit:
    """One audit. Iterate `findings` to its end; then `counts` is complete."""

    def __init__(
        self,
        store: AuditedFolder,
        bus: Iterable[LogRow] | None,
        journal_keys: Sequence[bytes],
        *,
        now_ms: int,
        older_than_ms: int,
    ) -> None:
        """Takes what is to be audited.

        Args:
            store: the root of the evidence store.
            bus: the records of the embedded bus, read when their turn comes; None where there is no bus.
            journal_keys: the keys under which MACs are checked; without one they are not.
            now_ms: what time it is.
            older_than_ms: a session without an outcome whose last event is at most so old is taken to be alive.
        """
        self._store, self._bus, self._keys = store, bus, tuple(journal_keys)
        self._now, self._older_than = now_ms, older_than_ms
        self.counts = Counts()

    def findings(self) -> Findings:
        """Everything there is to say, session by session, in the order of their folders."""
        with closing(Scratch()) as scratch:
            for finding in self._all(scratch):
                if finding.kind == "open":
                    self.counts.open += 1
                else:
                    self.counts.findings += 1
                yield finding

    def _all(self, scratch: Scratch) -> Findings:
        if self._bus is not None:
            for _ in self._list_lives(scratch, seen_before_bus=True):
                pass
            yield from read_bus(self._bus, scratch, self.counts)
        yield from self._list_lives(scratch, seen_before_bus=False)
        previous = None
        for stem, generation, ended in scratch.lives():
            self.counts.generations += 1
            self.counts.sessions += stem != previous
            previous = stem
            folder = self._store.below(SESSIONS, stem, generation)
            yield from self._audit_life(Life(folder, stem, generation, ended, self._keys), scratch)
        if self.counts.bus_events is not None:
            yield from unknown_lives(scratch)

    def _list_lives(self, scratch: Scratch, *, seen_before_bus: bool) -> Findings:
        try:
            for stem, is_folder in self._store.entries(SESSIONS):
                if not is_folder or not _STEM.fullmatch(stem):
                    yield Finding("misplaced", printable(stem), "-", "is no folder of a session")
                    continue
                for generation, is_life in self._store.entries(f"{SESSIONS}/{stem}"):
                    if generation == PAYLOADS and is_life:
                        continue
                    if not is_life or not is_generation(generation):
                        what = f"{printable(generation)} is no folder of a generation"
                        yield Finding("misplaced", stem, "-", what)
                        continue
                    ended = seen_before_bus and self._store.has(f"{SESSIONS}/{stem}/{generation}/{OUTCOME}")
                    scratch.add_life(stem, generation, ended=ended)
        except OSError as error:
            yield Finding("unreadable", "-", "-", f"a folder of the evidence store: {reason_of(error)}")

    def _audit_life(self, life: Life, scratch: Scratch) -> Findings:
        scratch.start_journal()
        if life.store.has(PRUNED):
            self.counts.pruned += 1
            yield from read_pruned(life)
            return
        try:
            yield from self._read(life, scratch)
        except OSError as error:
            yield life.say("unreadable", f"a folder of the generation: {reason_of(error)}")
            return
        if life.last_ms is None:
            life.last_ms = life.opened_ms
        life.recent = life.last_ms is not None and self._is_recent(life.last_ms)
        life.promised = promise(life, settled_ms=self._now - self._older_than)
        yield from check_state(life)
        yield from check_journal(life, scratch)
        yield from orphan_captures(life)
        if self.counts.bus_events is not None:
            yield from compare_with_bus(life, scratch, self._is_recent)

    def _read(self, life: Life, scratch: Scratch) -> Findings:
        life.session_id = own_id(life)
        # In this order: an outcome is written last of all, and an event's captures before it.
        yield from read_outcome(life)
        names = life.store.list("")
        segments = [name for name in life.store.list(JOURNAL) if is_evidence(name)]
        yield from read_metadata(life)
        life.captures = {name for name in names if name.startswith(f"{CAPTURES}/") and is_evidence(name)}
        for name in names:
            if not is_evidence(name):
                yield life.say("misplaced", f"{printable(name)} is no object of a generation")
        events = Events(life, scratch, self.counts)
        for name in segments:
            yield from events.segment(name)
        for name in names:
            if name.startswith(f"{LIFECYCLE}/") and is_evidence(name):
                yield from events.lifecycle(name)
        yield from read_receipt(life)
        yield from check_erased(life)

    def _is_recent(self, ms: int) -> bool:
        # A clock that is ahead must not hide a session for ever.
        return abs(self._now - ms) <= self._older_than
