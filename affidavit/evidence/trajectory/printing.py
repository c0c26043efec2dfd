"""The bytes of a trajectory: JCS key order and numbers, two-space indent, UTF-8, a final newline (formats.md 7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final, Protocol

from affidavit.evidence.canonical import LoneSurrogate, canonicalize

_TEXT: Final = json.JSONEncoder(ensure_ascii=False)
_HELD: Final = 1 << 16


class Sink(Protocol):
    """Where the bytes go: a file opened for writing in binary, or the like."""

    def write(self, data: bytes, /) -> object:
        """Take all of `data`."""


class Printer:
    """Prints one document into a sink, piece by piece; an iterator stands for a list that nobody holds.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self._held: list[str] = []
        self._length = 0
        self.size = 0

    def document(self, value: Any) -> str:
        """Print a value and a final newline; returns the SHA-256 of all bytes, in hex.

        Raises:
            CanonicalError: a value in it has no canonical form; what was written so far is no document.
        """
        self._value(value, "\n")
        self._put("\n")
        self._flush()
        return self._hash.hexdigest()

    def _value(self, value: Any, newline: str) -> None:
        # Depth is bounded by what strict reading and captures let in.
        if isinstance(value, str):
            self._put(_TEXT.encode(value))
        elif isinstance(value, dict) and value:
            inner, before = newline + "  ", "{"
            for key in _ordered(value):
                self._put(f"{before}{inner}{_TEXT.encode(key)}: ")
                self._value(value[key], inner)
                before = ","
            self._put(newline + "}")
        elif isinstance(value, (list, Iterator)):
            inner, before = newline + "  ", "["
            for item in value:
                self._put(before + inner)
                self._value(item, inner)
                before = ","
            self._put("[]" if before == "[" else newline + "]")
        else:
            self._put(canonicalize(value).decode())

    def _put(self, text: str) -> None:
        self._held.append(text)
        self._length += len(text)
        if self._length >= _HELD:
            self._flush()

    def _flush(self) -> None:
        try:
            data = "".join(self._held).encode()
        except UnicodeEncodeError:
            raise LoneSurrogate("lone surrogate in a string") from None
        self._held.clear()
        self._length = 0
        self._hash.update(data)
        self.size += len(data)
        self._sink.write(data)


def _ordered(keys: dict[str, Any]) -> list[str]:
    """Keys by UTF-16 code unit, which differs from code point order beyond the basic plane (RFC 8785, 3.2.3)."""
    if "".join(keys).isascii():
        return sorted(keys)
    return sorted(keys, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
