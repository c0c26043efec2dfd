"""Erasing what has ended: whole generations, or their content alone (process.md P19).

A generation is found by its sealed outcome. Before anything of it is erased a marker is sealed beside it, so that a
prune that dies half-way is finished by the next one, an audit knows that nothing was lost, and an id that must never
be opened again is refused for ever (behaviours A4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    domain_erased,
    domain_lifecycle,
    domain_outcome,
    domain_pruned,
    open_envelope,
    parse_envelope,
    seal,
)
from affidavit.evidence.layout import (
    CAPTURES,
    JOURNAL,
    LIFECYCLE,
    OUTCOME,
    PAYLOADS,
    PRUNED,
    RECEIPT,
    SESSIONS,
    TRAJECTORY,
    check_generation,
    erased_name,
    is_evidence,
    lives_prefix,
    number_of,
    outcome_name,
    pruned_name,
    session_prefix,
)
from affidavit.evidence.scalars import MAX_INTEGER, check_session_id, session_stem
from affidavit.evidence.text import printable
from affidavit.stores.base import ErasableStore, ObjectExists, ObjectMissing
from affidavit.stores.errors import IntegrityError

ENDINGS: Final = ("closed", "quarantined", "abandoned")
"""Actions of the events that end a session; a cancelled one is closed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A generation that has ended long enough ago, and what is to be erased of it: names in the store."""

    session_id: str
    generation: str
    status: str
    mode: str
    closed_ms: int
    content: str | None
    """Setting of the session; with `full` the events hold content too. None where nothing tells it any more."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A generation that is not touched, and why; the texts are safe to show."""

    stem: str
    generation: str
    why: str


@dataclass(slots=True)
class Stem:
    """All lives of one session. `payloads` go when every life of it has gone."""

    stem: str
    ended: list[Ended] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    payloads: list[str] = field(default_factory=list)


class Pruner:
    """Finds and erases. It blocks: call it from a thread."""

    def __init__(
        self,
        store: ErasableStore,
        keys: Sequence[bytes],
        *,
        closed_before_ms: int,
        now_ms: int,
        captures_only: bool = False,
        receipts: bool = False,
    ) -> None:
        """Takes what is to be pruned.

        Args:
            store: the evidence store.
            keys: journal keys: the first seals markers, each of them opens outcomes.
            closed_before_ms: generations that ended before, by the time of the event that ended them.
            now_ms: what time it is, for the markers.
            captures_only: erase content and keep chain, outcome and receipt.
            receipts: erase receipts too.
        """
        if not keys:
            raise ValueError("at least one journal key is needed")
        self._store, self._keys = store, tuple(keys)
        self._before, self._now = closed_before_ms, now_ms
        self._captures_only, self._receipts = captures_only, receipts

    def stems(self) -> Iterator[Stem]:
        """Every session of which something is to be erased, or may not be."""
        for folder in self._store.folders(SESSIONS):
            found = self._look(folder.rpartition("/")[2])
            if found.ended or found.left or found.payloads:
                yield found

    def mark(self, ended: Ended) -> None:
        """Seal what stays; before anything is erased.

        Raises:
            IntegrityError: another marker stands there.
        """
        life = (ended.session_id, ended.generation)
        name, domain = (
            (erased_name(*life), domain_erased(*life))
            if self._captures_only
            else (pruned_name(*life), domain_pruned(*life))
        )
        payload = {
            "session_id": ended.session_id,
            "generation": ended.generation,
            "status": ended.status,
            "mode": ended.mode,
            "closed_at": ended.closed_ms,
            "erased_at": self._now,
        }
        try:
            self._store.create(name, seal(self._keys[0], domain, 0, payload))
        except ObjectExists:
            # An earlier prune's, at another time; what it says of the session must hold.
            standing = self._open(name, domain)
            if {**standing, "erased_at": 0} != {**payload, "erased_at": 0}:
                raise

    def erase(self, names: Sequence[str]) -> int:
        """Erase objects; returns how many of them were there."""
        return sum(self._store.delete(name) for name in names)

    # -- looking ---------------------------------------------------------------------------------------

    def _look(self, stem: str) -> Stem:
        found, stays = Stem(stem), False
        generations = [name.rpartition("/")[2] for name in self._store.folders(lives_prefix(stem))]
        generations = [name for name in generations if name != PAYLOADS]
        for generation in generations:
            try:
                ended = self._ended(stem, generation)
            except (EvidenceError, IntegrityError) as error:
                found.left.append(Left(stem, printable(generation), printable(str(error), 200)))
                continue
            if ended is None:
                stays = True
            elif ended.names:
                found.ended.append(ended)
        if generations and not found.left and not stays:
            found.payloads = self._store.list(f"{lives_prefix(stem)}/{PAYLOADS}")
        return found

    def _ended(self, stem: str, generation: str) -> Ended | None:
        """A generation that ended before the time; None for any other.

        Raises:
            EvidenceError, IntegrityError: what stands there is not what a session or a prune has written.
        """
        prefix = f"{lives_prefix(stem)}/{check_generation(generation)}"
        names = [name for name in self._store.list(prefix) if is_evidence(name.removeprefix(f"{prefix}/"))]
        marked = f"{prefix}/{PRUNED}" in names
        if not marked and f"{prefix}/{OUTCOME}" not in names:
            return None
        said = self._said(stem, generation, marked=marked)
        closed_ms = said["closed_at"] if marked else self._closed_ms(said["session_id"], generation, names)
        if type(closed_ms) is not int or not 0 <= closed_ms <= MAX_INTEGER:
            raise EvidenceError("nothing tells when it ended")
        if closed_ms >= self._before:
            return None
        return Ended(
            session_id=said["session_id"],
            generation=generation,
            status=str(said.get("status")),
            mode=str(said.get("mode")),
            closed_ms=closed_ms,
            content=self._content(prefix),
            names=tuple(name for name in names if self._goes(name.removeprefix(f"{prefix}/"))),
        )

    def _goes(self, name: str) -> bool:
        if self._captures_only:
            return name == TRAJECTORY or name.startswith(f"{CAPTURES}/")
        return name != PRUNED and (name != RECEIPT or self._receipts)

    def _said(self, stem: str, generation: str, *, marked: bool) -> dict[str, Any]:
        """The authentic outcome or marker of a generation, which names the session whose folder this is."""
        name = f"{lives_prefix(stem)}/{generation}/{PRUNED if marked else OUTCOME}"
        claimed = parse_envelope(self._store.read(name)).payload
        session_id = check_session_id(claimed.get("session_id") if isinstance(claimed, dict) else None)
        if session_stem(session_id) != stem:
            raise EvidenceError("its outcome is of another session")
        if marked:
            return self._open(pruned_name(session_id, generation), domain_pruned(session_id, generation))
        return self._open(outcome_name(session_id, generation), domain_outcome(session_id, generation))

    def _closed_ms(self, session_id: str, generation: str, names: Sequence[str]) -> Any:
        """When a generation ended: the time of the event that says so, else of its last event."""
        prefix = session_prefix(session_id, generation)
        for name in names:
            if name.startswith(f"{prefix}/{LIFECYCLE}/"):
                event = self._open(name, domain_lifecycle(session_id, generation), number_of(name))["event"]
                if event["payload"].get("action") in ENDINGS:
                    return event["time"]
        segments = sorted(name for name in names if name.startswith(f"{prefix}/{JOURNAL}/"))
        if not segments:
            return None
        last = self._store.read(segments[-1]).removesuffix(b"\n").rpartition(b"\n")[2]
        return parse_envelope(last).payload["event"]["time"]

    def _content(self, prefix: str) -> str | None:
        try:
            payload = parse_envelope(self._store.read(f"{prefix}/metadata.json")).payload
            return str(payload["content"])
        except (ObjectMissing, EvidenceError, LookupError, TypeError):
            return None

    def _open(self, name: str, domain: str, index: int = 0) -> dict[str, Any]:
        payload = open_envelope(self._store.read(name), keys=self._keys, domain=domain, index=index)
        if not isinstance(payload, dict):
            raise EvidenceError(f"{printable(name.rpartition('/')[2])} holds no object")
        return payload
