"""One session's evidence as one zip file for the auditor (behaviours G6), and safe reading of such files.

A bundle holds the objects of one generation under their names in the layout, without the session's folder. The same
evidence always gives the same bytes. Reading never extracts to disk and believes no name and no size.
"""

from __future__ import annotations

import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from affidavit.evidence.durable import sync_directory
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.layout import JOURNAL, PUBLIC_KEYS, RECEIPT, TRAJECTORY, is_evidence, session_prefix
from affidavit.evidence.text import printable
from affidavit.evidence.unreceipted import why_no_receipt

README: Final = "README.txt"

ENTRY_LIMIT: Final = 100_000
TOTAL_LIMIT: Final = 1 << 30
OBJECT_LIMIT: Final = 128 << 20
TRAJECTORY_LIMIT: Final = 256 << 20
"""Bytes of a trajectory, the one object that may be larger than `OBJECT_LIMIT`: what its own reader takes."""
RATIO_LIMIT: Final = 200

# Zip knows no time zone; its first moment stands for "no time", so that equal evidence gives equal bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_ENCRYPTED = 0x1

_README_TEXT = """\
Affidavit evidence bundle
=========================

This file holds the evidence of one AI-agent session: what the agent was asked, what it answered and which tools
it called, as a chain of events, and a signed receipt over that chain (or over the session's trajectory).

  receipt.json      the receipt: who ran, how many events, calls and tokens, why it ended, and a signature
  journal/          the events, one authenticated envelope a line, in the order in which they were admitted
  captures/         the content of each step, where the session kept it; each event carries its SHA-256
  lifecycle/        the events numbered after the chain: receipt issued, session closed
  metadata.json     what was fixed when the session was opened
  trajectory.json   the session as an ATIF trajectory, with trajectory.provenance.json, where there is one
  outcome.json      how the session ended, where it was sealed
  public.json       the public keys of the signer, as the evidence store has them

How to verify, offline
----------------------

  1. Get the signer's public key from a source that you trust: from the organisation itself, not from this file.
  2. affidavit verify THIS_FILE.zip --key trusted-keys.json

What the keys mean: public.json and the key inside the receipt came along with the evidence, so whoever could
forge the evidence could forge them as well. They are NOT a trust anchor. Without a key of your own the command
can only say "integrity only, signer not trusted": nothing changed since somebody signed; not who that was.

How to verify without our program
---------------------------------

JCS(x) is the canonical JSON of x by RFC 8785, in UTF-8; || joins bytes; hex is lower case. No secret is needed: the
"mac" of an envelope is for the operator, who has the journal key, and is left out here.

The signature:

  S1. Read receipt.json. It has exactly 14 keys; take away signature_b64, and nothing else.
  S2. body = JCS(what is left).
  S3. key = base64(public_key_b64), 32 bytes. It must be, byte for byte, a key that you trust; and key_id must be the
      first 32 hex digits of SHA-256(key).
  S4. base64(signature_b64), 64 bytes, must be the pure Ed25519 signature (RFC 8032) of body under key. Refuse a
      key, and a signature whose first half is a point, of small order: under those anybody can sign.

The chain, where the receipt's subject.kind is "event_chain":

  C1. Read journal/*.ndjson in the order of their names, line by line. A line is {"index", "payload", "mac"}; the
      event is payload.event. index and event.metadata.sequence count 0, 1, 2, ... without a gap.
  C2. h = SHA-256("av-genesis" || session_id), the text in ASCII, the id from the receipt.
  C3. For each event in turn: h = SHA-256(h || JCS(event)), where h is its 32 bytes, not its hex text.
  C4. The number of events must be subject.event_count, and the hex of the last h subject.chain_head.

What the events say:

  E1. Every event has session_uid equal to the receipt's session_id. Event 0 has payload.action "opened" and names
      mode, generation, and the digest of the registration that stands in metadata.json:
      payload.registration_sha256 = hex of SHA-256(JCS(metadata payload.registration)).
  E2. A step's event has payload.capture_sha256: the hex of SHA-256 of the line at the same place in the file of the
      same name in captures/, without its line feed. A line {} stands where an event has no capture. Captures may
      have been deleted; the chain holds without them.
  E3. The receipt's tool_calls and cost are the sums over the events: payload.allowed of "tool_call" events; of the
      events that end a model call, metrics.prompt_tokens, completion_tokens, cached_tokens, and
      payload.cost_usd_micros (in payload.replaced where the loop breaker has put its own event in the place).

Where subject.kind is "atif_trajectory", subject.trajectory_digest is the hex of SHA-256 of the bytes of
trajectory.json and subject.step_count the number of its steps; the chain is then named in
trajectory.provenance.json, which only its mac protects.

What lies outside: outcome.json, metadata.json but for the registration, lifecycle/ and trajectory.provenance.json are
covered by neither chain nor signature, only by a mac. Whoever has the journal key checks those with
affidavit verify THIS_FILE.zip --key trusted-keys.json --journal-key journal.key
"""


class BundleError(EvidenceError):
    """A bundle cannot be written or read."""


class NothingToBundle(BundleError):
    """The session has no receipt (yet)."""


class BundleExists(BundleError):
    """The output file exists; a bundle never overwrites."""


class NotABundle(BundleError):
    """Not a zip file, or a damaged one."""


class UnsafeEntry(BundleError):
    """An entry that no bundle has: an absolute name, `..`, a link, an encrypted or doubled entry."""


class BundleTooLarge(BundleError):
    """More or larger entries than are read, or a compression that only a bomb has."""


class UnknownCompression(BundleError):
    """An entry that is neither stored nor deflated, as a bundle's entries are."""


class StoreReader(Protocol):
    """Read access to objects by relative POSIX name: an evidence store, a session's folder or a bundle."""

    def read(self, name: str) -> bytes:
        """Bytes of an object; `FileNotFoundError` if there is none."""

    def list(self, prefix: str) -> list[str]:
        """Names of all objects in or below the folder ``prefix`` (no final slash; "" is everything)."""


class DirectoryReader:
    """Objects below a directory on disk: a whole store or one generation's folder. Links are not followed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> bytes:
        """Bytes of the file ``name``; `FileNotFoundError` if there is none."""
        path = self._root.joinpath(*_safe(name).parts)
        if path.is_symlink():
            raise UnsafeEntry(f"{printable(name)} is a symbolic link")
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {printable(name)}")
        if path.stat().st_size > size_limit(name):
            raise BundleTooLarge(f"{printable(name)} is larger than is read")
        return path.read_bytes()

    def list(self, prefix: str) -> list[str]:
        """Names of the regular files below ``prefix``, sorted."""
        folder = self._root.joinpath(*_safe(prefix).parts) if prefix else self._root
        found = [Path(parent, name) for parent, _, names in os.walk(folder, followlinks=False) for name in names]
        return sorted(
            path.relative_to(self._root).as_posix() for path in found if not path.is_symlink() and path.is_file()
        )


class Bundle:
    """An opened bundle. Close it, or use it as a context manager."""

    def __init__(self, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo]) -> None:
        self._archive = archive
        self._entries = entries

    def read(self, name: str) -> bytes:
        """Bytes of an entry; `FileNotFoundError` if there is none, `NotABundle` if it is damaged."""
        if name not in self._entries:
            raise FileNotFoundError(f"the bundle has no {printable(name)}")
        try:
            # Never more than the stated size, which was checked; the checksum is checked at the end.
            return self._archive.read(self._entries[name])
        except Exception as error:  # noqa: BLE001 - a hostile file finds every fault of the zip reader
            raise NotABundle(f"damaged entry {printable(name)}: {printable(str(error))}") from None

    def list(self, prefix: str) -> list[str]:
        """Names of all entries below ``prefix``, sorted."""
        return sorted(name for name in self._entries if not prefix or name.startswith(f"{prefix}/"))

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_bundle(path: Path) -> Bundle:
    """Open a bundle and check every entry's name, kind and size before anything is unpacked.

    Raises:
        NotABundle, UnsafeEntry, BundleTooLarge, UnknownCompression.
    """
    try:
        archive = zipfile.ZipFile(path)
    except Exception:  # noqa: BLE001 - as in `Bundle.read`
        raise NotABundle(f"{printable(path.name)} is not a readable zip file") from None
    try:
        return Bundle(archive, _checked(archive.infolist()))
    except BaseException:
        archive.close()
        raise


def write_bundle(store: StoreReader, session_id: str, generation: str, out: Path) -> None:
    """Write one generation's evidence to ``out``, which must not exist; it appears complete or not at all.

    Args:
        store: the evidence store.
        session_id, generation: which life of which session.
        out: the zip file to make.

    Raises:
        NothingToBundle: there is no receipt or no journal.
        BundleExists: ``out`` exists.
        BundleTooLarge: `open_bundle` would not read it.
    """
    prefix = session_prefix(session_id, generation) + "/"
    names = sorted(
        relative
        for name in store.list(prefix.rstrip("/"))
        if name.startswith(prefix) and is_evidence(relative := name.removeprefix(prefix))
    )
    if RECEIPT not in names:
        raise NothingToBundle(why_no_receipt(session_id, lambda name: store.read(prefix + name)))
    if not any(name.startswith(f"{JOURNAL}/") for name in names):
        raise NothingToBundle("the session has no journal")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                total = 0
                for name, data in _contents(store, prefix, names):
                    total += len(data)
                    if len(data) > size_limit(name) or total > TOTAL_LIMIT:
                        raise BundleTooLarge("the evidence is larger than a bundle that is read; hand over the folder")
                    _write(archive, name, data)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, not a rename: a rename would replace a file that somebody else made in the meantime.
            out.hardlink_to(temporary)
        except FileExistsError:
            raise BundleExists(f"{printable(out.name)} exists") from None
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).name != temporary.name:
            raise
        # The user knows the bundle's name, not that of a file that was to become it.
        raise OSError(error.errno, error.strerror, str(out)) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(out.parent)


def _contents(store: StoreReader, prefix: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Entries in sorted order, one in memory at a time."""
    for name in sorted([*names, README, PUBLIC_KEYS]):
        if name == README:
            yield name, _README_TEXT.encode()
        elif name != PUBLIC_KEYS:
            yield name, store.read(prefix + name)
        else:
            try:
                yield name, store.read(PUBLIC_KEYS)
            except FileNotFoundError:
                continue


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _NO_TIME)
    entry.create_system = _UNIX
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    # What compresses like a bomb is stored as it is, so that the reader's limit never refuses honest evidence.
    small = len(zlib.compress(data, 6))
    bomb_like = len(data) > small * (RATIO_LIMIT // 2)
    entry.compress_type = zipfile.ZIP_STORED if bomb_like else zipfile.ZIP_DEFLATED
    archive.writestr(entry, data, compresslevel=6)


def _checked(infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    if len(infos) > ENTRY_LIMIT:
        raise BundleTooLarge(f"more than {ENTRY_LIMIT} entries")
    if sum(info.file_size for info in infos) > TOTAL_LIMIT:
        raise BundleTooLarge("the entries unpack to more than is read")
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        # `filename` is cut at a NUL and has its separators replaced; `orig_filename` is what stands in the file.
        name = info.orig_filename
        shown = printable(name)
        _safe(name)
        if name in entries:
            raise UnsafeEntry(f"entry {shown} stands twice")
        if info.flag_bits & _ENCRYPTED:
            raise UnsafeEntry(f"entry {shown} is encrypted")
        kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == _UNIX else 0
        if info.is_dir() or kind not in (0, stat.S_IFREG):
            raise UnsafeEntry(f"entry {shown} is not a regular file")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnknownCompression(f"entry {shown} is neither stored nor deflated")
        if info.file_size > size_limit(name):
            raise BundleTooLarge(f"entry {shown} is larger than is read")
        if info.file_size > RATIO_LIMIT * max(info.compress_size, 1):
            raise BundleTooLarge(f"entry {shown} is compressed like a zip bomb")
        entries[name] = info
    return entries


def size_limit(name: str) -> int:
    return TRAJECTORY_LIMIT if name.rpartition("/")[2] == TRAJECTORY else OBJECT_LIMIT


def _safe(name: str) -> PurePosixPath:
    """A relative name without tricks; `UnsafeEntry` otherwise."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    if not plain or "\\" in name or ":" in parts[0] or not name.isprintable():
        raise UnsafeEntry(f"unsafe name {printable(name)}")
    return PurePosixPath(name)
