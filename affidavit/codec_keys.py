"""Where the keys of payload encryption come from: files of mode 0600, or the environment (behaviours I1, I6).

Clients and workers read the same variables, because both sides of the wire need the same keys.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from affidavit.codec import KEY_BYTES, EncryptionCodec, codec_key_id
from affidavit.evidence.keys import decode_secret, read_secret_file, write_secret

KEY_FILES_VARIABLE: Final = "AFFIDAVIT_CODEC_KEY_FILES"
"""Files of 32 bytes, colon-separated: the first encrypts, each of them decrypts."""

KEY_VARIABLE: Final = "AFFIDAVIT_CODEC_KEY"
"""One key as hex or base64, where a platform injects secrets; after those of the files."""


def codec_from_environment(environment: Mapping[str, str] = os.environ) -> EncryptionCodec:
    """The codec that the environment describes; one that encrypts nothing if it names no key.

    Raises:
        KeyFileError: a key is missing, malformed, all zero, a link, or readable by others.
    """
    paths = [Path(part) for part in environment.get(KEY_FILES_VARIABLE, "").split(":") if part]
    keys = [read_secret_file(path, setting=KEY_FILES_VARIABLE) for path in paths]
    if text := environment.get(KEY_VARIABLE):
        keys.append(decode_secret(text, name=KEY_VARIABLE))
    return EncryptionCodec(keys)


def generate_codec_key(directory: Path) -> tuple[str, Path]:
    """Write a fresh key as `codec-<key id>.key`; returns its id and its file.

    The id in the name lets the keys of a rotation lie side by side.
    """
    key = secrets.token_bytes(KEY_BYTES)
    key_id = codec_key_id(key)
    path = directory / f"codec-{key_id}.key"
    write_secret(path, key)
    return key_id, path
