"""Scalars that cross the product's boundary: integers, times, digests, session ids (formats.md section 1)."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from typing import Final

from affidavit.evidence.errors import EvidenceError

MAX_INTEGER: Final = 2**53 - 1
"""The largest counter, sequence or time: what every JSON reader holds exactly."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z in epoch milliseconds: the last time whose mirror has four year digits."""

_EPOCH: Final = datetime(1970, 1, 1)  # naive on purpose: `isoformat` then writes no offset
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_UUID7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_BAD_ID_BYTE: Final = re.compile(r"[^\x21-\x7e]")


class BadSessionId(EvidenceError):
    """Not a session id; the message names the violated rule."""


class BadTime(EvidenceError):
    """Not a time that has a mirror: outside 1970-9999."""


def iso_ms(ms: int) -> str:
    """Epoch milliseconds as `YYYY-MM-DDTHH:MM:SS.mmmZ` (UTC).

    Raises:
        BadTime: negative, or after the year 9999.
    """
    if not 0 <= ms <= MAX_TIME_MS:
        raise BadTime("time is outside the years 1970 to 9999")
    return f"{(_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec='milliseconds')}Z"


def sha256_hex(data: bytes) -> str:
    """SHA-256 of bytes as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def session_stem(session_id: str) -> str:
    """The name of a session's directory: the first 32 hex digits of SHA-256 of its id."""
    return sha256_hex(session_id.encode())[:32]


def check_session_id(session_id: object) -> str:
    """The id itself if it is one: 1-128 bytes, each 0x21-0x7e, no `#`.

    Raises:
        BadSessionId: with the rule that is violated; the id is not repeated.
    """
    if not isinstance(session_id, str):
        raise BadSessionId("session id must be a string")
    if not session_id:
        raise BadSessionId("session id must not be empty")
    if _BAD_ID_BYTE.search(session_id):
        raise BadSessionId("session id must consist of bytes 0x21-0x7e")
    if len(session_id) > 128:  # characters are bytes by now
        raise BadSessionId("session id must be at most 128 bytes")
    if "#" in session_id:  # it separates id and generation in a MAC domain
        raise BadSessionId("session id must not contain '#'")
    return session_id


def is_digest(x: object) -> bool:
    """Whether `x` is a SHA-256 in text form: 64 lower-case hex digits."""
    return isinstance(x, str) and _DIGEST.fullmatch(x) is not None


def is_uuid7(x: object) -> bool:
    """Whether `x` is a UUID of version 7 and RFC 9562's variant, in lower case with hyphens."""
    return isinstance(x, str) and _UUID7.fullmatch(x) is not None
