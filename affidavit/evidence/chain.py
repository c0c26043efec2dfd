"""The hash chain over a session's events (formats.md section 4).

`h0 = SHA-256("av-genesis" ‖ session id)`, `h_i = SHA-256(h_{i-1} ‖ JCS(event_i))`: one changed, missing, added
or reordered event changes every head after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError

_GENESIS_PREFIX: Final = b"av-genesis"


class BadHead(EvidenceError):
    """A chain head is not 32 bytes."""


def genesis(session_id: str) -> bytes:
    """The head before any event: 32 bytes. The id is taken as it is; who may use it is checked elsewhere."""
    return hashlib.sha256(_GENESIS_PREFIX + session_id.encode()).digest()


def extend(head: bytes, event: Mapping[str, Any]) -> bytes:
    """The head after one more event.

    Args:
        head: 32 bytes, of `genesis` or of the last `extend`.
        event: the event exactly as it is published.

    Returns:
        32 bytes.

    Raises:
        BadHead: `head` is of another length.
        CanonicalError: the event has no canonical form.
    """
    return extend_canonical(head, canonicalize(dict(event)))


def extend_canonical(head: bytes, event: bytes) -> bytes:
    """The same for an event in its canonical form, where that has been made already.

    Raises:
        BadHead: `head` is not of 32 bytes.
    """
    if len(head) != 32:
        raise BadHead(f"chain head of {len(head)} bytes, must be 32")
    return hashlib.sha256(head + event).digest()


def chain_head(session_id: str, events: Iterable[Mapping[str, Any]]) -> str:
    """The head over all events of a session in order, as 64 hex digits; raises as `extend`."""
    head = genesis(session_id)
    for event in events:
        head = extend(head, event)
    return head.hex()
