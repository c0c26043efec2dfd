"""Why there is no receipt in a session's evidence, for whoever looks for one (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import parse_envelope
from affidavit.evidence.layout import JOURNAL, OUTCOME, PRUNED
from affidavit.evidence.text import printable

_SEALED: Final = ("closed", "cancelled")


def why_no_receipt(session_id: str, read: Callable[[str], bytes]) -> str:
    """One line: why, and what gets one where anything does. Believes the outcome, whose MAC it does not check.

    Args:
        session_id: the session's.
        read: bytes of an object of its folder; `FileNotFoundError` if there is none.
    """
    session = f"session {printable(session_id)}"
    try:
        read(PRUNED)
    except FileNotFoundError:
        pass
    else:
        return f"{session} was pruned, its evidence was erased on purpose"
    try:
        outcome = parse_envelope(read(OUTCOME)).payload
    except FileNotFoundError:
        try:
            read(f"{JOURNAL}/{0:012d}.ndjson")
        except FileNotFoundError:
            return f"{session} has no receipt, and no journal"
        return f"{session} has no receipt: it has not ended; `affidavit close {printable(session_id)}` ends it"
    except EvidenceError:
        return f"{session} has no receipt, and its outcome cannot be read"
    status, mode = (outcome.get(name) for name in ("status", "mode")) if isinstance(outcome, dict) else (None, None)
    if status not in _SEALED:
        return f"{session} has no receipt and there will be none: it ended {printable(str(status), 40)}"
    if mode == "unsigned":
        return f"{session} has no receipt: it is unsigned; `affidavit promote {printable(session_id)}` gets one first"
    return f"{session} has no receipt, though it ended {status}: the evidence is not complete"
