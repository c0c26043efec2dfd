"""Big payloads in the evidence store instead of Temporal's history (behaviours B9).

The SDK's external storage puts a reference where the payload was, and the payload under the session's own folder:
`sessions/<stem>/payloads/<sha256>.bin`, the serialized `Payload`, named after the digest of its bytes. Both sides
of the wire, and every replay, find it there; writing it again changes nothing.

A reference is opened *before* a workflow runs, and an exception there fails the task for ever. So what will never
be there again comes as a payload of its own encoding, which the session rejects like any message that cannot be
read. Only what another attempt or another worker can mend is raised: a store that is away, or is another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)
from temporalio.exceptions import ApplicationError

from affidavit.contract import OFFLOAD_BYTES, REFUSED_BAD_REQUEST
from affidavit.evidence.layout import PAYLOADS, lives_prefix, payload_name
from affidavit.evidence.scalars import is_digest, session_stem
from affidavit.evidence.text import printable
from affidavit.stores.base import EvidenceStore, ObjectMissing
from affidavit.stores.errors import EvidenceStoreMismatch, IntegrityError, TransientError

DRIVER: Final = "affidavit.evidence"
"""Name of the driver in references: what a worker looks it up by."""

UNAVAILABLE: Final = b"affidavit/unavailable"
"""Encoding of a payload that will not come back. Its metadata may say `sha256` and `bytes` of the lost object."""

INLINE: Final = "affidavit-inline"
"""Metadata key of an answer that stays in Temporal, for clients that do not share the store."""
SESSIONS_KEPT: Final = 10_000

_STEM: Final = re.compile(r"[0-9a-f]{32}")
_SIZE: Final = re.compile(r"[0-9]{1,12}")


UNKNOWN_KEY: Final = "unknown-key"
"""Metadata key of an unavailable payload that another worker may open: the id of the codec key that this one lacks."""


class Unavailable:
    """Stands in for a value that was not to be had; `unknown_key` names the codec key that would open it."""

    def __init__(self, unknown_key: str | None = None) -> None:
        self.unknown_key = unknown_key

    @property
    def why(self) -> str:
        """For the end of a message: the key that is missing, if one is."""
        return "" if self.unknown_key is None else f": it is encrypted with key {self.unknown_key}"

    @classmethod
    def of(cls, payload: Payload) -> Unavailable:
        """What an unavailable payload says of itself."""
        key_id = payload.metadata.get(UNKNOWN_KEY)
        return cls(None if key_id is None else printable(key_id.decode("utf-8", "replace")))


class UnavailableConverter(EncodingPayloadConverter):
    """Gives an activity an `Unavailable`, for its worker to refuse: an exception here would be retried for ever."""

    @property
    def encoding(self) -> str:
        return UNAVAILABLE.decode()

    def to_payload(self, value: Any) -> Payload | None:
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return Unavailable.of(payload)


# Made once: the SDK makes a composite one for every command, and Pydantic's learns each type anew.
_CONVERTERS: Final = (*PydanticPayloadConverter().converters.values(), UnavailableConverter())


class OffloadingPayloadConverter(CompositePayloadConverter):
    """Pydantic's JSON, and payloads that are not available."""

    def __init__(self) -> None:
        super().__init__(*_CONVERTERS)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """As of any converter, but untyped values that cannot be decoded are a failure and no bug.

        A workflow that was started with them, as a foreign client may do, then ends and says why. With an error of
        another kind its first task would be tried for ever.

        Raises:
            ApplicationError: untyped values in an unknown encoding, or not in the form that theirs asks for.
        """
        if type_hints:
            return super().from_payloads(payloads, type_hints)
        try:
            return super().from_payloads(payloads)
        except Exception:  # noqa: BLE001 - converters raise what their libraries do
            # The encodings alone, and no cause: an error of the parser quotes what it could not parse.
            named = [each.metadata.get("encoding", b"none").decode("utf-8", "replace") for each in payloads]
            text = f"arguments cannot be decoded; their encodings: {printable(', '.join(named), 160)}"
            raise ApplicationError(text, type=REFUSED_BAD_REQUEST, non_retryable=True) from None


def is_size(text: str) -> bool:
    """Whether a text is a number of bytes; references and payloads that claim to be lost come from anywhere."""
    return _SIZE.fullmatch(text) is not None


def unavailable(claim: Mapping[str, str] | None = None) -> Payload:
    """What stands in for a payload that is lost; of a well-formed claim it says which one that was."""
    metadata = {"encoding": UNAVAILABLE}
    if claim is not None and is_digest(claim.get("sha256")) and is_size(claim.get("bytes", "")):
        metadata |= {"sha256": claim["sha256"].encode(), "bytes": claim["bytes"].encode()}
    return Payload(metadata=metadata)


def opened_in(store: EvidenceStore, stem: str) -> bool:
    """Whether a session, named by its stem, was opened in this store: it has a life there."""
    return any(not name.endswith(f"/{PAYLOADS}") for name in store.folders(lives_prefix(stem)))


class OpenedSessions:
    """The sessions that were opened in a store. One that was is not asked for again: an object store is a network away,
    and it is an event loop that waits."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store
        self._known: set[str] = set()

    def __contains__(self, stem: str) -> bool:
        if stem in self._known:
            return True
        opened = opened_in(self._store, stem)
        if opened:
            if len(self._known) >= SESSIONS_KEPT:
                self._known.clear()
            self._known.add(stem)
        return opened


class EvidenceDriver(StorageDriver):
    """Keeps payloads in an evidence store."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store
        self._opened = OpenedSessions(store)

    def name(self) -> str:
        return DRIVER

    def type(self) -> str:
        return DRIVER

    def select(self, context: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        """This driver, for a payload whose session is known; None leaves the payload where it is.

        A worker's store is where its sessions are. A client, which never names both run and type, keeps a payload in
        its store only where the session was opened in that store: elsewhere its workers would look for it in vain.
        """
        target = context.target
        if not isinstance(target, StorageDriverWorkflowInfo) or not target.id:
            return None
        if INLINE in payload.metadata:
            return None
        by_worker = target.run_id and target.type
        return self if by_worker or session_stem(target.id) in self._opened else None

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Creates the objects that are not there yet."""
        target = context.target
        assert isinstance(target, StorageDriverWorkflowInfo)
        assert target.id
        stem = session_stem(target.id)
        return [await asyncio.to_thread(self._put, stem, payload) for payload in payloads]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Reads the objects and checks their digests.

        Raises:
            OSError: the store does not answer; it may later.
            EvidenceStoreMismatch: the session's evidence is in another store than this worker's.
        """
        return [await asyncio.to_thread(self._get, claim.claim_data) for claim in claims]

    def _put(self, stem: str, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        sha256 = hashlib.sha256(data).hexdigest()
        # Damaged since? Whoever reads it finds out and says so; raised here it would stop every replay.
        with suppress(IntegrityError):
            self._store.create(payload_name(stem, sha256), data)
        return StorageDriverClaim(
            {"store": self._store.store_id, "session": stem, "sha256": sha256, "bytes": str(len(data))}
        )

    def _get(self, claim: Mapping[str, str]) -> Payload:
        stem, sha256 = claim.get("session", ""), claim.get("sha256", "")
        if not (_STEM.fullmatch(stem) and is_digest(sha256)):
            return unavailable()
        try:
            data = self._read(payload_name(stem, sha256))
        except ObjectMissing:
            if claim.get("store") != self._store.store_id and not opened_in(self._store, stem):
                raise EvidenceStoreMismatch(
                    "a payload of the session is in another evidence store than this one's"
                ) from None
            return unavailable(claim)
        except IntegrityError:  # no file, or reached through a symlink
            return unavailable(claim)
        if hashlib.sha256(data).hexdigest() != sha256:
            return unavailable(claim)
        try:
            return Payload.FromString(data)
        except DecodeError:  # a foreign object that somebody put there under its right digest
            return unavailable(claim)

    def _read(self, name: str) -> bytes:
        try:
            return self._store.read(name)
        except ObjectMissing:
            # A mount that is away looks like an empty directory; without its id the store raises what is retried.
            _ = self._store.store_id
            return self._store.read(name)


@dataclass(frozen=True)
class OffloadingConverter(DataConverter):
    """A data converter that no reference can stop, whoever has forged it.

    The SDK raises for an unknown driver, or a reference that does not parse, and the task with it would be retried
    for ever. Here each payload is opened by itself, and such a one comes as unavailable.
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _each(super()._decode_reference_payload_sequence, payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _each(super()._external_retrieve_payload_sequence, payloads)


async def _each(
    open_all: Callable[[Sequence[Payload]], Awaitable[list[Payload]]], payloads: Sequence[Payload]
) -> list[Payload]:
    opened: list[Payload] = []
    for payload in payloads:
        try:
            opened += await open_all([payload])
        except (OSError, MemoryError, TransientError, IntegrityError):  # the store, or the machine: mended from outside
            raise
        except Exception:  # noqa: BLE001 - whatever a forged reference makes the SDK raise
            opened.append(unavailable())
    return opened


def offloading_converter(store: EvidenceStore) -> DataConverter:
    """The product's converter, with payloads over 256 KiB kept in an evidence store."""
    driver = EvidenceDriver(store)
    storage = ExternalStorage(drivers=[driver], driver_selector=driver.select, payload_size_threshold=OFFLOAD_BYTES + 1)
    return OffloadingConverter(payload_converter_class=OffloadingPayloadConverter, external_storage=storage)
