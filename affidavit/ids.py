"""Ids that the product makes where Temporal does not."""

from __future__ import annotations

import secrets
import time
import uuid
from typing import Final

KEYED_SESSIONS: Final = uuid.UUID("6f0d1a7e-6b1f-5d0c-9a4e-3f6c2b7d8e91")
"""The namespace of session ids that are made from a caller's key; other languages use the same one."""


def session_id_for(key: str) -> str:
    """The session id that belongs to a key of the caller's, such as the number of a ticket: always the same one.

    It is the UUIDv5 (RFC 9562) of the key's UTF-8 in the namespace `KEYED_SESSIONS`. So a runtime that is started again
    for the same work comes back to its session, and the key itself does not show in the id. That is no secret: whoever
    can guess the key can compute the id.

    Raises:
        ValueError: the key is empty.
    """
    if not key:
        raise ValueError("the key of a session is empty")
    return str(uuid.uuid5(KEYED_SESSIONS, key))


def new_session_id() -> str:
    """A fresh UUIDv7 (RFC 9562), lower case: 48 bits of epoch milliseconds, then random bits."""
    value = int(time.time() * 1000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
