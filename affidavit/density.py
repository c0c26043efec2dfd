"""How many values a big message may hold: a workflow has two seconds to read it, on any machine.

Megabytes of text are read in no time, megabytes of tiny values are not. A message within `MESSAGE_BYTES` cannot
hold too many; a larger one is counted before it is parsed, by the session and by the client that sends it.
"""

from __future__ import annotations

import re

from affidavit.contract import MESSAGE_BYTES, MESSAGE_VALUES

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def too_dense(data: bytes, *, spare: int = 0) -> bool:
    """Whether a JSON text over `MESSAGE_BYTES` holds more than `MESSAGE_VALUES` values; never of a smaller one.

    Counted are commas and openings outside of strings, in passes in C that stop at the first clear answer.

    Args:
        data: the text as UTF-8.
        spare: values that are still to come in.
    """
    limit = MESSAGE_VALUES - spare
    if len(data) <= MESSAGE_BYTES or _count(data) <= limit:
        return False
    # A value has at most a key beside it, so more strings than twice the values settle it too.
    if data.count(b'"') - data.count(b'\\"') > 4 * MESSAGE_VALUES:
        return True
    return _count(_STRING.sub(b"", data)) > limit


def _count(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
