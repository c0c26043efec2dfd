"""Secrets of the product and the signer built on one of them (formats.md 5 and 6, behaviours I1-I3).

Secrets come from files that only their owner can read, or from the environment. Errors name the file's base name and
never its content.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from affidavit.evidence.durable import sync_directory
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable

SECRET_BYTES: Final = 32
KEY_ID_DIGITS: Final = 32
TEXT_CHARS: Final = (16, 512)
SEED_FILE: Final = "signing.seed"
JOURNAL_KEY_FILE: Final = "journal.key"
PUBLIC_FILE: Final = "public.json"

# Every encoding of a point whose order divides 8, sign bit cleared; the last two are non-canonical forms of 0 and 1.
_SMALL_ORDER: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)


class KeyFileError(EvidenceError):
    """A secret could not be taken from where it was looked for."""


class SecretMissing(KeyFileError):
    """There is no such file, or it cannot be read."""


class SecretIsSymlink(KeyFileError):
    """The path is a symbolic link: whoever controls it could swap the secret."""


class SecretNotRegular(KeyFileError):
    """The path is a directory, a pipe or a device."""


class SecretTooOpen(KeyFileError):
    """Somebody other than the owner has rights on the file."""


class SecretMalformed(KeyFileError):
    """The secret has the wrong length or the wrong form."""


class WeakSecret(KeyFileError):
    """All bytes are zero or all are 0xFF: a placeholder, not a secret."""


class KeysExist(KeyFileError):
    """Keys are generated once; there are some already."""


def is_small_order(point: bytes) -> bool:
    """Whether a 32-byte encoded Ed25519 point has small order, in any encoding. Such keys verify forgeries."""
    if len(point) != SECRET_BYTES:
        raise ValueError("an encoded point has 32 bytes")
    return point[:31] + bytes([point[31] & 0x7F]) in _SMALL_ORDER


def key_id_of(public_key: bytes) -> str:
    """Key id of a raw public key: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:KEY_ID_DIGITS]


def read_secret_text(path: str | os.PathLike[str], *, setting: str | None = None) -> str:
    """The text of a secret file, a token say, without white space around it: 16 to 512 printable ASCII characters.

    Raises:
        KeyFileError: as of `read_secret_file`.
    """
    return check_secret_text(read_private_file(path, limit=TEXT_CHARS[1] + 2, setting=setting), name=_base_name(path))


def check_secret_text(data: bytes, *, name: str) -> str:
    """A secret text from a file or a variable; `name` is what to call it in errors, never its value."""
    text = data.strip()
    if not (TEXT_CHARS[0] <= len(text) <= TEXT_CHARS[1] and all(0x21 <= byte <= 0x7E for byte in text)):
        raise SecretMalformed(
            f"{printable(name)} does not hold {TEXT_CHARS[0]} to {TEXT_CHARS[1]} printable ASCII characters"
        )
    return text.decode("ascii")


def read_secret_file(path: str | os.PathLike[str], *, length: int = SECRET_BYTES, setting: str | None = None) -> bytes:
    """The ``length`` raw bytes of a secret file.

    Args:
        setting: what told the path, see `read_private_file`.

    Raises:
        KeyFileError: as `read_private_file`, and for a wrong length, all-zero or all-0xFF.
    """
    return _checked(read_private_file(path, limit=length + 1, setting=setting), _base_name(path), length)


def read_private_file(path: str | os.PathLike[str], *, limit: int, setting: str | None = None) -> bytes:
    """At most ``limit`` bytes of a file that nobody but its owner can read.

    Args:
        setting: what told the path. A path that cannot be opened is then not repeated: it may be the secret itself,
            pasted where a path belongs.

    Raises:
        KeyFileError: a subclass for each reason: missing, symbolic link, not a regular file, any right for group or
            others.
    """
    name = _base_name(path)
    try:
        # O_NONBLOCK: a named pipe must be refused, not waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise SecretIsSymlink(f"{name} is a symbolic link") from None
        what = name if setting is None else f"{setting}: a file that it names"
        raise SecretMissing(f"{what} cannot be opened: {os.strerror(error.errno or 0)}") from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise SecretNotRegular(f"{name} is not a regular file")
        if facts.st_mode & 0o077:
            raise SecretTooOpen(f"{name} is open to group or others (mode {facts.st_mode & 0o777:04o}, must be 0600)")
        return os.read(handle, limit)
    finally:
        os.close(handle)


def _base_name(path: str | os.PathLike[str]) -> str:
    return printable(os.path.basename(os.fspath(path)))  # noqa: PTH119  (Path would drop a final slash)


def decode_secret(text: str, *, name: str, length: int = SECRET_BYTES) -> bytes:
    """The bytes of a secret given as hex or standard base64 text, as an environment variable holds it.

    Args:
        text: the secret; surrounding whitespace is ignored.
        name: what to call it in errors (the variable), never the value.
    """
    text = text.strip()
    for decode in (bytes.fromhex, _from_base64):
        try:
            return _checked(decode(text), name, length)
        except (ValueError, SecretMalformed) as error:
            if isinstance(error, WeakSecret):
                raise
    raise SecretMalformed(f"{printable(name)} is not {length} bytes as hex or base64")


class Signer:
    """An Ed25519 key that signs. It shows its key id and nothing else."""

    __slots__ = ("_key", "key_id", "public_key", "public_key_b64")

    key_id: str
    public_key: bytes
    public_key_b64: str

    def __init__(self, seed: bytes) -> None:
        """Load a 32-byte seed; `SecretMalformed` or `WeakSecret` where it is none."""
        self._key = Ed25519PrivateKey.from_private_bytes(_checked(seed, "signing seed", SECRET_BYTES))
        self.public_key = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public_key_b64 = base64.b64encode(self.public_key).decode()
        self.key_id = key_id_of(self.public_key)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, setting: str | None = None) -> Signer:
        """The signer whose seed is in a secret file (see `read_secret_file`)."""
        return cls(read_secret_file(path, setting=setting))

    def sign(self, message: bytes) -> bytes:
        """The 64-byte pure Ed25519 signature of ``message``."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Signer(key_id={self.key_id!r})"

    def __reduce__(self) -> NoReturn:
        # A signer that can be pickled can be sent somewhere by accident.
        raise TypeError("a Signer cannot be pickled")


@dataclass(frozen=True, slots=True)
class GeneratedKeys:
    """What `generate` wrote."""

    key_id: str
    seed: Path
    journal_key: Path
    public_keys: Path


def generate(directory: Path) -> GeneratedKeys:
    """Write a fresh seed, journal key (both 0600) and keyring into ``directory``, once.

    The directory is made with mode 0700 where it is missing. Everything is fsynced before this returns.

    Raises:
        KeysExist: one of the three files exists; nothing was changed.
    """
    made = GeneratedKeys("", directory / SEED_FILE, directory / JOURNAL_KEY_FILE, directory / PUBLIC_FILE)
    seed = secrets.token_bytes(SECRET_BYTES)
    signer = Signer(seed)
    contents = (
        (made.seed, seed, 0o600),
        (made.journal_key, secrets.token_bytes(SECRET_BYTES), 0o600),
        # Last: whoever sees the public keys sees a complete set.
        (made.public_keys, _ring(signer), 0o644),
    )
    for path, _, _ in contents:
        if os.path.lexists(path):
            raise KeysExist(f"{path.name} exists; keys are generated once and never overwritten")
    _make_directory(directory)
    written: list[Path] = []
    try:
        for path, data, mode in contents:
            _create(path, data, mode)
            written.append(path)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise KeysExist("another process is generating keys here") from None
        raise
    sync_directory(directory)
    return GeneratedKeys(signer.key_id, made.seed, made.journal_key, made.public_keys)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret into a new file of mode 0600, in a folder that is made if it is missing (mode 0700).

    Raises:
        KeysExist: there is such a file; nothing was changed.
    """
    _make_directory(path.parent)
    try:
        _create(path, secret, 0o600)
    except FileExistsError:
        raise KeysExist(f"{path.name} exists; keys are generated once and never overwritten") from None
    sync_directory(path.parent)


def write_public_keys(seed: Path, public_keys: Path) -> None:
    """Write the keyring of a seed's own key, where there is none.

    Raises:
        KeyFileError: the seed cannot be used, or somebody else has just written it.
    """
    try:
        _create(public_keys, _ring(Signer.from_file(seed)), 0o644)
    except FileExistsError:
        raise KeysExist("another process is generating keys here") from None
    sync_directory(public_keys.parent)


def _ring(signer: Signer) -> bytes:
    return f"{json.dumps([{'public_key_b64': signer.public_key_b64}], indent=2)}\n".encode()


def _checked(secret: bytes, name: str, length: int) -> bytes:
    if len(secret) != length:
        raise SecretMalformed(f"{printable(name)} does not hold exactly {length} bytes")
    if secret in (bytes(length), b"\xff" * length):
        raise WeakSecret(f"{printable(name)} is all zero or all 0xFF")
    return secret


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _make_directory(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)


def _create(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
