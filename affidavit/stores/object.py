"""Evidence in an object store: Amazon S3 and what speaks its API, Google Cloud Storage, Azure Blob Storage."""

from __future__ import annotations

import builtins
import io
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from affidavit.stores.base import (
    STORE_ID_NAME,
    ObjectExists,
    ObjectMissing,
    base_name,
    is_segment,
    new_store_id,
    read_store_id,
    split_erasable,
    split_name,
    split_prefix,
)
from affidavit.stores.errors import EvidenceStoreMismatch, StorePlaceError, StoreUnavailable, StoreUnfit
from affidavit.stores.faults import bucket_is_gone, translated
from affidavit.stores.place import HTTP_VARIABLE, StoreOptions, StoreUrl

CONNECT_LIMIT: Final = timedelta(seconds=5)
RETRIES: Final = 2
RETRY_LIMIT: Final = timedelta(seconds=20)
"""The library's own retries only bridge a hiccup. An outage is the activity's to retry, where an operator sees it."""

_CHUNK: Final = 1024 * 1024
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


class ObjectStore:
    """An `ErasableStore` of objects below one prefix of one bucket.

    An object is created by a put that the store itself refuses where the name is taken (`If-None-Match: *`), so of
    several creators one wins, wherever they run. A put whose answer was lost is simply made again: it then finds
    its own bytes.
    """

    def __init__(self, url: StoreUrl, *, options: StoreOptions, create: bool = True) -> None:
        """Opens a store; the bucket must be there.

        Args:
            url: its bucket and prefix. Credentials and endpoint are the environment's (`AWS_…`, `GOOGLE_…`, `AZURE_…`).
            options: time-outs and TLS.
            create: whether the store may be a new one. Only then it is checked, by a put that changes nothing, that
                the store never overwrites; so an auditor gets by with leave to read.

        Raises:
            StorePlaceError: it cannot be reached as the environment describes it.
            StoreUnfit: it overwrites what it should only create.
            EvidenceStoreMismatch: there is no store, and it is not to be made; or no bucket.
            StoreDenied, StoreUnavailable: it refuses the credentials, or does not answer.
            IntegrityError: its id is damaged.
        """
        if not options.allow_http and any(os.environ.get(name, "").startswith("http:") for name in _ENDPOINTS):
            raise StorePlaceError(f"the store's endpoint is not https; {HTTP_VARIABLE}=true permits that")
        self._store = _connected(url, options)
        if create:
            self._make()
        _ = self.store_id

    def create(self, name: str, data: bytes) -> bool:
        """See `EvidenceStore.create`."""
        split_name(name)
        try:
            self._put(name, data)
        except AlreadyExistsError:
            return self._found(name, io.BytesIO(data))
        return True

    def create_from_file(self, name: str, source: Path | BinaryIO) -> bool:
        """See `EvidenceStore.create_from_file`."""
        split_name(name)
        if not isinstance(source, Path):
            return self._create_from(name, source)
        with source.open("rb") as file:
            return self._create_from(name, file)

    def read(self, name: str) -> bytes:
        """See `EvidenceStore.read`."""
        split_name(name)
        try:
            with _told(name):
                return obstore.get(self._store, name).bytes().to_bytes()
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def delete(self, name: str) -> bool:
        """See `ErasableStore.delete`. Of several that erase one object at once, more than one may hear True."""
        split_erasable(name)
        # Looked for first: an object store answers the same whether there was anything to erase or not.
        if self.size(name) is None:
            return False
        try:
            with _told(name):
                obstore.delete(self._store, name)
        except FileNotFoundError:  # some stores do tell
            return False
        return True

    def size(self, name: str) -> int | None:
        """Returns the size of an object in bytes, None where there is none."""
        split_name(name)
        try:
            return self._size(name)
        except ObjectMissing:
            return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yields an object's bytes, never all of them in memory. Raises `ObjectMissing`."""
        split_name(name)
        try:
            with _told(name):
                for chunk in obstore.get(self._store, name).stream(min_chunk_size=_CHUNK):
                    yield bytes(chunk)
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def entries(self, prefix: str) -> list[tuple[str, bool]]:
        """Returns the last segments of what is right below a directory, and whether each is a directory; sorted.

        Foreign names are among them, hidden ones are not.
        """
        segments = split_prefix(prefix)
        with _told(prefix):
            listed = obstore.list_with_delimiter(self._store, "/".join(segments) or None)
        found = [(name, True) for name in listed["common_prefixes"]]
        found += [(meta["path"], False) for meta in listed["objects"]]
        names = ((name.removesuffix("/").rpartition("/")[2], is_folder) for name, is_folder in found)
        return sorted((name, is_folder) for name, is_folder in names if name and not name.startswith("."))

    def folders(self, prefix: str) -> list[str]:
        """See `EvidenceStore.folders`."""
        above = split_prefix(prefix)
        names = [name for name, is_folder in self.entries(prefix) if is_folder and is_segment(name)]
        return ["/".join([*above, name]) for name in names]

    def list(self, prefix: str) -> list[str]:
        """See `EvidenceStore.list`. Objects whose names are none of ours are left out."""
        return [name for name in self.everything(prefix) if all(is_segment(segment) for segment in name.split("/"))]

    def everything(self, prefix: str) -> builtins.list[str]:
        """Returns the names of all objects below a directory, foreign ones too, sorted; hidden ones are left out."""
        segments = split_prefix(prefix)
        with _told(prefix):
            chunks = obstore.list(self._store, "/".join(segments) or None, chunk_size=1000)
            names = [meta["path"] for chunk in chunks for meta in chunk]
        return sorted(name for name in names if not any(segment.startswith(".") for segment in name.split("/")))

    @property
    def store_id(self) -> str:
        """See `EvidenceStore.store_id`."""
        return read_store_id(self)

    def check_writable(self) -> None:
        """That these credentials may put, and that the store refuses to overwrite; changes nothing and leaves nothing.

        What is put is the store's own id, which stands there, so no right to erase is needed. That there is room, or
        leave for other names, it does not tell.

        Raises:
            StoreUnfit: it overwrites what it should only create.
            StoreDenied, StoreUnavailable, EvidenceStoreMismatch: as they say.
        """
        try:
            standing = self.read(STORE_ID_NAME)
        except ObjectMissing:
            raise EvidenceStoreMismatch(f"{STORE_ID_NAME} is gone from the evidence store") from None
        try:
            # A store that does not know the condition ignores it. Then this has put what was there.
            self._put(STORE_ID_NAME, standing)
        except AlreadyExistsError:
            return
        raise StoreUnfit("the store overwrites objects: it does not honour If-None-Match, so it cannot keep evidence")

    def _size(self, name: str) -> int:
        try:
            with _told(name):
                return obstore.head(self._store, name)["size"]
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def _make(self) -> None:
        with suppress(ObjectExists):
            self.create(STORE_ID_NAME, new_store_id())
        self.check_writable()

    def _create_from(self, name: str, source: BinaryIO) -> bool:
        # Looked for first: a repeat would carry megabytes there in vain.
        if self.size(name) is not None:
            return self._found(name, source)
        try:
            with _mapped(source) as data:
                self._put(name, data)
        except AlreadyExistsError:
            return self._found(name, source)
        return True

    def _put(self, name: str, data: bytes | mmap.mmap) -> None:
        """One request, whatever the size: of an upload in parts not every store makes the condition atomic."""
        with _told(name):
            obstore.put(self._store, name, data, mode="create", use_multipart=False)

    def _found(self, name: str, source: BinaryIO) -> bool:
        """False: what stands under the name is what `source` has. Raises `ObjectExists` if it is not."""
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        try:
            chunks = self.chunks(name)
            equal = self._size(name) == size and all(source.read(len(chunk)) == chunk for chunk in chunks)
        except ObjectMissing:
            # Another creator was at it, and has failed or is not done: the next attempt sees which.
            raise StoreUnavailable(f"{base_name(name)} is being created by another writer") from None
        if not equal:
            raise ObjectExists(name)
        return False


def _connected(url: StoreUrl, options: StoreOptions) -> obstore.store.ObjectStore:
    client: obstore.store.ClientConfig = {
        "timeout": timedelta(seconds=options.timeout_s),
        "connect_timeout": CONNECT_LIMIT,
        "allow_http": options.allow_http,
    }
    if options.root_certificates is not None:
        client["root_certificate"] = options.root_certificates
    retry: obstore.store.RetryConfig = {
        "max_retries": RETRIES,
        "retry_timeout": RETRY_LIMIT,
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    try:
        return from_url(str(url), client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError):
        # Not told why: the library may quote the environment.
        raise StorePlaceError(f"the environment does not say how to reach the {url.scheme} store") from None


@contextmanager
def _mapped(source: BinaryIO) -> Iterator[bytes | mmap.mmap]:
    """A file's bytes as the library can send them without a copy: the pages are the file's own, not memory of ours."""
    size = source.seek(0, os.SEEK_END)  # writes out what the file object has buffered, too
    source.seek(0)
    try:
        descriptor = source.fileno()
    except OSError:  # a file in memory
        descriptor = None
    if descriptor is None or not size:
        yield source.read()
        return
    mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    try:
        yield mapped
    finally:
        with suppress(BufferError):  # a request that was given up may still hold it; it goes with that
            mapped.close()


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of the library leave it as our own; that a name is taken, or that nothing is there, is for the caller."""
    try:
        yield
    except AlreadyExistsError:
        raise
    except FileNotFoundError as error:
        if bucket_is_gone(error):
            raise translated(error, name) from None
        raise
    except (BaseError, OSError) as error:
        raise translated(error, name) from None
