"""Bundles: behaviours G6, I7."""

from __future__ import annotations

import lzma
import os
import stat
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import pytest

from affidavit.evidence import bundle as module
from affidavit.evidence.bundle import DirectoryReader, open_bundle, write_bundle

GENERATION = "019fe9c7-fc00-7000-8000-0000000000aa"
FOLDER = f"sessions/84097828fc31a8c8d29210df48901a85/{GENERATION}"
FILES = {
    "receipt.json": b"{}",
    "metadata.json": b"m",
    "outcome.json": b"o",
    "journal/000000000000.ndjson": b"0\n",
    "journal/000000000064.ndjson": b"64\n",
    "captures/000000000000.ndjson": b"{}\n",
    "lifecycle/000000000065.json": b"l",
    "trajectory.json": b"t",
    "trajectory.provenance.json": b"p",
}


class Store(dict[str, bytes]):
    """A store in memory; like the real ones it lists by folder."""

    def read(self, name: str) -> bytes:
        try:
            return self[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def list(self, prefix: str) -> list[str]:
        return [name for name in self if name.startswith(prefix)]


def store(**more: bytes) -> Store:
    made = Store({f"{FOLDER}/{name}": data for name, data in FILES.items()})
    made["public.json"] = b"[]"
    made[f"{FOLDER}-other/receipt.json"] = b"another generation"
    made[f"{FOLDER}/payloads/ab"] = b"a payload"
    made["sessions/ffff/g/receipt.json"] = b"another session"
    return made


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def archive(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        warnings.simplefilter("ignore")
        for name, data in entries:
            file.writestr(name, data)
    return path


def test_g6_a_bundle_holds_exactly_the_evidence(tmp_path: Path) -> None:
    write_bundle(store(), "session-1", GENERATION, tmp_path / "b.zip")
    with open_bundle(tmp_path / "b.zip") as bundle:
        assert bundle.list("") == sorted([*FILES, "README.txt", "public.json"])
        assert {name: bundle.read(name) for name in FILES} == FILES
        assert bundle.read("public.json") == b"[]"
        assert bundle.list("journal") == ["journal/000000000000.ndjson", "journal/000000000064.ndjson"]
        with pytest.raises(FileNotFoundError):
            bundle.read("absent")
        readme = bundle.read("README.txt").decode()
    for said in ("affidavit verify", "NOT a trust anchor", "integrity only", "receipt.json"):
        assert said in readme
    assert names(tmp_path) == ["b.zip"]


def test_g6_the_same_evidence_gives_the_same_bytes(tmp_path: Path) -> None:
    write_bundle(store(), "session-1", GENERATION, tmp_path / "a.zip")
    reordered = Store(reversed(store().items()))
    write_bundle(reordered, "session-1", GENERATION, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_g6_public_keys_are_optional_but_a_receipt_and_a_journal_are_not(tmp_path: Path) -> None:
    without = store()
    del without["public.json"]
    write_bundle(without, "session-1", GENERATION, tmp_path / "b.zip")
    with open_bundle(tmp_path / "b.zip") as bundle:
        assert "public.json" not in bundle.list("")
    for missing in ("receipt.json", "journal/"):
        partial = Store({name: data for name, data in store().items() if not name.startswith(f"{FOLDER}/{missing}")})
        with pytest.raises(module.NothingToBundle):
            write_bundle(partial, "session-1", GENERATION, tmp_path / "c.zip")
    with pytest.raises(module.NothingToBundle):
        write_bundle(store(), "session-2", GENERATION, tmp_path / "c.zip")
    assert names(tmp_path) == ["b.zip"]


def test_g6_a_bundle_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_bytes(b"mine")
    with pytest.raises(module.BundleExists):
        write_bundle(store(), "session-1", GENERATION, tmp_path / "b.zip")
    assert names(tmp_path) == ["b.zip"]
    assert (tmp_path / "b.zip").read_bytes() == b"mine"


def test_nothing_is_left_when_reading_the_store_fails(tmp_path: Path) -> None:
    class Failing(Store):
        def read(self, name: str) -> bytes:
            if "lifecycle" in name:
                raise OSError("gone")
            return super().read(name)

    with pytest.raises(OSError, match="gone"):
        write_bundle(Failing(store()), "session-1", GENERATION, tmp_path / "b.zip")
    assert names(tmp_path) == []


def test_honest_evidence_that_compresses_like_a_bomb_can_be_read(tmp_path: Path) -> None:
    big = store()
    big[f"{FOLDER}/captures/000000000000.ndjson"] = b"a" * (4 << 20)
    write_bundle(big, "session-1", GENERATION, tmp_path / "b.zip")
    with open_bundle(tmp_path / "b.zip") as bundle:
        assert bundle.read("captures/000000000000.ndjson") == b"a" * (4 << 20)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/..",
        "./a",
        "a//b",
        "a/",
        "C:/x",
        "a\\b",
        "a\nb",
        "a\x00b",
        "",
        "..",
        "a\x1b",
    ],
)
def test_unsafe_names_are_refused(tmp_path: Path, name: str) -> None:
    # Written under a harmless name of the same length and patched, because the writer mends some of these itself.
    raw = name.encode() or b"?"
    path = archive(tmp_path / "b.zip", ("receipt.json", b"{}"), ("Q" * len(raw), b"x"))
    data = path.read_bytes()
    assert data.count(b"Q" * len(raw)) == 2
    path.write_bytes(data.replace(b"Q" * len(raw), raw if name else b"/"))
    with pytest.raises(module.UnsafeEntry) as caught:
        open_bundle(path)
    assert "\x1b" not in str(caught.value)


def test_doubled_entries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(module.UnsafeEntry, match="twice"):
        open_bundle(archive(tmp_path / "b.zip", ("receipt.json", b"1"), ("receipt.json", b"2")))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_other_kinds_are_refused(tmp_path: Path, kind: int) -> None:
    entry = zipfile.ZipInfo("receipt.json")
    entry.create_system, entry.external_attr = 3, (kind | 0o644) << 16
    with pytest.raises(module.UnsafeEntry, match="regular file"):
        open_bundle(archive(tmp_path / "b.zip", (entry, b"/etc/passwd")))


def test_encrypted_entries_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "b.zip", ("receipt.json", b"{}"))
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(module.UnsafeEntry, match="encrypted"):
        open_bundle(path)


def test_zip_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(module.BundleTooLarge, match="bomb"):
        open_bundle(archive(tmp_path / "ratio.zip", ("receipt.json", bytes(4 << 20))))
    path = archive(tmp_path / "b.zip", *((f"journal/{number}", os.urandom(100)) for number in range(10)))
    open_bundle(path).close()
    for limit, value in (("ENTRY_LIMIT", 9), ("TOTAL_LIMIT", 999), ("OBJECT_LIMIT", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, value)
            with pytest.raises(module.BundleTooLarge):
                open_bundle(path)


def test_an_entry_that_is_larger_than_it_says_is_not_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path / "b.zip", ("receipt.json", bytes(1000)))
    data = path.read_bytes()
    assert data.count((1000).to_bytes(4, "little")) == 2
    path.write_bytes(data.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with open_bundle(path) as bundle, pytest.raises(module.NotABundle):
        bundle.read("receipt.json")


def test_damaged_bundles(tmp_path: Path) -> None:
    path = archive(tmp_path / "b.zip", ("receipt.json", os.urandom(1000)))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with open_bundle(path) as bundle, pytest.raises(module.NotABundle, match=r"receipt\.json"):
        bundle.read("receipt.json")
    for content in (b"", b"PK", b"PK\x03\x04" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(module.NotABundle):
            open_bundle(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_stored_and_deflated_entries_are_read(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w", method) as made:
        made.writestr("receipt.json", b"{}")
    with pytest.raises(module.UnknownCompression, match=r"\Aentry receipt\.json is neither stored nor deflated\Z"):
        open_bundle(tmp_path / "b.zip")


@pytest.mark.parametrize("error", [zlib.error, lzma.LZMAError, struct.error, UnicodeError, RuntimeError, IndexError])
def test_whatever_fails_in_an_entry_is_a_damaged_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object) -> bytes:
        raise error("inside")

    with open_bundle(archive(tmp_path / "b.zip", ("receipt.json", b"{}"))) as bundle:
        monkeypatch.setattr(zipfile.ZipFile, "read", fail)
        with pytest.raises(module.NotABundle, match=r"\Adamaged entry receipt\.json: inside\Z"):
            bundle.read("receipt.json")


def test_an_entry_with_a_name_that_is_no_text_is_damaged(tmp_path: Path) -> None:
    path = archive(tmp_path / "b.zip", ("receipt.json", b"{}"))
    data = bytearray(path.read_bytes())
    data[7] |= 0x08  # "the name is UTF-8", in the local header alone
    data[30] = 0xFF
    path.write_bytes(data)
    with open_bundle(path) as bundle, pytest.raises(module.NotABundle, match=r"receipt\.json"):
        bundle.read("receipt.json")


def test_what_is_too_large_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (module.OBJECT_LIMIT, module.TRAJECTORY_LIMIT, module.TOTAL_LIMIT) == (134217728, 268435456, 1073741824)
    for limit in ("OBJECT_LIMIT", "TOTAL_LIMIT"):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 3)
            with pytest.raises(module.BundleTooLarge):
                write_bundle(store(), "session-1", GENERATION, tmp_path / "b.zip")
    assert names(tmp_path) == []


def test_i7_a_directory_is_read_without_leaving_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    root = tmp_path / "root"
    (root / "journal").mkdir(parents=True)
    (root / "journal" / "a").write_bytes(b"x")
    (root / "link").symlink_to(tmp_path / "secret")
    reader = DirectoryReader(root)
    assert reader.list("") == reader.list("journal") == ["journal/a"]
    assert reader.read("journal/a") == b"x"
    for name in ("../secret", "/etc/passwd", "link"):
        with pytest.raises(module.UnsafeEntry):
            reader.read(name)
    for name in ("absent", "journal"):
        with pytest.raises(FileNotFoundError):
            reader.read(name)
