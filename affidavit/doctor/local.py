"""Checks of what lies on this machine: store, bus, versions."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final
from uuid import uuid4

from affidavit.buslog import BusLogReader
from affidavit.doctor.places import Places
from affidavit.doctor.report import Verdict
from affidavit.doctor.stores import object_store
from affidavit.stores.errors import EvidenceStoreMismatch
from affidavit.stores.local import DirectoryStore
from affidavit.version import VERSION

LOW_BYTES: Final = 1 << 30
CHOOSE: Final = "choose the folder with --data-dir, or set {}"
BAD_SDK: Final = "1.36.0"
"""Changed the order of activations; histories of other versions do not replay under it."""


def store(places: Places) -> Verdict:
    """That evidence can be created here as the store creates it: written, synced, linked under its name."""
    place = places.store
    if place.elsewhere:
        return object_store(place)
    if not place.path.is_dir():
        if place.setting is None:
            return Verdict("not checked", "no evidence store on this machine", CHOOSE.format("AFFIDAVIT_STORE"))
        return Verdict("failed", "AFFIDAVIT_STORE names no evidence store that is there", "is it mounted?")
    try:
        store_id = DirectoryStore(place.path, create=False).store_id
    except EvidenceStoreMismatch as error:
        return Verdict("failed", str(error), "no worker has opened it; is it the right folder, is it mounted?")
    try:
        _probe(place.path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            return Verdict("failed", "its file system takes no hard links, which the store needs", "use another one")
        return Verdict("failed", f"cannot be written: {error.strerror}", "see its rights, its mount and its room")
    free = shutil.disk_usage(place.path).free
    room = f"{free / (1 << 30):.1f} GiB free"
    if free < LOW_BYTES:
        return Verdict("warning", f"writable, but only {room}", "a full store stalls every session; make room")
    return Verdict("ok", f"writable, id {store_id}, {room}")


def bus(places: Places) -> Verdict:
    """That the embedded event log is one, which topics it has, and that a worker could go on with it."""
    place = places.bus
    if place.elsewhere:
        return Verdict("not checked", "the event bus is not the embedded log")
    if not place.path.exists() and place.setting is not None:
        return Verdict("warning", "AFFIDAVIT_BUS names no event log that is there", "a worker makes it when it starts")
    if not place.path.exists():
        return Verdict("not checked", "no event log on this machine", CHOOSE.format("AFFIDAVIT_BUS"))
    with BusLogReader.open_read_only(place.path) as log:
        topics = log.topics()
    # Its journal files are made beside it.
    if not (os.access(place.path, os.W_OK) and os.access(place.path.absolute().parent, os.W_OK)):
        return Verdict("failed", "the event log cannot be written", "see the rights of the file and of its folder")
    return Verdict("ok", f"embedded log, writable, {len(topics)} topics: {', '.join(topics) or 'none yet'}")


def versions() -> Verdict:
    """What runs here."""
    found = f"affidavit {VERSION}, Python {sys.version.split()[0]}"
    try:
        sdk = metadata.version("temporalio")
    except metadata.PackageNotFoundError:
        return Verdict("ok", f"{found}, no temporalio (this machine verifies, and does not report)")
    if sdk == BAD_SDK:
        return Verdict("failed", f"{found}, temporalio {sdk}", "this version orders work otherwise; use 1.35 or 1.36.1")
    return Verdict("ok", f"{found}, temporalio {sdk}")


def _probe(root: Path) -> None:
    # A name that no listing shows, should this process be killed in between.
    first, second = (root / f".tmp-doctor-{uuid4().hex}" for _ in range(2))
    try:
        handle = os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"probe\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        second.hardlink_to(first)
    finally:
        for file in (first, second):
            with suppress(OSError):
                file.unlink()
