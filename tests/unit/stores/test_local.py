"""The directory store: created once, durable, never through a symlink, safe under races and kills."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from activities.errors import EvidenceStoreMismatch, IntegrityError
from affidavit.stores.base import EvidenceStore, ObjectExists, ObjectMissing
from affidavit.stores.local import DirectoryStore

ROOT = Path(__file__).parents[3]
NAME = "sessions/aa/bb/journal/000000000000.ndjson"


def child(script: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_an_object_is_created_once_and_read_back(tmp_path: Path) -> None:
    store: EvidenceStore = DirectoryStore(tmp_path / "evidence")
    assert store.create(NAME, b"one\n") is True
    assert store.create(NAME, b"one\n") is False
    with pytest.raises(ObjectExists, match=r"^000000000000\.ndjson exists with other content$"):
        store.create(NAME, b"two\n")
    assert store.read(NAME) == b"one\n"
    assert (tmp_path / "evidence" / NAME).read_bytes() == b"one\n"


def test_an_empty_object_is_an_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert store.create("empty", b"")
    assert store.read("empty") == b""


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in (NAME, "nothing"):
        with pytest.raises(ObjectMissing):
            store.read(name)
    assert store.list("sessions/aa") == []


def test_files_and_directories_are_private(tmp_path: Path) -> None:
    DirectoryStore(tmp_path / "evidence").create("a/b", b"")
    assert [mode(tmp_path / "evidence" / part) for part in ("", "a", "a/b", "store.id")] == [
        0o700,
        0o700,
        0o600,
        0o600,
    ]


def test_listing_is_sorted_and_by_whole_segments(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in ("s/b/2", "s/b/1", "s/b-c/1", "s/b.d", "s/a/x/y"):
        store.create(name, b"")
    (tmp_path / "s/b/.tmp-left-over").write_bytes(b"half")
    (tmp_path / "s/b/not a name").write_bytes(b"")
    assert store.list("s/b") == store.list("s/b/") == ["s/b/1", "s/b/2"]
    assert store.list("") == ["s/a/x/y", "s/b-c/1", "s/b.d", "s/b/1", "s/b/2", "store.id"]


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", ".hidden", "a\\b", "a\0", "a b", "ä", "a\n", "x" * 256]
)
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    store = DirectoryStore(tmp_path)
    for call in (lambda: store.create(name, b""), lambda: store.read(name)):
        with pytest.raises(ValueError, match="not a name for an object"):
            call()
    if name not in ("", "a/"):
        with pytest.raises(ValueError, match="not a name for an object"):
            store.list(name)


def test_a_long_name_is_kept_whole(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in ("x" * 255, "x" * 254):
        store.create(name, name.encode())
        assert store.read(name) == name.encode()


@pytest.mark.parametrize("link", ["sessions", "sessions/aa/bb/journal"])
def test_a_symlinked_directory_is_not_followed(tmp_path: Path, link: str) -> None:
    store, outside = DirectoryStore(tmp_path / "evidence"), tmp_path / "outside"
    outside.mkdir()
    planted = tmp_path / "evidence" / link
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(outside)
    calls: list[Callable[[], object]] = [
        lambda: store.create(NAME, b"x"),
        lambda: store.read(NAME),
        lambda: store.list(link),
    ]
    for call in calls:
        with pytest.raises(IntegrityError, match=f"^{planted.name} in the evidence store is not a directory$"):
            call()
    assert list(outside.iterdir()) == []
    assert link in store.list("")  # shown, so that a reader meets the refusal


def test_a_symlink_in_the_place_of_an_object_is_refused(tmp_path: Path) -> None:
    store, outside = DirectoryStore(tmp_path / "evidence"), tmp_path / "outside"
    outside.write_bytes(b"x")
    (tmp_path / "evidence/object").symlink_to(outside)
    (tmp_path / "evidence/dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "evidence/pipe")
    (tmp_path / "evidence/directory").mkdir()
    for name in ("object", "dangling", "pipe", "directory"):
        with pytest.raises(IntegrityError, match=f"^{name} in the evidence store is not a file$"):
            store.create(name, b"x")
        with pytest.raises(IntegrityError, match=f"^{name} in the evidence store is not a file$"):
            store.read(name)
    assert not (tmp_path / "nowhere").exists()


def test_a_changed_byte_on_disk_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create(NAME, b"evidence\n")
    (tmp_path / NAME).write_bytes(b"evidencf\n")
    with pytest.raises(ObjectExists):
        store.create(NAME, b"evidence\n")


@pytest.mark.parametrize("existing", [False, True])
def test_success_means_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    store = DirectoryStore(tmp_path)
    if existing:  # by another process, that may have died before its fsync
        store.create(NAME, b"x")
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_nlink))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    assert store.create(NAME, b"x") is not existing
    inodes = [inode for inode, _ in synced]
    file, *directories = [tmp_path / NAME, *(tmp_path / NAME).parents][: NAME.count("/") + 2]
    assert file.stat().st_ino in inodes
    positions = [inodes.index(directory.stat().st_ino) for directory in directories]
    assert inodes.index(file.stat().st_ino) < min(positions)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_is_transient_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = DirectoryStore(tmp_path)

    def failing(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            store.create("a/b", b"x")
    assert not isinstance(caught.value, IntegrityError)
    assert list((tmp_path / "a").iterdir()) == []
    assert store.create("a/b", b"x") is True


def test_threads_race_for_one_name(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with ThreadPoolExecutor(16) as pool:
        for number in range(20):
            made = list(pool.map(lambda _, n=number: store.create(f"race/{n}/object", b"same"), range(16)))
            assert made.count(True) == 1
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp")]


RACE = """
import sys
from pathlib import Path
from affidavit.stores.base import ObjectExists
from affidavit.stores.local import DirectoryStore
root, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
store = DirectoryStore(root)
print(store.store_id)
wins = 0
for number in range(100):
    wins += store.create(f"same/{number % 7}/{number}", b"same")
    try:
        assert store.create(f"own/{number % 7}/{number}", me.encode())
        wins += 1000
    except ObjectExists:
        pass
print(wins, flush=True)
"""


def test_processes_race_for_the_root_its_id_and_every_object(tmp_path: Path) -> None:
    root = tmp_path / "new" / "evidence"
    racers = [child(RACE, str(root), str(number)) for number in range(4)]
    assert [line_of(racer) for racer in racers] == ["ready"] * 4
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outputs = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len({store_id for store_id, _ in outputs}) == 1
    # Each name has one winner, whether the bytes were equal or not.
    assert sum(int(wins) for _, wins in outputs) == 100 + 100 * 1000
    store = DirectoryStore(root)
    assert store.store_id == outputs[0][0]
    assert len(store.list("same")) == len(store.list("own")) == 100
    assert {store.read(name) for name in store.list("same")} == {b"same"}
    assert {store.read(name) for name in store.list("own")} <= {b"0", b"1", b"2", b"3"}


KILLED = """
import os, sys, time
from pathlib import Path
from affidavit.stores.local import DirectoryStore
store = DirectoryStore(Path(sys.argv[1]))
link, when = os.link, sys.argv[3]
def stopped(*arguments, **options):
    if when == "after":
        link(*arguments, **options)
    print("here", flush=True)
    time.sleep(60)
os.link = stopped
store.create(sys.argv[2], b"evidence")
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creator_killed_around_the_link_does_no_harm(tmp_path: Path, when: str) -> None:
    victim = child(KILLED, str(tmp_path), NAME, when)
    assert line_of(victim) == "here"
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=10)
    store = DirectoryStore(tmp_path)
    scraps = [path.name for path in (tmp_path / NAME).parent.iterdir() if path.name.startswith(".tmp-")]
    assert len(scraps) == 1
    assert store.list("sessions") == ([NAME] if when == "after" else [])
    assert store.create(NAME, b"evidence") is (when == "before")
    assert store.read(NAME) == b"evidence"
    assert store.list("sessions") == [NAME]


def test_the_store_id_is_made_once(tmp_path: Path) -> None:
    first, other = DirectoryStore(tmp_path / "a"), DirectoryStore(tmp_path / "b")
    assert first.store_id == DirectoryStore(tmp_path / "a").store_id != other.store_id
    assert UUID(first.store_id).version == 4
    assert (tmp_path / "a/store.id").read_text() == first.store_id + "\n"


def test_a_store_that_was_swapped_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "evidence"
    store = DirectoryStore(root)
    root.rename(tmp_path / "away")
    with pytest.raises(EvidenceStoreMismatch):
        _ = store.store_id
    DirectoryStore(root)
    assert store.store_id == (root / "store.id").read_text().strip()
    assert store.store_id != (tmp_path / "away/store.id").read_text().strip()


@pytest.mark.parametrize("content", [b"", b"no uuid", b"\xff\n", b"{00000000-0000-4000-8000-000000000000}"])
def test_a_damaged_store_id_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.id").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"^store\.id is not a store id"):
        DirectoryStore(tmp_path)


def test_folders_are_those_right_below(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in ("s/b/x/1", "s/a/1", "s/object", "s/b/y/z/1"):
        store.create(name, b"")
    (tmp_path / "s/.hidden").mkdir()
    (tmp_path / "s/not a name").mkdir()
    (tmp_path / "s/link").symlink_to(tmp_path / "s/a")
    assert store.folders("s") == store.folders("s/") == ["s/a", "s/b"]
    assert store.folders("s/b") == ["s/b/x", "s/b/y"]
    assert store.folders("") == ["s"]
    assert store.folders("s/a") == store.folders("nothing") == []
    with pytest.raises(ValueError, match="not a name for an object"):
        store.folders("../s")
    with pytest.raises(IntegrityError, match=r"^link in the evidence store is not a directory$"):
        store.folders("s/link")


SIZE = 3 * 1024 * 1024 + 7


def test_an_object_is_created_from_a_file(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "evidence")
    data = os.urandom(SIZE)
    source = tmp_path / "source"
    source.write_bytes(data)
    assert store.create_from_file(NAME, source) is True
    assert store.create_from_file(NAME, source) is False
    assert store.create(NAME, data) is False
    with source.open("rb") as file:
        file.seek(99)  # it is read from its start, wherever it stands, and left open
        assert store.create_from_file("other", file) is True
        assert store.create_from_file("other", file) is False
        assert not file.closed
    assert store.read(NAME) == store.read("other") == data
    assert mode(tmp_path / "evidence" / NAME) == 0o600
    source.write_bytes(b"")
    assert (tmp_path / "evidence" / NAME).stat().st_size == SIZE  # a copy, not a link


@pytest.mark.parametrize("changed", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:-1] + b"x"])
def test_a_file_with_other_bytes_is_refused(tmp_path: Path, changed: Callable[[bytes], bytes]) -> None:
    store, source = DirectoryStore(tmp_path / "evidence"), tmp_path / "source"
    store.create(NAME, b"y" * SIZE)
    source.write_bytes(changed(b"y" * SIZE))
    with pytest.raises(ObjectExists):
        store.create_from_file(NAME, source)
    assert store.read(NAME) == b"y" * SIZE
    with pytest.raises(FileNotFoundError):
        store.create_from_file(NAME, tmp_path / "missing")
    assert not list((tmp_path / "evidence").rglob(".tmp-*"))


def test_a_file_is_not_read_into_memory(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from affidavit.stores.local import DirectoryStore
store, source = DirectoryStore(Path(sys.argv[1])), Path(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert store.create_from_file("big", source) and not store.create_from_file("big", source)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(128 * 1024 * 1024)
    grown, _ = child(script, str(tmp_path / "evidence"), str(source)).communicate(timeout=60)
    assert int(grown) < 32 * 1024  # KiB


def test_a_store_that_must_exist_is_not_made(tmp_path: Path) -> None:
    for place in (tmp_path / "missing", tmp_path):
        with pytest.raises(EvidenceStoreMismatch, match=r"^store\.id is gone from the evidence store$"):
            DirectoryStore(place, create=False)
    assert list(tmp_path.iterdir()) == []
    made = DirectoryStore(tmp_path)
    assert DirectoryStore(tmp_path, create=False).store_id == made.store_id
