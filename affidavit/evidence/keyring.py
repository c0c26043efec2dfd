"""Keyrings: the public keys that an auditor trusts, and when (formats.md 6).

Which keyring to use is the auditor's policy and is always an explicit argument; a key that came along with the
evidence is not a trust anchor.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keys import is_small_order, key_id_of
from affidavit.evidence.scalars import MAX_INTEGER
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable

KEYRING_LIMIT: Final = 1 << 20
PUBLIC_KEY_BYTES: Final = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = ("not_before", "not_after", "revoked_at")
_RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")


class KeyringError(EvidenceError):
    """A keyring cannot be used."""


class MalformedKeyring(KeyringError):
    """Not a list of keys in the form of formats.md 6, nor one key as text."""


class MalformedKey(KeyringError):
    """A key is not 32 bytes in standard base64 (or, for a single key, hex)."""


class WeakKey(KeyringError):
    """A key is a small-order point, under which anybody can sign."""


class DuplicateRingKey(KeyringError):
    """The same key stands twice, so its validity would be ambiguous."""


class NotBase64(EvidenceError):
    """Text that is not the one standard, padded base64 form of its bytes."""


def decode_base64(text: str) -> bytes:
    """Bytes of standard padded base64; `NotBase64` unless they encode to the very same text again."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NotBase64("not standard base64") from None
    if base64.b64encode(data).decode() != text:
        raise NotBase64("base64 that does not re-encode to the same text")
    return data


@dataclass(frozen=True, slots=True)
class RingKey:
    """A trusted key and its limits, epoch milliseconds, both ends of the validity included."""

    public_key: bytes
    not_before: int | None = None
    not_after: int | None = None
    revoked_at: int | None = None
    key_id: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.public_key) != PUBLIC_KEY_BYTES:
            raise MalformedKey("a public key has 32 bytes")
        if is_small_order(self.public_key):
            raise WeakKey("a keyring key is a small-order point")
        object.__setattr__(self, "key_id", key_id_of(self.public_key))

    def within_validity(self, ms: int) -> bool:
        """Whether ``ms`` lies between not_before and not_after, revocation aside."""
        return (self.not_before or 0) <= ms and (self.not_after is None or ms <= self.not_after)

    def revoked(self, ms: int) -> bool:
        """Whether the key was revoked at or before ``ms``."""
        return self.revoked_at is not None and ms >= self.revoked_at

    def valid_at(self, ms: int) -> bool:
        """Whether a receipt issued at ``ms`` (epoch milliseconds) may bear this key's signature."""
        return self.within_validity(ms) and not self.revoked(ms)


class Keyring:
    """An immutable set of trusted keys."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[RingKey]) -> None:
        """Take the keys; `DuplicateRingKey` if one stands twice, `MalformedKeyring` if there is none."""
        self._keys: dict[str, RingKey] = {}
        for key in keys:
            if key.key_id in self._keys:
                raise DuplicateRingKey(f"key {key.key_id} stands twice in the keyring")
            self._keys[key.key_id] = key
        if not self._keys:
            raise MalformedKeyring("the keyring holds no key")

    @classmethod
    def parse(cls, data: bytes | str) -> Keyring:
        """Read a keyring: a JSON list, or one key as base64 or hex text.

        Args:
            data: at most 1 MiB; times are epoch milliseconds or RFC 3339 texts.

        Raises:
            KeyringError: a subclass says what is wrong with which entry.
            StrictJsonError: the list is not strict JSON.
        """
        raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
        text = raw.strip(b" \t\r\n")
        if not text.startswith(b"["):
            return cls([RingKey(_single_key(text))])
        entries = read_json(raw, max_bytes=KEYRING_LIMIT)
        return cls(_entry(entry, number) for number, entry in enumerate(entries, start=1))

    def find(self, key_id: str) -> RingKey | None:
        """The key with this id, if the ring holds it."""
        return self._keys.get(key_id)

    def __iter__(self) -> Iterator[RingKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"


def _single_key(text: bytes) -> bytes:
    try:
        key = text.decode("ascii")
        raw = bytes.fromhex(key) if re.fullmatch("[0-9a-fA-F]{64}", key) else decode_base64(key)
    except ValueError:
        raw = b""
    if len(raw) != PUBLIC_KEY_BYTES:
        raise MalformedKey("neither a JSON list of keys nor one key of 32 bytes as base64 or hex")
    return raw


def _entry(entry: Any, number: int) -> RingKey:
    if not isinstance(entry, dict):
        raise MalformedKeyring(f"keyring entry {number} is not an object")
    if unknown := entry.keys() - {"public_key_b64", *_TIMES}:
        raise MalformedKeyring(f"keyring entry {number} has an unknown key {printable(min(unknown))}")
    text = entry.get("public_key_b64")
    try:
        public_key = decode_base64(text) if isinstance(text, str) else b""
    except NotBase64 as error:
        raise MalformedKey(f"keyring entry {number}: public_key_b64 is {error}") from None
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise MalformedKey(f"keyring entry {number}: public_key_b64 is not a 32-byte key")
    times = {name: _time(entry[name], f"keyring entry {number}: {name}") for name in _TIMES if name in entry}
    if times.get("not_before", 0) > times.get("not_after", MAX_INTEGER):
        raise MalformedKeyring(f"keyring entry {number}: not_after is before not_before")
    return RingKey(public_key, **times)


def _time(value: Any, where: str) -> int:
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return value
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        try:
            moment = (datetime.fromisoformat(value) - _EPOCH) // timedelta(milliseconds=1)
        except (ValueError, OverflowError):
            moment = -1
        if moment >= 0:
            return moment
    raise MalformedKeyring(f"{where} is neither epoch milliseconds nor an RFC 3339 time")
