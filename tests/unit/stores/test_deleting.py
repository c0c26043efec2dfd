"""Erasing objects of the directory store: what a disk has beside them, and never through a symlink (P19, I7).

What holds for every store is in `tests/objects/test_deleting.py`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from activities.errors import IntegrityError
from affidavit.stores.base import ErasableStore
from affidavit.stores.local import DirectoryStore

NAME = "sessions/aa/bb/captures/000000000000.ndjson"


@pytest.fixture
def store(tmp_path: Path) -> ErasableStore:
    made = DirectoryStore(tmp_path / "evidence")
    made.create(NAME, b"secret\n")
    made.create("sessions/aa/bb/metadata.json", b"{}")
    return made


def test_p19_emptied_folders_go_with_their_last_object(store: ErasableStore, tmp_path: Path) -> None:
    assert store.delete(NAME)
    assert not (tmp_path / "evidence/sessions/aa/bb/captures").exists()
    assert store.create(NAME, b"another\n")
    assert store.delete("sessions/aa/bb/metadata.json")
    assert store.delete(NAME)
    assert sorted(path.name for path in (tmp_path / "evidence").iterdir()) == ["sessions", "store.id"]


def test_p19_a_symlink_leads_no_erasure_out_of_the_store(store: ErasableStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.json").write_text("mine")
    root = tmp_path / "evidence/sessions"
    (root / "linked").symlink_to(outside)
    with pytest.raises(IntegrityError):
        store.delete("sessions/linked/x.json")
    (root / "aa/bb/link.json").symlink_to(outside / "x.json")
    assert store.delete("sessions/aa/bb/link.json")  # the link itself
    assert (outside / "x.json").read_text() == "mine"
    with pytest.raises(IntegrityError, match="bb in the evidence store is not a file"):
        store.delete("sessions/aa/bb")
    assert store.read(NAME) == b"secret\n"


def test_p19_what_a_killed_creator_left_goes_too(store: ErasableStore, tmp_path: Path) -> None:
    folder = tmp_path / "evidence/sessions/aa/bb/captures"
    for name, age in ((".tmp-old", 7_200), (".tmp-new", 0)):
        (folder / name).write_bytes(b"half a secret")
        os.utime(folder / name, (time.time() - age,) * 2)
    assert store.delete(NAME)
    assert [path.name for path in folder.iterdir()] == [".tmp-new"]  # somebody may be writing it
