"""Ids that the product makes where Temporal does not."""

from __future__ import annotations

import secrets
import time
import uuid


def new_session_id() -> str:
    """A fresh UUIDv7 (RFC 9562), lower case: 48 bits of epoch milliseconds, then random bits."""
    value = int(time.time() * 1000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
