"""What the commands share: exit codes, the one-line error, plain lines and JSON on a terminal or in a pipe."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from affidavit.attributes import cost
from affidavit.buslog import BusLogError
from affidavit.errors import AffidavitError, AffidavitUnavailable, AnswerUnreadable
from affidavit.evidence.bundle import BundleExists, NothingToBundle
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keys import KeysExist
from affidavit.evidence.receipt import VerificationError
from affidavit.evidence.text import printable
from affidavit.stores.errors import IntegrityError, StorePlaceError, TransientError
from affidavit.stores.place import Place, place_of

CHOOSE = "(choose the folder with --data-dir)"
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
    "3 integrity only, signer not trusted; 4 no server, no worker, no store or a missing extra."
)


def given_path(text: str) -> Path:
    """A path argument; an empty one, such as an unset variable in a script, is not the working directory."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


def given_place(text: str | None) -> Place | None:
    """What `--store` names, a path or a URL; None where it was not given."""
    try:
        return None if text is None else place_of(text)
    except StorePlaceError as error:
        raise CommandError(f"--store: {error}", Code.USAGE) from None


AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON on standard output.")]
DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        parser=given_path,
        envvar="AFFIDAVIT_DATA_DIR",
        help="Folder of the embedded mode's data.",
    ),
]
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PLACE",
        help="The evidence store itself, instead of the data folder's: a directory, or s3://, gs://, az://BUCKET/PREFIX.",
    ),
]
Generation = Annotated[
    str | None, typer.Option("--generation", help="Which life of the session (a run id); default: the latest.")
]
DATA_DIR = Path(".affidavit")


class _PlainHelp:
    """`--help` takes no value, so none is shown beside it."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class Command(_PlainHelp, TyperCommand):
    """A command."""


class Group(_PlainHelp, TyperGroup):
    """A group of commands."""


class CommandError(Exception):
    """A command cannot do what it was asked; the message is one line."""

    def __init__(self, message: str, code: Code = Code.FAILED) -> None:
        super().__init__(message)
        self.code = code


def explained(error: BaseException) -> tuple[str, Code] | None:
    """One line and an exit code for an error that a user can meet; None for one that nobody foresaw."""
    if isinstance(error, CommandError):
        return str(error), error.code
    if isinstance(error, AffidavitUnavailable | AnswerUnreadable | TransientError):
        return str(error), Code.UNAVAILABLE
    if isinstance(error, AffidavitError | VerificationError | KeysExist | NothingToBundle | BundleExists):
        return str(error), Code.FAILED
    if isinstance(error, EvidenceError | BusLogError | StorePlaceError | IntegrityError):
        return str(error), Code.USAGE
    if isinstance(error, OSError) and error.strerror:
        name = error.filename if isinstance(error.filename, str) else os.fsdecode(error.filename or "")
        return _of_file(Path(name), error.strerror) if name else error.strerror, Code.USAGE
    return None


def _of_file(path: Path, why: str) -> str:
    """A file by its base name, as everywhere; and its folder, where it is that which is missing."""
    folder = path.parent
    missing = "" if folder.is_dir() else f" (there is no folder {printable(folder.name)})"
    return f"{printable(path.name)}: {why}{missing}"


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
    """The one line of an error. Hints that name our commands name them as this one was called."""
    message = message.replace("`affidavit ", f"`{program()} ")
    err().print(Text.assemble(("error: ", "bold red"), printable(message, LINE_CHARS)))


def program() -> str:
    """This command as it was called, to be typed again: a bare name where the shell finds it under that."""
    called = Path(sys.argv[0] or "affidavit")
    if called.name == "__main__.py":
        return "python -m affidavit.cli"
    if called.name != "affidavit":
        return "affidavit"  # a program that uses `run`
    found = shutil.which(called.name)
    if found is not None and Path(found).absolute() == called.absolute():
        return called.name
    near = called.absolute()
    if near.is_relative_to(Path.cwd()):
        near = near.relative_to(Path.cwd())
    return shlex.quote(str(near) if len(near.parts) > 1 else f"./{near}")


def hint(*arguments: str | Path) -> str:
    """A command of ours, to be typed as it stands."""
    words = (plain(each) if isinstance(each, Path) else each for each in arguments)
    return " ".join((program(), *(shlex.quote(word) for word in words)))


def read_file(file: Path, limit: int) -> bytes:
    """Bytes of a file or a pipe. One that is too large is refused, a file before anything of it is read.

    Raises:
        CommandError: it is larger than `limit`.
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        data = opened.read(limit + 1) if size <= limit else b""
    if max(size, len(data)) > limit:
        more = f"{size} bytes" if size > limit else f"more than {limit} bytes"
        raise CommandError(f"{printable(file.name)}: {more}, at most {limit} are read", Code.USAGE)
    return data


def pairs(rows: Mapping[str, Any]) -> None:
    """Names and values, one pair a line; values are escaped, None is left out."""
    shown = {name: value for name, value in rows.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        out().print(Text.assemble((f"{name:<{width}}  ", "bold"), printable(str(value), LINE_CHARS)))


def totals_rows(totals: Mapping[str, int]) -> dict[str, str]:
    """A session's totals, worded."""
    blocked = f", {totals['tool_blocked']} blocked" if totals["tool_blocked"] else ""
    return {
        "tool calls": f"{totals['tool_calls']}{blocked}",
        "tokens": f"{totals['prompt_tokens']} prompt ({totals['cached_tokens']} cached), "
        f"{totals['completion_tokens']} completion",
        "cost": f"{cost(totals['cost_usd_micros'])} USD",
    }


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


def plain(path: Place) -> str:
    """A path as the user gave it, or from the working directory where it lies below it; a URL as it is."""
    if not isinstance(path, Path):
        return str(path)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
