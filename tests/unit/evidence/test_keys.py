"""Secrets and the signer: behaviours I1, I3, I5; vectors.json."""

from __future__ import annotations

import base64
import json
import os
import pickle
import stat
from pathlib import Path

import pytest

from affidavit.evidence import keys

VECTORS = json.loads(Path(__file__).parents[2].joinpath("vectors.json").read_text("utf-8"))
SECRET = bytes(range(32))


def secret_file(path: Path, data: bytes = SECRET, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("seed", ["05", "07", "13", "14"])
def test_signer_has_the_golden_public_key_and_id(seed: str) -> None:
    expected = VECTORS["keys"][f"seed_{seed}x32"]
    # The vectors name seeds in decimal: 13x32 is 32 bytes of value 13.
    signer = keys.Signer(bytes([int(seed)]) * 32)
    assert signer.public_key.hex() == expected["public_key_hex"]
    assert signer.public_key_b64 == expected["public_key_b64"]
    assert signer.key_id == expected["key_id"]
    assert keys.key_id_of(bytes.fromhex(expected["public_key_hex"])) == expected["key_id"]


def test_i1_a_signer_shows_only_its_key_id() -> None:
    signer = keys.Signer(SECRET)
    for text in (repr(signer), str(signer), f"{signer}"):
        assert text == f"Signer(key_id='{signer.key_id}')"
    with pytest.raises(TypeError):
        pickle.dumps(signer)
    assert not hasattr(signer, "__dict__")


def test_i1_a_secret_file_of_mode_0600_is_read(tmp_path: Path) -> None:
    assert keys.read_secret_file(secret_file(tmp_path / "k")) == SECRET
    assert keys.read_secret_file(secret_file(tmp_path / "k4", mode=0o400)) == SECRET
    assert keys.read_secret_file(secret_file(tmp_path / "k16", SECRET[:16]), length=16) == SECRET[:16]
    assert keys.Signer.from_file(tmp_path / "k").key_id == keys.Signer(SECRET).key_id


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o601, 0o610, 0o620, 0o602, 0o644, 0o660])
def test_i1_any_right_of_others_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(keys.SecretTooOpen, match="k is open to group or others"):
        keys.read_secret_file(secret_file(tmp_path / "k", mode=mode))


def test_i1_symlinks_are_refused(tmp_path: Path) -> None:
    secret_file(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(keys.SecretIsSymlink):
        keys.read_secret_file(tmp_path / "link")


def test_i1_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    for name in ("pipe", "folder"):
        with pytest.raises(keys.SecretNotRegular):
            keys.read_secret_file(tmp_path / name)
    with pytest.raises(keys.SecretMissing):
        keys.read_secret_file(tmp_path / "absent")


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_wrong_length_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(keys.SecretMalformed):
        keys.read_secret_file(secret_file(tmp_path / "k", b"a" * length))
    with pytest.raises(keys.SecretMalformed):
        keys.Signer(b"a" * length)


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_i3_all_zero_and_all_ff_are_refused(tmp_path: Path, byte: bytes) -> None:
    secret = byte * 32
    with pytest.raises(keys.WeakSecret):
        keys.read_secret_file(secret_file(tmp_path / "k", secret))
    with pytest.raises(keys.WeakSecret):
        keys.Signer(secret)
    with pytest.raises(keys.WeakSecret):
        keys.decode_secret(secret.hex(), name="SEED")
    with pytest.raises(keys.WeakSecret):
        keys.decode_secret(base64.b64encode(secret).decode(), name="SEED")


def test_i5_errors_name_the_base_name_and_no_content(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "my\x1b[31mkey", b"planted-secret-planted-secret-planted")
    with pytest.raises(keys.SecretMalformed) as caught:
        keys.read_secret_file(path)
    message = str(caught.value)
    assert "key" in message
    for absent in (str(tmp_path), "planted", "\x1b"):
        assert absent not in message


def test_secrets_from_the_environment() -> None:
    assert keys.decode_secret(SECRET.hex() + "\n", name="SEED") == SECRET
    assert keys.decode_secret(base64.b64encode(SECRET).decode(), name="SEED") == SECRET
    for bad in ("", "00", "planted", SECRET.hex()[:-1], "é" * 44):
        with pytest.raises(keys.SecretMalformed, match="SEED") as caught:
            keys.decode_secret(bad, name="SEED")
        assert not bad or bad not in str(caught.value)


def test_i1_keygen_writes_secrets_with_mode_0600(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "keys"
    old = os.umask(0)
    try:
        made = keys.generate(directory)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {"signing.seed": 0o600, "journal.key": 0o600, "public.json": 0o644}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    seed, journal_key = (directory / "signing.seed").read_bytes(), (directory / "journal.key").read_bytes()
    assert len(seed) == len(journal_key) == 32
    assert seed != journal_key
    signer = keys.Signer.from_file(made.seed)
    assert made.key_id == signer.key_id
    assert json.loads((directory / "public.json").read_bytes()) == [{"public_key_b64": signer.public_key_b64}]
    assert seed not in (directory / "public.json").read_bytes()


@pytest.mark.parametrize("name", ["signing.seed", "journal.key", "public.json"])
def test_keygen_never_overwrites(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(keys.KeysExist, match=name):
        keys.generate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"mine"


def test_keygen_takes_back_what_it_wrote_when_it_loses_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = keys._create

    def create(path: Path, data: bytes, mode: int) -> None:
        if path.name == "journal.key":
            path.write_bytes(b"the other's")
        original(path, data, mode)

    monkeypatch.setattr(keys, "_create", create)
    with pytest.raises(keys.KeysExist):
        keys.generate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["journal.key"]
    assert (tmp_path / "journal.key").read_bytes() == b"the other's"


@pytest.mark.parametrize("sign_bit", [0, 0x80])
@pytest.mark.parametrize(
    "encoding", VECTORS["small_order_signature_traps"]["small_order_y_encodings_ignoring_sign_bit"]
)
def test_small_order_points(encoding: str, sign_bit: int) -> None:
    point = bytearray.fromhex(encoding)
    point[31] |= sign_bit
    assert keys.is_small_order(bytes(point))
    point[15] ^= 1
    assert not keys.is_small_order(bytes(point))


def test_honest_keys_have_no_small_order() -> None:
    for expected in VECTORS["keys"].values():
        assert not keys.is_small_order(bytes.fromhex(expected["public_key_hex"]))
    with pytest.raises(ValueError):
        keys.is_small_order(b"\0" * 31)
