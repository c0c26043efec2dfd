"""What the doctor finds on this machine, each check in order and out of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from activities.buses.sqlite import SqliteBus
from affidavit.doctor import keyfiles, local
from affidavit.doctor.places import Places
from affidavit.doctor.report import Verdict
from affidavit.evidence.keys import generate
from affidavit.stores.local import DirectoryStore

SEED = bytes(range(1, 33))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder as the embedded mode leaves it."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    made = generate(folder / "keys")
    store = DirectoryStore(folder / "evidence")
    store.create("public.json", made.public_keys.read_bytes())
    return folder


async def with_bus(data: Path) -> None:
    bus = SqliteBus(data / "bus.sqlite")
    await bus.close()


def places(data: Path, **environment: str) -> Places:
    return Places.told(environment, data)


def judged(check: Callable[[Places], Verdict], data: Path, **environment: str) -> tuple[str, str]:
    verdict = check(places(data, **environment))
    return verdict.status, verdict.what


# -- the store -------------------------------------------------------------------------------------------


def test_a_store_that_is_in_order_is_named_by_its_id_and_left_as_it_was(data: Path) -> None:
    before = sorted(data.rglob("*"))
    status, what = judged(local.store, data)
    assert status == "ok"
    assert what.startswith(f"writable, id {(data / 'evidence/store.id').read_text().strip()}, ")
    assert sorted(data.rglob("*")) == before


def test_a_store_is_where_the_setting_says(data: Path, tmp_path: Path) -> None:
    assert judged(local.store, tmp_path / "none", AFFIDAVIT_STORE=str(data / "evidence"))[0] == "ok"
    status, what = judged(local.store, data, AFFIDAVIT_STORE=str(tmp_path / "gone"))
    assert (status, what) == ("failed", "AFFIDAVIT_STORE names no evidence store that is there")
    assert judged(local.store, tmp_path / "none") == ("not checked", "no evidence store on this machine")
    status, what = judged(local.store, data, AFFIDAVIT_STORE="ftp://planted@host")
    assert (status, what) == (
        "failed",
        "AFFIDAVIT_STORE: an object store's URL starts with one of s3://, gs://, az://",
    )
    assert not (tmp_path / "none").exists()


def test_a_folder_that_is_no_store_is_not_made_one(data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert judged(local.store, data, AFFIDAVIT_STORE=str(empty)) == (
        "failed",
        "store.id is gone from the evidence store",
    )
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("open", OSError(errno.EROFS, "Read-only file system"), "cannot be written: Read-only file system"),
        ("fsync", OSError(errno.ENOSPC, "No space left on device"), "cannot be written: No space left on device"),
        ("link", OSError(errno.EPERM, "Operation not permitted"), "its file system takes no hard links"),
    ],
)
def test_a_store_that_cannot_be_written_fails_and_keeps_no_probe(
    data: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: OSError, said: str
) -> None:
    before = sorted(data.rglob("*"))
    real = getattr(os, call)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        raise error

    monkeypatch.setattr(os, call, refuse)
    status, what = judged(local.store, data)
    monkeypatch.undo()
    assert status == "failed"
    assert what.startswith(said)
    assert sorted(data.rglob("*")) == before


def test_a_store_that_is_nearly_full_is_a_warning(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(data))(total=1 << 40, used=0, free=300 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert judged(local.store, data) == ("warning", "writable, but only 0.3 GiB free")


# -- the bus ---------------------------------------------------------------------------------------------


async def test_a_bus_is_an_event_log_with_topics(data: Path) -> None:
    assert judged(local.bus, data) == ("not checked", "no event log on this machine")
    await with_bus(data)
    assert judged(local.bus, data) == ("ok", "embedded log, writable, 0 topics: none yet")
    assert judged(local.bus, data, AFFIDAVIT_BUS="kafka://broker")[0] == "not checked"


async def test_a_bus_that_is_none_or_cannot_be_written_fails(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_bus(data)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert judged(local.bus, data) == ("failed", "the event log cannot be written")
    monkeypatch.undo()
    assert judged(local.bus, data, AFFIDAVIT_BUS=str(data / "no"))[0] == "warning"


async def test_the_bus_of_another_program_is_named(data: Path) -> None:
    (data / "bus.sqlite").write_bytes(b"hello " * 200)
    with pytest.raises(Exception, match=r"^bus\.sqlite is not a SQLite database$"):
        local.bus(places(data))


# -- keys ------------------------------------------------------------------------------------------------


def test_keys_that_are_in_order(data: Path) -> None:
    assert judged(keyfiles.journal_key, data) == ("ok", "1 usable, readable by its owner alone")
    status, what = judged(keyfiles.signing_key, data)
    assert status == "ok"
    assert what.startswith("usable, readable by its owner alone, key id ")
    assert judged(keyfiles.keyring, data) == ("ok", "the signer's key is in public.json and in the evidence store")


@pytest.mark.parametrize(
    ("name", "check"), [("journal.key", keyfiles.journal_key), ("signing.seed", keyfiles.signing_key)]
)
def test_i1_keys_that_others_can_read_or_swap_are_found(
    data: Path, name: str, check: Callable[[Places], Verdict]
) -> None:
    file = data / "keys" / name
    file.chmod(0o640)
    assert judged(check, data) == ("failed", f"{name} is open to group or others (mode 0640, must be 0600)")
    file.chmod(0o600)
    file.parent.chmod(0o770)
    assert judged(check, data) == ("warning", f"the folder of {name} can be written by others, who could swap it")
    file.parent.chmod(0o700)
    file.rename(file.with_name("real"))
    file.symlink_to(file.with_name("real"))
    assert judged(check, data) == ("failed", f"{name} is a symbolic link")
    file.unlink()
    file.write_bytes(bytes(32))
    file.chmod(0o600)
    assert judged(check, data) == ("failed", f"{name} is all zero or all 0xFF")


def test_a_key_of_another_user_is_a_warning(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    status, what = judged(keyfiles.journal_key, data)
    assert status == "warning"
    assert what == f"journal.key belongs to user {os.getuid()}, not to the one who asks"


def test_where_there_are_no_keys_none_is_checked(tmp_path: Path) -> None:
    for check in (keyfiles.journal_key, keyfiles.signing_key, keyfiles.keyring):
        assert judged(check, tmp_path)[0] == "not checked"


def test_a_key_that_a_setting_names_in_vain_fails_and_is_not_repeated(data: Path) -> None:
    """The secret itself may have been pasted where its path belongs."""
    status, what = judged(keyfiles.journal_key, data, AFFIDAVIT_JOURNAL_KEY_FILES=SEED.hex())
    assert status == "failed"
    assert SEED.hex() not in what
    assert judged(keyfiles.signing_key, data, AFFIDAVIT_SIGNING_SEED_FILE=SEED.hex())[0] == "failed"


def test_secrets_in_the_environment_are_checked_and_never_shown(data: Path) -> None:
    told = places(data, AFFIDAVIT_JOURNAL_KEY=SEED.hex(), AFFIDAVIT_SIGNING_SEED=SEED.hex())
    assert SEED.hex() not in repr(told)
    assert keyfiles.journal_key(told).what == "1 usable, readable by its owner alone"
    verdict = keyfiles.signing_key(told)
    assert verdict.status == "ok"
    assert SEED.hex() not in verdict.what
    assert judged(keyfiles.signing_key, data, AFFIDAVIT_SIGNING_SEED="nonsense") == (
        "failed",
        "AFFIDAVIT_SIGNING_SEED is not 32 bytes as hex or base64",
    )
    # Another seed than the folder's: its key is not in the store's keyring.
    status, what = judged(keyfiles.keyring, data, AFFIDAVIT_SIGNING_SEED=SEED.hex())
    assert status == "failed"
    assert what.startswith("public.json in evidence does not hold the signer's key ")


def test_i6_codec_keys_are_named_by_their_ids(tmp_path: Path) -> None:
    assert keyfiles.codec_keys({}) == Verdict("ok", "none is set: payloads are not encrypted")
    key = tmp_path / "codec.key"
    key.write_bytes(SEED)
    key.chmod(0o600)
    found = keyfiles.codec_keys({"AFFIDAVIT_CODEC_KEY_FILES": str(key)})
    assert (found.status, found.what.startswith("usable, the first of ")) == ("ok", True)
    key.chmod(0o644)
    found = keyfiles.codec_keys({"AFFIDAVIT_CODEC_KEY_FILES": str(key)})
    assert (found.status, "keygen --codec" in found.do) == ("failed", True)


def test_i2_a_seed_where_nobody_signs_is_a_warning(data: Path) -> None:
    seed = str(data / "keys/signing.seed")
    assert judged(keyfiles.signing_key, data, AFFIDAVIT_ROLES="session") == (
        "not checked",
        "this machine does not sign (AFFIDAVIT_ROLES)",
    )
    assert judged(keyfiles.signing_key, data, AFFIDAVIT_ROLES="session", AFFIDAVIT_SIGNING_SEED_FILE=seed) == (
        "warning",
        "a signing seed is configured where AFFIDAVIT_ROLES names no signing",
    )


def test_a_keyring_that_revokes_or_lacks_the_signers_key_fails(data: Path, tmp_path: Path) -> None:
    ring = tmp_path / "ring.json"
    (entry,) = json.loads((data / "keys/public.json").read_text())
    ring.write_text(json.dumps([{**entry, "revoked_at": 1_000}]))
    status, what = judged(keyfiles.keyring, data, AFFIDAVIT_PUBLIC_KEYS=str(ring))
    assert status == "failed"
    assert what.endswith("is revoked, or not valid now")
    generate(tmp_path / "other")
    status, what = judged(keyfiles.keyring, data, AFFIDAVIT_PUBLIC_KEYS=str(tmp_path / "other/public.json"))
    assert status == "failed"
    assert "does not hold the signer's key" in what
    ring.write_text("{}")
    assert judged(keyfiles.keyring, data, AFFIDAVIT_PUBLIC_KEYS=str(ring))[0] == "failed"
    assert judged(keyfiles.keyring, data, AFFIDAVIT_PUBLIC_KEYS=str(tmp_path / "no"))[0] == "failed"


# -- versions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sdk", "status"), [("1.35.0", "ok"), ("1.36.0", "failed"), ("1.36.1", "ok"), (None, "ok")])
def test_versions_are_told_and_the_bad_one_fails(monkeypatch: pytest.MonkeyPatch, sdk: str | None, status: str) -> None:
    def version(name: str) -> str:
        if sdk is None:
            raise metadata.PackageNotFoundError(name)
        return sdk

    monkeypatch.setattr(metadata, "version", version)
    verdict = local.versions()
    assert verdict.status == status
    assert ("no temporalio" in verdict.what) is (sdk is None)
