"""Facts about characters: what counts as white space, and how foreign text is shown safely.

Standard library only; used by the token estimate, the embedder and every error message that quotes input.
"""

from __future__ import annotations

from typing import Final

WHITE_SPACE: Final[frozenset[str]] = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""The 25 characters with the Unicode property White_Space (PropList.txt).

Not `str.isspace`, which also takes U+001C-U+001F.
"""

_UNSAFE: Final[frozenset[int]] = frozenset(
    [
        *range(0x20),  # C0
        *range(0x7F, 0xA0),  # DEL and C1
        0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # bidi controls
        0x2028, 0x2029,  # would break a one-line message
    ]
)  # fmt: skip


def printable(text: str, limit: int = 64) -> str:
    r"""Foreign text as it may stand in a message, a log line or a terminal.

    Args:
        text: anything, lone surrogates included.
        limit: the greatest length of the result, in characters (at least 1).

    Returns:
        `text` with control characters (C0, DEL, C1), line separators, bidi controls and lone surrogates as
        `\xNN` or `\uNNNN`; what does not fit is cut, never inside an escape, and ends in an ellipsis.
    """
    pieces = [_shown(character) for character in text[: limit + 1]]
    if len(pieces) <= limit and sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    room = limit - 1
    kept: list[str] = []
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + "…"


def _shown(character: str) -> str:
    code = ord(character)
    if code in _UNSAFE or 0xD800 <= code <= 0xDFFF:
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character
