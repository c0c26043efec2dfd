"""The command line as a whole: which commands there are, and how any error becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from affidavit.cli import (
    audit,
    codec,
    doctor,
    embedded,
    grants,
    keys,
    offline,
    processes,
    prune,
    replay,
    sessions,
    spool,
    topics,
    trajectory,
)
from affidavit.cli.output import EXIT_CODES, Code, Command, Group, explained, fail, line, prepare_streams, program
from affidavit.exiting import INTERRUPTED
from affidavit.version import VERSION

DEBUG = "AFFIDAVIT_DEBUG"

app = typer.Typer(
    name="affidavit",
    cls=Group,
    help="Agent sessions as evidence: report them, close them, and verify their receipts offline.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Try it": (replay.demo, replay.replay, embedded.dev),
    "Sessions": (
        processes.list_,
        sessions.show,
        processes.tail,
        processes.wait,
        sessions.close,
        processes.cancel,
        processes.abandon,
        sessions.receipt,
        sessions.promote,
    ),
    "Operate": (doctor.setup, doctor.doctor, codec.codec_server),
    "Evidence": (offline.verify, offline.bundle, audit.audit, offline.events, offline.schema, keys.keygen, prune.prune),
}
for _panel, _commands in _GROUPS.items():
    for _command in _commands:
        _name = _command.__name__.rstrip("_").replace("_", "-")
        app.command(_name, cls=Command, rich_help_panel=_panel, epilog=EXIT_CODES)(_command)
for _sub, _panel in (
    (trajectory.app, "Evidence"),
    (grants.app, "Sessions"),
    (spool.app, "Sessions"),
    (topics.app, "Operate"),
):
    for _registered in _sub.registered_commands:
        _registered.cls = Command
    app.add_typer(_sub, cls=Group, rich_help_panel=_panel)


def _print_version(wanted: bool) -> None:
    if wanted:
        line(f"affidavit {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: without the program's name.

    Returns:
        the exit code; an error has been printed as one line on standard error.
    """
    prepare_streams()
    try:
        # Not standalone: typer's own error display is a box of several lines.
        code = app(args=list(arguments), prog_name="affidavit", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Code.FAILED
    except KeyboardInterrupt:
        fail("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user
        return _reported(error)
    if code == INTERRUPTED:  # typer's own word for the same
        fail("interrupted")
    return code if isinstance(code, int) else Code.OK


def _helpful(error: typer.TyperException) -> str:
    """The command whose help tells about a bad use, as it is to be typed."""
    context = getattr(error, "ctx", None)
    return program() if context is None else " ".join((program(), *context.command_path.split()[1:]))


def _reported(error: Exception) -> int:
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, typer.TyperException):  # an unknown command or option, a missing argument
        if message := error.format_message():
            fail(f"{' '.join(message.split())} (see {_helpful(error)} --help)")
        return error.exit_code
    known = explained(error)
    if known is None:
        fail(f"internal error: {type(error).__name__} (set {DEBUG}=1 for the trace)")
        return Code.FAILED
    fail(known[0])
    return known[1]
