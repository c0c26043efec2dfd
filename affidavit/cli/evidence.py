"""Finding a session's evidence in a data folder of the embedded mode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affidavit.cli.output import CHOOSE, Code, CommandError, plain
from affidavit.evidence.audit import SESSIONS
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import domain_outcome, open_envelope, parse_envelope
from affidavit.evidence.keys import JOURNAL_KEY_FILE, PUBLIC_FILE, read_secret_file
from affidavit.evidence.layout import JOURNAL, METADATA, OUTCOME, RECEIPT, check_generation, session_prefix
from affidavit.evidence.scalars import BadSessionId, check_session_id
from affidavit.evidence.text import printable

STORE = "evidence"
KEYS = "keys"
BUS = "bus.sqlite"


@dataclass(frozen=True, slots=True)
class Life:
    """One generation of a session as it lies in a data folder."""

    data_dir: Path
    session_id: str
    generation: str

    @property
    def store(self) -> Path:
        """Root of the evidence store."""
        return self.data_dir / STORE

    @property
    def folder(self) -> Path:
        """Folder of this generation."""
        return self.store / session_prefix(self.session_id, self.generation)

    @property
    def public_keys(self) -> Path:
        """The signer's public keys, as the embedded mode keeps them."""
        return self.data_dir / KEYS / PUBLIC_FILE

    def opened_at(self) -> int:
        """Epoch milliseconds of the opening event; 0 where it cannot be read. Only orders generations."""
        try:
            with (self.folder / JOURNAL / f"{0:012d}.ndjson").open("rb") as file:
                time = parse_envelope(file.readline()).payload["event"]["time"]
        except (OSError, EvidenceError, KeyError, TypeError):
            return 0
        return time if isinstance(time, int) else 0

    def outcome(self) -> dict[str, Any] | None:
        """The sealed outcome; its MAC is checked where the data folder has the journal key."""
        try:
            data = (self.folder / OUTCOME).read_bytes()
        except FileNotFoundError:
            return None
        if keys := self.journal_keys():
            domain = domain_outcome(self.session_id, self.generation)
            payload = open_envelope(data, keys=keys, domain=domain, index=None)
        else:
            payload = parse_envelope(data).payload
        return payload if isinstance(payload, dict) else None

    def journal_keys(self) -> list[bytes]:
        """The journal key, where the data folder has it."""
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


def checked_session(session_id: str) -> str:
    """The id, if it is one; a bad one is bad usage."""
    try:
        return check_session_id(session_id)
    except BadSessionId as error:
        raise CommandError(str(error), Code.USAGE) from None


def find(session_id: str, generation: str | None, data_dirs: Iterable[Path]) -> Life | None:
    """The generation that was asked for, or the latest, in the first data folder that has any."""
    for data_dir in data_dirs:
        parent = (data_dir / STORE / session_prefix(session_id, "x")).parent
        lives = [
            Life(data_dir, session_id, folder.name)
            for folder in (parent.iterdir() if parent.is_dir() else ())
            if folder.is_dir() and generation in (None, folder.name) and _is_generation(folder.name)
        ]
        if lives:
            return max(lives, key=lambda life: (life.opened_at(), life.generation))
    return None


def found(session_id: str, generation: str | None, data_dir: Path) -> Life:
    """`find`, or the error that says where there is nothing."""
    life = find(checked_session(session_id), generation, [data_dir])
    if life is None:
        which = f"generation {printable(generation)} of " if generation else ""
        raise CommandError(
            f"no evidence of {which}session {printable(session_id)} in {printable(plain(data_dir), 200)} {CHOOSE}"
        )
    return life


def lives_in(folder: Path) -> list[Path]:
    """Folders of generations: a folder that is one, else those of a session's folder, a store or a data folder."""
    if _is_life(folder):
        return [folder]
    for pattern in ("*", "sessions/*/*", f"{STORE}/sessions/*/*", "*/*"):
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


def _is_generation(name: str) -> bool:
    try:
        check_generation(name)
    except EvidenceError:
        return False
    return True
