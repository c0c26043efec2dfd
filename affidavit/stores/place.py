"""Where an evidence store is: a directory, or the URL of an object store; and opening whichever it is.

Every part of the product that is told of a store by a text comes here, so that a worker, a client and a command
understand the same texts and refuse the same ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

from affidavit.stores.base import ErasableStore, EvidenceStore, is_segment
from affidavit.stores.errors import StorePlaceError
from affidavit.stores.local import DirectoryStore

SCHEMES: Final = ("s3", "gs", "az")
"""Amazon S3 and what speaks its API, Google Cloud Storage, Azure Blob Storage."""

TIMEOUT_VARIABLE: Final = "AFFIDAVIT_STORE_TIMEOUT_S"
HTTP_VARIABLE: Final = "AFFIDAVIT_STORE_ALLOW_HTTP"
CA_VARIABLE: Final = "AFFIDAVIT_STORE_CA_FILE"

DEFAULT_TIMEOUT_S: Final = 30.0
MAX_TIMEOUT_S: Final = 600.0

_BUCKET: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,254}")
_SWITCH: Final = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """An object store: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.

    It never holds a credential: those are the environment's, as the store's own tools name them (`AWS_…`,
    `GOOGLE_…`, `AZURE_…`), so that a URL may be logged and shown.
    """

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a URL.

        Raises:
            StorePlaceError: it is none of these, or holds anything else. The message repeats none of it.
        """
        scheme, _, rest = text.partition("://")
        if scheme not in SCHEMES:
            raise StorePlaceError(f"an object store's URL starts with one of {', '.join(f'{s}://' for s in SCHEMES)}")
        if "@" in rest:
            raise StorePlaceError("a store's URL holds no credentials; they come from the store's own environment")
        if "?" in rest or "#" in rest:
            raise StorePlaceError("a store's URL holds no options; they come from the store's own environment")
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise StorePlaceError("a store's URL names a bucket after its scheme")
        prefix = prefix.removesuffix("/")
        if prefix and not all(is_segment(segment) for segment in prefix.split("/")):
            raise StorePlaceError("the segments of a store's prefix are letters, digits, '.', '_' and '-'")
        return cls(scheme, bucket, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".removesuffix("/")


Place: TypeAlias = Path | StoreUrl


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How an object store is reached, beyond what its own environment says."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    """Seconds that one request may take, the body included."""
    allow_http: bool = False
    """Whether the endpoint may be reached without TLS."""
    root_certificates: bytes | None = None
    """PEM of further authorities to trust."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Reads `AFFIDAVIT_STORE_TIMEOUT_S`, `AFFIDAVIT_STORE_ALLOW_HTTP` and `AFFIDAVIT_STORE_CA_FILE`.

        Raises:
            StorePlaceError: one of them does not fit, or the file cannot be read.
        """
        environment = os.environ if environment is None else environment
        switch = environment.get(HTTP_VARIABLE, "").lower()
        if switch not in _SWITCH:
            raise StorePlaceError(f"{HTTP_VARIABLE} is true or false")
        return cls(_seconds(environment.get(TIMEOUT_VARIABLE)), _SWITCH[switch], _pem(environment.get(CA_VARIABLE)))


def place_of(text: str) -> Place:
    """Reads what names a store. Raises `StorePlaceError`."""
    if not text:
        raise StorePlaceError("is set, but empty")
    return StoreUrl.parse(text) if "://" in text else Path(text)


def open_store(place: Place | str, *, create: bool = True, options: StoreOptions | None = None) -> EvidenceStore:
    """Opens the evidence store at a place.

    Args:
        place: a directory, or the URL of an object store.
        create: whether it may be a new one; a client that shares a worker's store says no.
        options: how an object store is reached; by default as the environment says.

    Raises:
        StorePlaceError: the place, or the environment's options for it, are not usable.
        StoreUnfit: the object store would overwrite evidence.
        EvidenceStoreMismatch: there is no store, and it is not to be made.
        IntegrityError: its id is damaged.
        OSError, TransientError: it cannot be reached, made or written.
    """
    return _opened(place_of(place) if isinstance(place, str) else place, create=create, options=options)


def open_erasable_store(place: Place) -> ErasableStore:
    """Opens a store that exists, for pruning, which alone may erase. Raises as `open_store`."""
    return _opened(place, create=False)


def _opened(place: Place, *, create: bool, options: StoreOptions | None = None) -> ErasableStore:
    if isinstance(place, Path):
        return DirectoryStore(place, create=create)
    try:
        # Only here: the library is an extra, and nobody with a directory needs it.
        from affidavit.stores.object import ObjectStore
    except ModuleNotFoundError as error:
        raise StorePlaceError(f"an object store needs the s3 extra (affidavit[s3]): no {error.name}") from None
    return ObjectStore(place, options=options or StoreOptions.from_environment(), create=create)


def _seconds(text: str | None) -> float:
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise StorePlaceError(f"{TIMEOUT_VARIABLE} is a number of seconds, at most {MAX_TIMEOUT_S:g}")
    return seconds


def _pem(name: str | None) -> bytes | None:
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise StorePlaceError(f"{CA_VARIABLE}: the file cannot be read: {error.strerror}") from None
