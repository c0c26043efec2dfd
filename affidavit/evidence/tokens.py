"""An estimate of tokens for texts whose provider named no number (formats.md section 1).

A run of L ASCII alphanumerics costs ceil(L/4), white space nothing, every other character 1. It runs in workflow
code on texts of megabytes, so each step below is one pass in C: no loop in Python sees a character.
"""

from __future__ import annotations

import json
import string
from typing import Any, Final

from affidavit.evidence.text import WHITE_SPACE

_ASCII: Final = bytes(range(0x80))
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
_WORD: Final = (string.ascii_letters + string.digits).encode()
_SPACE: Final = "".join(character for character in WHITE_SPACE if character.isascii()).encode()

# Each byte of UTF-8 as its part in the estimate: of a run, white space, or the first byte of what costs 1.
_CLASSES: Final = bytes(ord("a") if byte in _WORD else ord(" ") if byte in _SPACE else ord(".") for byte in range(256))


def approx_tokens(text: str) -> int:
    """The estimate for a text; a lone surrogate is one character and costs 1."""
    data = text.encode("utf-8", "replace")  # a lone surrogate becomes "?", which costs 1 as well
    classes = data.translate(_CLASSES, _CONTINUATION)
    # Whole fours, from the left, leave each run a rest of at most three: one more token for each rest. Rests of
    # 1, 2, 3 characters are counted as their characters less the pairs and triples in them: 1-0-0, 2-1-0, 3-1-1.
    rests = classes.replace(b"aaaa", b"")
    fours = (len(classes) - len(rests)) // 4
    tokens = fours + len(rests) - rests.count(b" ") - rests.count(b"aa") - rests.count(b"aaa")
    return tokens if len(data) == len(classes) else tokens - _wide_spaces(data)


def _wide_spaces(data: bytes) -> int:
    """White space beyond ASCII in a text's UTF-8. There `str.split` has the same idea of it as Unicode."""
    wide = data.translate(None, _ASCII).decode()
    return len(wide) - sum(map(len, wide.split()))


def approx_tokens_json(value: Any) -> int:
    """The estimate for a JSON value: that of its compact text, with non-ASCII characters as they are."""
    return approx_tokens(json.dumps(value, ensure_ascii=False, check_circular=False, separators=(",", ":")))
