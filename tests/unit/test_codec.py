"""I6: the codec, against AES-GCM as the format describes it; and where its keys come from."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload

from affidavit.cli.app import run
from affidavit.codec import EncryptionCodec, codec_key_id
from affidavit.codec_keys import codec_from_environment
from affidavit.converter import data_converter
from affidavit.evidence.keys import KeyFileError, SecretIsSymlink, SecretTooOpen, WeakSecret
from affidavit.offloading import UNAVAILABLE, Unavailable
from tests.support.encrypted import ID_A, ID_B, KEY_A, KEY_B
from tests.support.oracle import sha256

PLAIN = Payload(metadata={"encoding": b"json/plain", "own": b"kept"}, data=b'"a secret"')
SIZES = (0, 1, 1024 * 1024 + 1)


@pytest.mark.parametrize("size", SIZES)
async def test_i6_a_payload_is_sealed_whole_and_comes_back(size: int) -> None:
    codec = EncryptionCodec([KEY_A])
    plain = Payload(metadata=PLAIN.metadata, data=b"x" * size)
    (sealed,) = await codec.encode([plain])
    assert dict(sealed.metadata) == {"encoding": b"affidavit/aes-256-gcm", "affidavit-key-id": ID_A.encode()}
    assert await codec.decode([sealed]) == [plain]
    (again,) = await codec.encode([plain])
    assert again.data[:12] != sealed.data[:12]


async def test_i6_the_form_is_the_one_described() -> None:
    """Opened, and made, by the library alone."""
    (sealed,) = await EncryptionCodec([KEY_A]).encode([PLAIN])
    aad = b"affidavit/aes-256-gcm\0" + ID_A.encode()
    inner = AESGCM(KEY_A).decrypt(sealed.data[:12], sealed.data[12:], aad)
    assert Payload.FromString(inner) == PLAIN
    nonce = b"\7" * 12
    sealed.data = nonce + AESGCM(KEY_A).encrypt(nonce, PLAIN.SerializeToString(), aad)
    assert await EncryptionCodec([KEY_B, KEY_A]).decode([sealed]) == [PLAIN]


async def test_i6_rotation_the_first_key_seals_and_each_opens() -> None:
    (old,) = await EncryptionCodec([KEY_A]).encode([PLAIN])
    codec = EncryptionCodec([KEY_B, KEY_A])
    (new,) = await codec.encode([PLAIN])
    assert new.metadata["affidavit-key-id"] == ID_B.encode()
    assert await codec.decode([old, new]) == [PLAIN, PLAIN]
    assert codec.key_ids == [ID_B, ID_A]


@pytest.mark.parametrize("place", [0, 11, 12, -17, -1])
async def test_i6_a_flipped_bit_is_unavailable_and_named_by_its_key(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    codec = EncryptionCodec([KEY_A])
    (sealed,) = await codec.encode([PLAIN])
    data = bytearray(sealed.data)
    data[place] ^= 1
    sealed.data = bytes(data)
    with caplog.at_level(logging.WARNING, "affidavit.codec"):
        (lost,) = await codec.decode([sealed])
        await codec.decode([sealed])  # a replay says nothing new
    assert lost.metadata["encoding"] == UNAVAILABLE
    assert lost.metadata["sha256"] == sha256(bytes(data)).encode()
    assert "unknown-key" not in lost.metadata
    assert [record.getMessage() for record in caplog.records] == [
        f"a payload of {len(data)} bytes encrypted with key {ID_A} cannot be opened: its tag is bad: it was altered"
    ]


@pytest.mark.parametrize("change", ["key id", "truncated", "empty", "garbage inside"])
async def test_i6_what_was_not_sealed_like_this_is_unavailable(change: str) -> None:
    codec = EncryptionCodec([KEY_A, KEY_B])
    (sealed,) = await codec.encode([PLAIN])
    if change == "key id":  # a key that is there, but not the one that sealed
        sealed.metadata["affidavit-key-id"] = ID_B.encode()
    elif change == "garbage inside":
        nonce = b"\1" * 12
        sealed.data = nonce + AESGCM(KEY_A).encrypt(nonce, b"\xff\xff", b"affidavit/aes-256-gcm\0" + ID_A.encode())
    else:
        sealed.data = sealed.data[:27] if change == "truncated" else b""
    (lost,) = await codec.decode([sealed])
    assert lost.metadata["encoding"] == UNAVAILABLE


async def test_i6_an_unknown_key_is_unavailable_and_named(caplog: pytest.LogCaptureFixture) -> None:
    (sealed,) = await EncryptionCodec([KEY_A]).encode([PLAIN])
    for codec in (EncryptionCodec([KEY_B]), EncryptionCodec()):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "affidavit.codec"):
            (lost,) = await codec.decode([sealed])
        assert lost.metadata["encoding"] == UNAVAILABLE
        assert Unavailable.of(lost).unknown_key == ID_A
        assert [record.getMessage() for record in caplog.records] == [
            f"a payload of {len(sealed.data)} bytes encrypted with key {ID_A} cannot be opened: "
            "this process does not have that key"
        ]


async def test_i5_a_forged_key_id_is_escaped_in_the_log_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    forged = Payload(metadata={"encoding": b"affidavit/aes-256-gcm", "affidavit-key-id": b"\x1b[31m\nx" + b"y" * 99})
    with caplog.at_level(logging.WARNING, "affidavit.codec"):
        (lost,) = await EncryptionCodec([KEY_A]).decode([forged])
    assert Unavailable.of(lost).unknown_key == "malformed"
    message = caplog.records[0].getMessage()
    assert "\x1b" not in message
    assert "\n" not in message
    assert r"\x1b[31m\x0axy" in message


async def test_i6_plain_payloads_are_read_and_without_a_key_nothing_is_sealed() -> None:
    assert await EncryptionCodec([KEY_A]).decode([PLAIN]) == [PLAIN]
    assert await EncryptionCodec().encode([PLAIN]) == [PLAIN]


async def test_i6_the_message_of_a_failure_is_sealed_with_the_rest() -> None:
    from temporalio.api.failure.v1 import Failure
    from temporalio.exceptions import ApplicationError

    converter, failure = data_converter(codec=EncryptionCodec([KEY_A])), Failure()
    await converter.encode_failure(ApplicationError("planted", "planted detail", type="Kind"), failure)
    assert b"planted" not in failure.SerializeToString()
    assert failure.application_failure_info.type == "Kind"
    kept = failure.SerializeToString()
    error = await converter.decode_failure(failure)
    assert isinstance(error, ApplicationError)
    assert (error.message, error.details) == ("planted", ("planted detail",))
    # Without the key: no message, and no exception either.
    error = await data_converter().decode_failure(Failure.FromString(kept))
    assert isinstance(error, ApplicationError)
    assert error.message == "Encoded failure"


def test_i1_a_key_shows_its_id_alone_and_is_never_pickled() -> None:
    codec = EncryptionCodec([KEY_A])
    assert codec_key_id(KEY_A) == ID_A
    assert KEY_A.hex() not in repr(vars(codec))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(codec)


def write(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_i6_keys_come_from_files_and_the_environment(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", KEY_A), write(tmp_path / "b", KEY_B)
    environment = {"AFFIDAVIT_CODEC_KEY_FILES": f"{b}:{a}"}
    assert codec_from_environment(environment).key_ids == [ID_B, ID_A]
    environment = {"AFFIDAVIT_CODEC_KEY_FILES": str(b), "AFFIDAVIT_CODEC_KEY": KEY_A.hex()}
    assert codec_from_environment(environment).key_ids == [ID_B, ID_A]
    assert not codec_from_environment({}).encrypts


def test_i1_a_key_that_others_could_read_or_swap_or_guess_is_refused(tmp_path: Path) -> None:
    open_file = write(tmp_path / "open", KEY_A, 0o640)
    link = tmp_path / "link"
    link.symlink_to(write(tmp_path / "a", KEY_A))
    cases: list[tuple[dict[str, str], type[KeyFileError]]] = [
        ({"AFFIDAVIT_CODEC_KEY_FILES": str(open_file)}, SecretTooOpen),
        ({"AFFIDAVIT_CODEC_KEY_FILES": str(link)}, SecretIsSymlink),
        ({"AFFIDAVIT_CODEC_KEY": "00" * 32}, WeakSecret),
        ({"AFFIDAVIT_CODEC_KEY": "5e" * 31}, KeyFileError),
    ]
    for environment, error in cases:
        with pytest.raises(error) as refused:
            codec_from_environment(environment)
        assert KEY_A.hex() not in str(refused.value)


def test_i6_keygen_makes_a_key_beside_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keygen", str(tmp_path), "--codec"]) == 0
    assert run(["keygen", str(tmp_path), "--codec"]) == 0
    first, second = files = sorted(tmp_path.glob("codec-*.key"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    codec = codec_from_environment({"AFFIDAVIT_CODEC_KEY_FILES": f"{first}:{second}"})
    assert [f"codec-{key_id}.key" for key_id in codec.key_ids] == [first.name, second.name]
    said = capsys.readouterr().out
    assert all(key_id in said for key_id in codec.key_ids)
    assert first.read_bytes().hex() not in said
