"""What the commands share: exit codes, the one-line error, plain lines and JSON on a terminal or in a pipe."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from affidavit.buslog import BusLogError
from affidavit.errors import AffidavitError, AffidavitUnavailable
from affidavit.evidence.bundle import BundleExists, NothingToBundle
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keys import KeysExist
from affidavit.evidence.receipt import VerificationError
from affidavit.evidence.text import printable

LINE_CHARS = 600
"""An error is one line of at most so many characters."""


class Code(IntEnum):
    """Exit codes; `EXIT_CODES` words them for `--help`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTEGRITY_ONLY = 3
    UNAVAILABLE = 4


EXIT_CODES = (
    "Exit codes: 0 done, or the receipt is valid; 1 refused or failed; 2 bad usage or an unusable file; "
    "3 integrity only, signer not trusted; 4 no server, no worker or a missing extra."
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="AFFIDAVIT_DATA_DIR", help="Folder of the embedded mode's data.")
]
Generation = Annotated[
    str | None, typer.Option("--generation", help="Which life of the session (a run id); default: the latest.")
]
DATA_DIR = Path(".affidavit")


class CommandError(Exception):
    """A command cannot do what it was asked; the message is one line."""

    def __init__(self, message: str, code: Code = Code.FAILED) -> None:
        super().__init__(message)
        self.code = code


def explained(error: BaseException) -> tuple[str, Code] | None:
    """One line and an exit code for an error that a user can meet; None for one that nobody foresaw."""
    if isinstance(error, CommandError):
        return str(error), error.code
    if isinstance(error, AffidavitUnavailable):
        return str(error), Code.UNAVAILABLE
    if isinstance(error, AffidavitError | VerificationError | KeysExist | NothingToBundle | BundleExists):
        return str(error), Code.FAILED
    if isinstance(error, EvidenceError | BusLogError):
        return str(error), Code.USAGE
    if isinstance(error, OSError) and error.strerror:
        name = error.filename if isinstance(error.filename, str) else os.fsdecode(error.filename or "")
        return f"{printable(Path(name).name)}: {error.strerror}" if name else error.strerror, Code.USAGE
    return None


def out() -> Console:
    """Standard output. No markup and no highlighting: what is shown is often foreign."""
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def err() -> Console:
    """Standard error, for progress and errors."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def line(text: str, style: str = "") -> None:
    """One line on standard output."""
    out().print(Text(text, style=style))


def note(text: str) -> None:
    """One line on standard error that is no error."""
    err().print(Text(text, style="dim"))


def fail(message: str) -> None:
    """The one line of an error."""
    err().print(Text.assemble(("error: ", "bold red"), printable(message, LINE_CHARS)))


def pairs(rows: Mapping[str, Any]) -> None:
    """Names and values, one pair a line; values are escaped, None is left out."""
    shown = {name: value for name, value in rows.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        out().print(Text.assemble((f"{name:<{width}}  ", "bold"), printable(str(value), LINE_CHARS)))


def table(rows: Iterable[tuple[str, str, str, str]]) -> None:
    """Lines of (style, word, name, detail), aligned."""
    listed = list(rows)
    words, names = (max((len(row[column]) for row in listed), default=0) for column in (1, 2))
    for style, word, name, detail in listed:
        out().print(Text.assemble((f"{word:<{words}}", style), f"  {name:<{names}}  ", printable(detail, LINE_CHARS)))


def emit(value: Any) -> None:
    """A JSON document on standard output."""
    emit_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def emit_text(text: str) -> None:
    """JSON text on standard output: in a pipe as it is, on a terminal with everything but ASCII escaped."""
    if sys.stdout.isatty():
        text = "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text).replace("\x7f", "\\u007f")
    sys.stdout.write(text)


def prepare_streams() -> None:
    """Make output that no terminal and no locale can break: UTF-8 in a pipe, escapes for what cannot be shown."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


def plain(path: Path) -> str:
    """A path as the user gave it, or from the working directory where it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
