"""Payload encryption (behaviours I6): what Temporal and the evidence store's payload folder keep is cipher text.

Each payload is sealed whole, its metadata included, with AES-256-GCM:

    metadata   encoding = affidavit/aes-256-gcm, affidavit-key-id = id of the key
    data       96-bit random nonce | cipher text of the serialized Payload | 128-bit tag

The tag also covers encoding and key id. Payloads that are not encrypted are read as they are, so that encryption can
be switched on while sessions run; a codec without keys writes plain payloads and opens none.

A payload is opened *before* a workflow runs, and an exception there fails its task for ever. So one that cannot be
opened comes as unavailable (see `affidavit.offloading`), and the log names its key.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, TypeVar

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from affidavit.evidence.text import printable
from affidavit.offloading import UNKNOWN_KEY, unavailable

logger = logging.getLogger(__name__)
# A command, or a program that configures no logging, is told by the error alone; a worker's log has this line too.
logger.addHandler(logging.NullHandler())

T = TypeVar("T")

ENCODING: Final = b"affidavit/aes-256-gcm"
KEY_ID: Final = "affidavit-key-id"

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16

THREAD_BYTES: Final = 1024 * 1024
"""A payload over this size goes to a thread: a worker's loop must not stand still for it."""
TOLD_KEPT: Final = 1024

_ID_FORM: Final = re.compile(r"[0-9a-f]{16}")


def codec_key_id(key: bytes) -> str:
    """Id of a key, 16 hex digits: of a digest, so that it tells nothing of the key, and nobody has to invent one."""
    return hashlib.sha256(b"affidavit codec key id\0" + key).hexdigest()[:16]


class CodecKey:
    """One AES-256 key. It shows its id and nothing else."""

    __slots__ = ("_cipher", "aad", "id")

    def __init__(self, key: bytes) -> None:
        # Here, because workflow code may import this module but never a native one.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != KEY_BYTES:
            raise ValueError(f"a codec key has {KEY_BYTES} bytes")
        self._cipher = AESGCM(key)
        self.id = codec_key_id(key)
        self.aad = b"\0".join((ENCODING, self.id.encode()))

    def seal(self, plain: bytes) -> bytes:
        """Nonce, cipher text and tag."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, self.aad)

    def open(self, data: bytes) -> bytes | None:
        """What was sealed; None if these bytes were not sealed with this key."""
        from cryptography.exceptions import InvalidTag

        if len(data) < NONCE_BYTES + TAG_BYTES:
            return None
        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], self.aad)
        except InvalidTag:
            return None

    def __repr__(self) -> str:
        return f"CodecKey(id={self.id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CodecKey cannot be pickled")


class EncryptionCodec(PayloadCodec):
    """Seals with the first of its keys and opens with each of them; without keys it seals nothing."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        """Takes raw keys of 32 bytes, the sealing one first (rotation: put the new one in front, keep the old)."""
        self._keys = {key.id: key for key in map(CodecKey, keys)}
        self._first = next(iter(self._keys.values()), None)
        self._told: OrderedDict[str, None] = OrderedDict()

    @property
    def encrypts(self) -> bool:
        """Whether there is a key to seal with."""
        return self._first is not None

    @property
    def key_ids(self) -> list[str]:
        """Ids of the keys, the sealing one first."""
        return list(self._keys)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload."""
        if self._first is None:
            return list(payloads)
        return [await _placed(_sealed, payload, self._first) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open each payload that is sealed; one that cannot be opened comes as unavailable. Never raises for it."""
        opened = []
        for payload in payloads:
            found = await self.open(payload)
            opened.append(self._lost(payload) if found is None else found)
        return opened

    async def open(self, payload: Payload) -> Payload | None:
        """A payload in plain form; None if it is sealed and cannot be opened."""
        if len(payload.data) <= THREAD_BYTES:
            return self.open_blocking(payload)
        return await asyncio.to_thread(self.open_blocking, payload)

    def open_blocking(self, payload: Payload) -> Payload | None:
        """The same for a thread, however large the payload is."""
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        key = self._keys.get(_key_id(payload))
        return None if key is None else _opened(payload, key)

    def _lost(self, payload: Payload) -> Payload:
        key_id = _key_id(payload)
        unknown = key_id not in self._keys
        sha256 = hashlib.sha256(payload.data).hexdigest()
        lost = unavailable({"sha256": sha256, "bytes": str(len(payload.data))})
        if unknown:
            lost.metadata[UNKNOWN_KEY] = (key_id if _ID_FORM.fullmatch(key_id) else "malformed").encode()
        if self._is_news(sha256):
            why = "this process does not have that key" if unknown else "its tag is bad: it was altered"
            logger.warning(
                "a payload of %d bytes encrypted with key %s cannot be opened: %s",
                len(payload.data),
                printable(key_id) or "(none)",
                why,
            )
        return lost

    def _is_news(self, sha256: str) -> bool:
        """Whether this payload was not told of yet: a session without a cache opens its history again and again."""
        if sha256 in self._told:
            return False
        self._told[sha256] = None
        if len(self._told) > TOLD_KEPT:
            self._told.popitem(last=False)
        return True


def _key_id(payload: Payload) -> str:
    return payload.metadata.get(KEY_ID, b"").decode("utf-8", "replace")


def _sealed(payload: Payload, key: CodecKey) -> Payload:
    metadata = {"encoding": ENCODING, KEY_ID: key.id.encode()}
    return Payload(metadata=metadata, data=key.seal(payload.SerializeToString(deterministic=True)))


def _opened(payload: Payload, key: CodecKey) -> Payload | None:
    plain = key.open(payload.data)
    if plain is None:
        return None
    try:
        return Payload.FromString(plain)
    except DecodeError:  # sealed with our key by something that is not this codec
        return None


async def _placed(work: Callable[[Payload, CodecKey], T], payload: Payload, key: CodecKey) -> T:
    if len(payload.data) <= THREAD_BYTES:
        return work(payload, key)
    return await asyncio.to_thread(work, payload, key)
