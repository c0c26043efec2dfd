"""Checks of the keys on this machine: that a worker would take them, and that nobody else can. Shows key ids alone."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from affidavit.doctor.places import JOURNAL_KEY, SEED, Place, Places
from affidavit.doctor.report import Verdict
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer, decode_secret, read_secret_file
from affidavit.evidence.layout import PUBLIC_KEYS
from affidavit.evidence.text import printable

KEYGEN = "`affidavit keygen` makes keys; chmod 0600 and chown mend a file's rights"
CODEC_KEYGEN = (
    "correct AFFIDAVIT_CODEC_KEY_FILES or AFFIDAVIT_CODEC_KEY: 32 bytes, in a file of mode 0600 or as hex or base64; "
    "`affidavit keygen --codec` makes one"
)
NO_KEYS = "the embedded mode makes its own; choose its folder with --data-dir, or set the worker's variables"
OWN = "the worker's user alone should own the keys and their folder (0700)"


def journal_key(places: Places) -> Verdict:
    """That every journal key can be read as a worker reads it."""
    if places.journal_key is None and not _any_there(places.journal_keys):
        return Verdict("not checked", "no journal key on this machine", NO_KEYS)
    doubts: list[str] = []
    try:
        for place in places.journal_keys:
            read_secret_file(place.path, setting=place.setting)
            doubts += _doubts(place)
        if places.journal_key is not None:
            decode_secret(places.journal_key, name=JOURNAL_KEY)
    except EvidenceError as error:
        return Verdict("failed", str(error), KEYGEN)
    number = len(places.journal_keys) + (places.journal_key is not None)
    return _judged(f"{number} usable, readable by its owner alone", doubts)


def codec_keys(environment: Mapping[str, str]) -> Verdict:
    """That clients and workers with this environment can encrypt, where it says that they do."""
    try:
        from affidavit.codec_keys import KEY_FILES_VARIABLE, codec_from_environment
    except ModuleNotFoundError:  # a machine without the client extra, which puts nothing on the wire
        return Verdict("not checked", "no client extra on this machine")
    try:
        codec = codec_from_environment(environment)
    except EvidenceError as error:
        return Verdict("failed", str(error), CODEC_KEYGEN)
    if not codec.encrypts:
        return Verdict("ok", "none is set: payloads are not encrypted")
    paths = [part for part in environment.get(KEY_FILES_VARIABLE, "").split(":") if part]
    doubts = [doubt for path in paths for doubt in _doubts(Place(path, KEY_FILES_VARIABLE))]
    return _judged(f"usable, the first of {', '.join(codec.key_ids)} encrypts", doubts)


def signing_key(places: Places) -> Verdict:
    """That the signer's seed can be read where this machine signs, and is not lying around where it does not."""
    configured = places.seed_text is not None or (places.seed is not None and places.seed.setting is not None)
    if not places.signs:
        if configured:
            return Verdict(
                "warning",
                "a signing seed is configured where AFFIDAVIT_ROLES names no signing",
                "only the signer should have it: take it away here",
            )
        return Verdict("not checked", "this machine does not sign (AFFIDAVIT_ROLES)")
    if not configured and not (places.seed and _any_there((places.seed,))):
        return Verdict("not checked", "no signing seed on this machine", NO_KEYS)
    try:
        signer = _signer(places)
    except EvidenceError as error:
        return Verdict("failed", str(error), KEYGEN)
    doubts = _doubts(places.seed) if places.seed is not None and places.seed_text is None else []
    return _judged(f"usable, readable by its owner alone, key id {signer.key_id}", doubts)


def keyring(places: Places) -> Verdict:
    """That what auditors are given, here and beside the evidence, holds the signer's key, and the key is in force."""
    try:
        signer = _signer(places) if places.signs else None
    except EvidenceError:
        signer = None
    if signer is None:
        return Verdict("not checked", "the signer's key is not known here")
    rings = [place.path for place in (places.public_keys,) if place is not None]
    if not places.store.elsewhere and (beside := places.store.path / PUBLIC_KEYS).exists():
        rings.append(beside)
    for file in rings:
        if (wrong := _wrong_ring(file, signer.key_id)) is not None:
            return Verdict("failed", wrong, "add the signer's public key to it; auditors reject its receipts otherwise")
    if not rings:
        return Verdict("not checked", "no keyring on this machine")
    return Verdict("ok", f"the signer's key is in {' and in '.join(_where(file, places) for file in rings)}")


def _where(file: Path, places: Places) -> str:
    return "the evidence store" if file.parent == places.store.path else printable(file.name)


def _wrong_ring(file: Path, key_id: str) -> str | None:
    name = printable(file.name)
    try:
        key = Keyring.parse(file.read_bytes()).find(key_id)
    except OSError as error:
        return f"{name}: {error.strerror}"
    except EvidenceError as error:
        return f"{name}: {error}"
    if key is None:
        return f"{name} in {printable(file.parent.name)} does not hold the signer's key {key_id}"
    if not key.valid_at(time.time_ns() // 1_000_000):
        return f"{name} says that the signer's key {key_id} is revoked, or not valid now"
    return None


def _signer(places: Places) -> Signer:
    if places.seed is not None and (places.seed.setting is not None or places.seed_text is None):
        return Signer.from_file(places.seed.path, setting=places.seed.setting)
    return Signer(decode_secret(places.seed_text or "", name=SEED))


def _any_there(given: tuple[Place, ...]) -> bool:
    """Whether any is configured, or lies where the embedded mode would have it."""
    return any(place.setting is not None or os.path.lexists(place.path) for place in given)


def _doubts(place: Place) -> list[str]:
    """What a worker would take, and an operator should know."""
    found = []
    facts, folder = place.path.stat(), place.path.absolute().parent.stat()
    name = printable(place.path.name)
    if facts.st_uid != os.geteuid():
        found.append(f"{name} belongs to user {facts.st_uid}, not to the one who asks")
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        found.append(f"the folder of {name} can be written by others, who could swap it")
    return found


def _judged(what: str, doubts: list[str]) -> Verdict:
    if doubts:
        return Verdict("warning", "; ".join(doubts), OWN)
    return Verdict("ok", what)
