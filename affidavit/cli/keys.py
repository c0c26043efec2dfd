"""`affidavit keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from affidavit.cli.output import DATA_DIR, AsJson, Code, CommandError, DataDir, emit, line, pairs, plain
from affidavit.evidence.keys import generate


def keygen(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where to; default: keys in the data folder.")
    ] = None,
    data_dir: DataDir = DATA_DIR,
    codec: Annotated[
        bool, typer.Option("--codec", metavar="", help="Make a key for payload encryption, and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a signing seed and a journal key (mode 0600), and the public keys for auditors. Never overwrites.

    With --codec: one more key for payload encryption, beside those that are there.
    """
    directory = data_dir / "keys" if directory is None else directory
    if codec:
        _codec_key(directory, as_json)
        return
    made = generate(directory)
    files = {"signing seed": made.seed, "journal key": made.journal_key, "public keys": made.public_keys}
    if as_json:
        emit({"key_id": made.key_id, **{name.replace(" ", "_"): str(path) for name, path in files.items()}})
        return
    pairs({"key id": made.key_id, **{name: plain(path) for name, path in files.items()}})
    line("Give auditors the public keys by a way they trust; the other two files stay with the workers.")


def _codec_key(directory: Path, as_json: bool) -> None:
    try:
        from affidavit.codec_keys import KEY_FILES_VARIABLE, generate_codec_key
    except ModuleNotFoundError as error:
        raise CommandError(
            f"a codec is part of the client extra (affidavit[client]): no {error.name}", Code.UNAVAILABLE
        ) from None
    key_id, path = generate_codec_key(directory)
    if as_json:
        emit({"key_id": key_id, "codec_key": str(path)})
        return
    pairs({"key id": key_id, "codec key": plain(path)})
    line(f"Clients and workers name it in {KEY_FILES_VARIABLE}: give it to all of them behind the old key first,")
    line("then put it in front; keep the old one until the last history that was written with it has expired.")
