"""Object names inside the evidence store (formats.md 5).

Names are relative POSIX strings. A session id never becomes part of one: only its stem, the first half of its SHA-256,
does (behaviours I7), so no id, however it is spelled, can reach outside its own folder.
"""

from __future__ import annotations

import re

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import check_session_id, session_stem
from affidavit.evidence.text import printable

PUBLIC_KEYS = "public.json"
"""Store-wide keyring with the signer's public keys."""

SESSIONS = "sessions"
"""Folder of everything that belongs to one session."""

METADATA = "metadata.json"
RECEIPT = "receipt.json"
OUTCOME = "outcome.json"
TRAJECTORY = "trajectory.json"
PROVENANCE = "trajectory.provenance.json"
JOURNAL = "journal"
CAPTURES = "captures"
LIFECYCLE = "lifecycle"

PRUNED = "pruned.json"
"""What stays of a generation that was pruned: that it lived, and how it ended (behaviours A4)."""
ERASED = "erased.json"
"""Says that the content of a generation was erased on purpose: its captures, and its trajectory if it had one."""

PAYLOADS = "payloads"
"""Folder beside a session's generations: big payloads that were kept out of Temporal's history, for all its lives."""

_NUMBER_DIGITS = 12
_GENERATION = re.compile(r"[0-9a-zA-Z-]{1,64}")
_EVIDENCE = re.compile(
    r"(metadata|receipt|outcome|trajectory|trajectory\.provenance|pruned|erased)\.json"
    r"|(journal|captures)/[0-9]{12}\.ndjson|lifecycle/[0-9]{12}\.json"
)


class BadObjectName(EvidenceError):
    """A generation or an index that cannot stand in an object name."""


def check_generation(generation: str) -> str:
    """Return ``generation`` if it is one plain word (a run id); raise `BadObjectName` otherwise."""
    if not isinstance(generation, str) or not _GENERATION.fullmatch(generation) or generation == PAYLOADS:
        raise BadObjectName(f"generation is not a run id: {printable(str(generation))}")
    return generation


def is_generation(name: str) -> bool:
    """Whether a folder's name is one that a generation can have."""
    try:
        check_generation(name)
    except BadObjectName:
        return False
    return True


def session_prefix(session_id: str, generation: str) -> str:
    """Folder of one life of a session: ``sessions/<stem>/<generation>``, without a final slash."""
    return f"{SESSIONS}/{session_stem(check_session_id(session_id))}/{check_generation(generation)}"


def metadata_name(session_id: str, generation: str) -> str:
    """The metadata envelope."""
    return f"{session_prefix(session_id, generation)}/{METADATA}"


def journal_name(session_id: str, generation: str, first_index: int) -> str:
    """The journal segment whose first record has the index ``first_index``."""
    return f"{session_prefix(session_id, generation)}/{JOURNAL}/{_number(first_index)}.ndjson"


def captures_name(session_id: str, generation: str, first_index: int) -> str:
    """The captures segment that goes with the journal segment of the same number."""
    return f"{session_prefix(session_id, generation)}/{CAPTURES}/{_number(first_index)}.ndjson"


def lifecycle_name(session_id: str, generation: str, sequence: int) -> str:
    """The envelope of the lifecycle event numbered ``sequence``."""
    return f"{session_prefix(session_id, generation)}/{LIFECYCLE}/{_number(sequence)}.json"


def receipt_name(session_id: str, generation: str) -> str:
    """The receipt."""
    return f"{session_prefix(session_id, generation)}/{RECEIPT}"


def outcome_name(session_id: str, generation: str) -> str:
    """The sealed outcome envelope."""
    return f"{session_prefix(session_id, generation)}/{OUTCOME}"


def trajectory_name(session_id: str, generation: str) -> str:
    """The ATIF trajectory."""
    return f"{session_prefix(session_id, generation)}/{TRAJECTORY}"


def provenance_name(session_id: str, generation: str) -> str:
    """The envelope that ties the trajectory to the chain."""
    return f"{session_prefix(session_id, generation)}/{PROVENANCE}"


def pruned_name(session_id: str, generation: str) -> str:
    """The envelope that stays of a pruned generation."""
    return f"{session_prefix(session_id, generation)}/{PRUNED}"


def erased_name(session_id: str, generation: str) -> str:
    """The envelope that says that content was erased."""
    return f"{session_prefix(session_id, generation)}/{ERASED}"


def lives_prefix(stem: str) -> str:
    """Folder of all lives of a session, by its stem: its generations, and `PAYLOADS`."""
    return f"{SESSIONS}/{stem}"


def payload_name(stem: str, sha256: str) -> str:
    """A payload kept out of the history; ``stem`` is the session's, ``sha256`` the digest of the object's bytes."""
    return f"{lives_prefix(stem)}/{PAYLOADS}/{sha256}.bin"


def is_evidence(relative: str) -> bool:
    """Whether a name relative to the session's folder is one that this layout defines."""
    return _EVIDENCE.fullmatch(relative) is not None


def number_of(name: str) -> int:
    """First index (journal, captures) or sequence (lifecycle) that a numbered object's name states.

    Raises:
        BadObjectName: the last part of ``name`` is not twelve digits and an extension.
    """
    stem = name.rpartition("/")[2].partition(".")[0]
    if not (len(stem) == _NUMBER_DIGITS and stem.isascii() and stem.isdigit()):
        raise BadObjectName(f"object name has no number: {printable(name)}")
    return int(stem)


def _number(value: int) -> str:
    if type(value) is not int or not 0 <= value < 10**_NUMBER_DIGITS:
        raise BadObjectName("an index in an object name has one to twelve digits")
    return f"{value:0{_NUMBER_DIGITS}d}"
