"""A validation's first finding as one line that is safe to show."""

from __future__ import annotations

from pydantic import ValidationError

from affidavit.evidence.text import printable

MESSAGE_CHARS = 160


def first_error(error: ValidationError, *, without: object = None) -> str:
    """`path: what is wrong`; foreign keys in the path are escaped and cut.

    Args:
        without: a part to leave out of the path, such as the tag of a discriminated union.
    """
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part) for part in first["loc"] if part != without)
    message = printable(first["msg"], MESSAGE_CHARS)
    return f"{printable(path)}: {message}" if path else message
