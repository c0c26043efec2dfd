"""Documents that are almost right: what parsers of foreign bytes are fuzzed with (hypothesis strategies)."""

from __future__ import annotations

import copy
import json
import os
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

EXAMPLES: Final = int(os.environ.get("AFFIDAVIT_TEST_FUZZ", "60"))
"""Examples for each parser; a night's run sets thousands."""

CHANCE: Final = "AFFIDAVIT_TEST_FUZZ" in os.environ
"""Without the variable every run makes the same examples, so that a change is judged and not the day's luck."""

fuzzed = settings(max_examples=EXAMPLES, deadline=None, derandomize=not CHANCE)

TOKENS: Final = (
    b"null",
    b"true",
    b"-0",
    b"1e999",
    b"1.0",
    b"9007199254740993",
    b"9" * 5_000,
    b"NaN",
    b'"\\ud800"',
    b'"\\u0000"',
    b"\xed\xa0\x80",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\x00",
    b"[" * 200,
    b'{"a":' * 200,
    b"]}",
    b'"',
    b"\\",
    b"\n",
    b"\r\n\r\n",
    b",",
    b'{"a":1,"a":2}',
)

_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53 - 1, 2**53, -(2**53), 10**21, 10**400, 2**63, 2**64]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.sampled_from(["", "#", "../x", "a" * 300, "\ud800", "\x1b[31m", "0" * 64, "2026-01-01T00:00:00.000Z", "AA=="]),
)
values = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("kind"), inner, max_size=3)
    ),
    max_leaves=6,
)
"""JSON values, the awkward ones among them."""

deep = st.integers(120, 700).map(lambda depth: json.loads("[" * depth + "]" * depth))


@st.composite
def bent(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` after a few edits of its bytes."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 12)))
        match draw(st.sampled_from(["replace", "insert", "cut", "end", "double"])):
            case "replace":
                data = data[:at] + draw(st.binary(min_size=1, max_size=3)) + data[to:]
            case "insert":
                data = data[:at] + draw(st.sampled_from(TOKENS)) + data[at:]
            case "cut":
                data = data[:at] + data[to:]
            case "end":
                data = data[:at]
            case _:
                data = data[:to] + data[at:]
    return data


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with a few of its values replaced, removed, doubled or added to."""
    root = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(_places(root)))
        match draw(st.sampled_from(["value", "value", "remove", "add", "move"])):
            case "value":
                holder[key] = draw(values | deep)
            case "remove" if holder is not root:
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(st.text(max_size=6) | st.sampled_from(["extra", "kind", "affidavit"]))] = draw(values)
            case "add" if holder is not root:
                holder.insert(key, draw(values))
            case _:
                other, elsewhere = draw(st.sampled_from(_places(root)))
                holder[key] = copy.deepcopy(other[elsewhere])
    return root[0]


@st.composite
def bad_json(draw: st.DrawFn, document: Any) -> bytes:
    """The bytes of a document that is bent, altered, or both."""
    if draw(st.booleans()):
        document = draw(altered(document))
    data = json.dumps(document).encode()
    return draw(bent(data)) if draw(st.booleans()) else data


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as its holder and the key or index in it."""
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        holder = pending.pop()
        keys: list[Any] = []
        if isinstance(holder, dict):
            keys = list(holder)
        elif isinstance(holder, list):
            keys = list(range(len(holder)))
        found += [(holder, key) for key in keys]
        pending += [holder[key] for key in keys]
    return found
