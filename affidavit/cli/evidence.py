"""Finding a session's evidence: in a data folder of the embedded mode, or in a store that was named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from affidavit.cli.output import CHOOSE, Code, CommandError, plain
from affidavit.evidence.audit import AuditedFolder
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import domain_outcome, domain_pruned, open_envelope, parse_envelope
from affidavit.evidence.keys import JOURNAL_KEY_FILE, PUBLIC_FILE, read_secret_file
from affidavit.evidence.layout import (
    JOURNAL,
    METADATA,
    OUTCOME,
    PRUNED,
    RECEIPT,
    SESSIONS,
    is_generation,
    lives_prefix,
    session_prefix,
)
from affidavit.evidence.scalars import BadSessionId, check_session_id, session_stem
from affidavit.evidence.sources import lines
from affidavit.evidence.text import printable
from affidavit.pruned import Pruned
from affidavit.stores.base import STORE_ID_NAME
from affidavit.stores.folder import folder_of
from affidavit.stores.place import Place
from affidavit.validation import first_error

STORE = "evidence"
KEYS = "keys"
BUS = "bus.sqlite"


@dataclass(frozen=True, slots=True)
class Life:
    """One generation of a session as it lies in a data folder, or in a store."""

    data_dir: Path | None
    """None where a store was named: then there are no keys beside it."""
    store: Place
    """Root of the evidence store."""
    session_id: str
    generation: str

    @property
    def folder(self) -> str:
        """Folder of this generation, under the store as it was given."""
        return f"{self.store}/{session_prefix(self.session_id, self.generation)}"

    @property
    def shown_folder(self) -> str:
        """The same, for a reader."""
        return f"{plain(self.store)}/{session_prefix(self.session_id, self.generation)}"

    @property
    def evidence(self) -> AuditedFolder:
        """What lies in that folder."""
        return folder_of(self.store).below(*session_prefix(self.session_id, self.generation).split("/"))

    @property
    def public_keys(self) -> Path:
        """The signer's public keys, as the embedded mode keeps them."""
        assert self.data_dir is not None
        return self.data_dir / KEYS / PUBLIC_FILE

    def opened_at(self) -> int:
        """Epoch milliseconds of the opening event, of a pruned life of its end; 0 where it cannot be read.

        Only orders generations, which follow each other.
        """
        try:
            opening = lines(self.evidence.read(f"{JOURNAL}/{0:012d}.ndjson"))[0]
            time = parse_envelope(opening).payload["event"]["time"]
        except FileNotFoundError:
            time = self._pruned_at()
        except (OSError, EvidenceError, LookupError, TypeError):
            return 0
        return time if isinstance(time, int) else 0

    def outcome(self) -> dict[str, Any] | None:
        """The sealed outcome; its MAC is checked where the data folder has the journal key."""
        return self._opened(OUTCOME, domain_outcome(self.session_id, self.generation))

    def pruned(self) -> Pruned | None:
        """What pruning has left; None of a life that was not pruned. Its MAC is checked like that of the outcome.

        Raises:
            CommandError: it is none that pruning writes.
        """
        payload = self._opened(PRUNED, domain_pruned(self.session_id, self.generation))
        try:
            return None if payload is None else Pruned.model_validate(payload)
        except ValidationError as error:
            raise CommandError(f"{PRUNED} is no note of a prune: {first_error(error)}", Code.USAGE) from None

    def _opened(self, name: str, domain: str) -> dict[str, Any] | None:
        try:
            data = self.evidence.read(name)
        except FileNotFoundError:
            return None
        if keys := self.journal_keys():
            payload = open_envelope(data, keys=keys, domain=domain, index=None)
        else:
            payload = parse_envelope(data).payload
        return payload if isinstance(payload, dict) else None

    def _pruned_at(self) -> int:
        try:
            pruned = self.pruned()
        except (OSError, EvidenceError, CommandError):
            return 0
        return 0 if pruned is None else pruned.closed_at

    def journal_keys(self) -> list[bytes]:
        """The journal key, where the data folder has it."""
        if self.data_dir is None:
            return []
        key = self.data_dir / KEYS / JOURNAL_KEY_FILE
        return [read_secret_file(key)] if key.exists() else []


def store_in(data_dir: Path) -> Path:
    """The evidence store of a data folder, or the folder itself where it is one.

    Raises:
        CommandError: it is neither.
    """
    for folder in (data_dir / STORE, data_dir):
        if folder.is_dir() and (folder != data_dir or (folder / SESSIONS).is_dir()):
            return folder
    raise CommandError(f"no evidence in {printable(plain(data_dir), 200)} {CHOOSE}", Code.USAGE)


def store_at(place: Place) -> Place:
    """A place that was named as an evidence store, where it is one. A bucket says so itself when it is opened.

    Raises:
        CommandError: a directory that is missing, or that no worker has used as its store.
    """
    if isinstance(place, Path) and not ((place / SESSIONS).is_dir() or (place / STORE_ID_NAME).is_file()):
        raise CommandError(f"no evidence store in {printable(plain(place), 200)} (--store)", Code.USAGE)
    return place


def checked_session(session_id: str) -> str:
    """The id, if it is one; a bad one is bad usage."""
    try:
        return check_session_id(session_id)
    except BadSessionId as error:
        raise CommandError(str(error), Code.USAGE) from None


def find(session_id: str, generation: str | None, data_dirs: Iterable[Path], store: Place | None = None) -> Life | None:
    """The generation that was asked for, or the latest: in a store, or in the first data folder that has any."""
    places: Iterable[tuple[Path | None, Place]] = (
        [(None, store)] if store is not None else ((data_dir, data_dir / STORE) for data_dir in data_dirs)
    )
    for data_dir, place in places:
        lives = [
            Life(data_dir, place, session_id, name)
            for name, is_folder in folder_of(place).entries(lives_prefix(session_stem(session_id)))
            if is_folder and generation in (None, name) and is_generation(name)
        ]
        if lives:
            return max(lives, key=lambda life: (life.opened_at(), life.generation))
    return None


def found(session_id: str, generation: str | None, data_dir: Path, store: Place | None = None) -> Life:
    """`find`, or the error that says where there is nothing."""
    life = find(checked_session(session_id), generation, [data_dir], store)
    if life is None:
        which = f"generation {printable(generation)} of " if generation else ""
        where = nowhere(data_dir, store)
        raise CommandError(f"no evidence of {which}session {printable(session_id)} in {where}")
    return life


def nowhere(data_dir: Path, store: Place | None) -> str:
    """Where there was nothing, for an error, and what chooses another place."""
    if store is not None:
        return printable(plain(store), 200)
    return f"{printable(plain(data_dir), 200)} {CHOOSE}"


def lives_in(folder: Path) -> list[Path]:
    """Folders of generations: a folder that is one, else those of a session's folder, a store or a data folder."""
    if _is_life(folder):
        return [folder]
    for pattern in ("*", f"{SESSIONS}/*/*", f"{STORE}/{SESSIONS}/*/*", "*/*"):
        if lives := sorted(path for path in folder.glob(pattern) if _is_life(path)):
            return lives
    return []


def session_in(folder: Path) -> str:
    """The session id that a generation's metadata states, unchecked and safe to show."""
    try:
        return f"session {printable(str(parse_envelope((folder / METADATA).read_bytes()).payload['session_id']), 40)}"
    except (OSError, EvidenceError, KeyError, TypeError):
        return "no metadata"


def _is_life(folder: Path) -> bool:
    return (folder / JOURNAL).is_dir() or any((folder / name).is_file() for name in (RECEIPT, METADATA))
