"""What a `pattern` of a custom event type may cost (pure; P9).

The worker's engine needs no more than text length x size of the compiled pattern, but compiles a counted repetition by
writing it out. The bound here is generous: it never says less than what comes of a pattern, and needs no
parser.
"""

from __future__ import annotations

import re
from math import prod
from typing import Final

PATTERN_CHARS: Final = 256
PATTERN_COST: Final = 3000
"""A match of a pattern that costs this takes some 20 microseconds a character."""
PATTERNS_COST: Final = 100_000
"""All patterns of a declaration together: they are compiled when a session is opened, in about a second."""

_COUNTED: Final = re.compile(r"\{([\s\d,]*)\}")
_OF_MORE: Final = tuple(")}*+?")
"""After these a repetition is of a group or of a repetition; after anything else of one character or class."""
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_WIDE: Final = re.compile(r"\\[dDwWsSpPxuU]|\(\?[a-zA-Z]*i")
_WIDE_PLAIN: Final = (".", "[^", "[:^", "&&", "--", "~~")
_WIDE_COST: Final = 10
"""What may be any of many Unicode characters is compiled to many more states than a letter."""
_COMMENTS: Final = re.compile(r"\(\?[a-zA-Z]*x")


def pattern_cost(pattern: str) -> int:
    """What a pattern costs, at least 1.

    Raises:
        ValueError: it is too long, costs too much, or has the flag x, under which it cannot be told.
    """
    if len(pattern) > PATTERN_CHARS:
        raise ValueError(f"a pattern of {len(pattern)} characters, at most {PATTERN_CHARS}")
    if _COMMENTS.search(pattern):
        raise ValueError("a pattern with the flag x is not taken")
    single, several = [1], [1]
    for counted in _COUNTED.finditer(pattern):
        times = max((int(number) for number in re.findall(r"\d+", counted[1])), default=1)
        of_more = pattern[: counted.start()].endswith(_OF_MORE)
        (several if of_more else single).append(max(times, 1))
    cost = (len(pattern) + sum(single)) * prod(several) * (_WIDE_COST if _is_wide(pattern) else 1)
    if cost > PATTERN_COST:
        raise ValueError("a pattern with too many counted repetitions")
    return cost


def _is_wide(pattern: str) -> bool:
    plain = _ESCAPE.sub("", pattern)
    return not pattern.isascii() or bool(_WIDE.search(pattern)) or any(text in plain for text in _WIDE_PLAIN)
