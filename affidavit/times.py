"""Times as a runtime claims them."""

from __future__ import annotations

from datetime import datetime


def claimed_ms(value: str | int) -> int:
    """Epoch milliseconds of an RFC 3339 text with an offset, or of epoch milliseconds as they are."""
    if isinstance(value, int):
        return value
    return int(datetime.fromisoformat(value).timestamp() * 1000)
