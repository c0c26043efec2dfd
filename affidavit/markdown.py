"""Foreign text on the pages of the Temporal Web UI, which renders summaries and details as Markdown."""

from __future__ import annotations

from affidavit.evidence.text import printable

# Neither has an escape that holds everywhere: a backtick ends a code span, a bar ends a cell even inside of one.
_HARMLESS = str.maketrans({"`": "'", "|": "¦"})


def literal(text: str, limit: int = 64) -> str:
    """Foreign text as a code span, in which no link, image or HTML is anything but characters; also in a table's cell.

    Args:
        text: anything.
        limit: the greatest number of characters shown, without the two of the span.
    """
    shown = printable(text, limit).translate(_HARMLESS)
    return f"`{shown or ' '}`"
