"""`affidavit keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from affidavit.cli.output import DATA_DIR, AsJson, DataDir, emit, line, pairs, plain
from affidavit.evidence.keys import generate


def keygen(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where to; default: keys in the data folder.")
    ] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Make a signing seed and a journal key (mode 0600), and the public keys for auditors. Never overwrites."""
    made = generate(data_dir / "keys" if directory is None else directory)
    files = {"signing seed": made.seed, "journal key": made.journal_key, "public keys": made.public_keys}
    if as_json:
        emit({"key_id": made.key_id, **{name.replace(" ", "_"): str(path) for name, path in files.items()}})
        return
    pairs({"key id": made.key_id, **{name: plain(path) for name, path in files.items()}})
    line("Give auditors the public keys by a way they trust; the other two files stay with the workers.")
