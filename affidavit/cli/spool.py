"""`affidavit spool`: report what was spooled while Affidavit was away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from affidavit.cli.connecting import connect
from affidavit.cli.output import AsJson, Code, CommandError, Group, emit, explained, fail, line, pairs
from affidavit.evidence.text import printable
from affidavit.spool import SpoolBusy, SpoolError, spool_files, spool_folder

app = typer.Typer(
    name="spool", cls=Group, help="Report what agents spooled while nobody answered.", no_args_is_help=True
)
Folder = Annotated[
    Path | None,
    typer.Option("--spool", metavar="DIR", help="The spool folder; by default $AFFIDAVIT_SPOOL or .affidavit/spool."),
]


@app.command("list")
def list_(folder: Folder = None, as_json: AsJson = False) -> None:
    """List the spool files that are to be pushed, the oldest first."""
    names = [path.name for path in spool_files(spool_folder(folder))]
    if as_json:
        emit(names)
    else:
        for name in names:
            line(name)


@app.command()
def push(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Only these; else the folder.")
    ] = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Report each spool file to its session, in order and each step once, end the session, and remove the file.

    A push that was interrupted is gone on with by the next one. Exit 1 if a file, or a part of it, could not be
    reported; the file stays.
    """
    wanted = files or spool_files(spool_folder(folder))
    done, failed = asyncio.run(_push(wanted))
    if as_json:
        emit({"pushed": done, "failed": failed})
    else:
        for each in done:
            pairs({**each, "torn": "its last line was cut short, and left out" if each["torn"] else None})
        for name, why in failed.items():
            fail(f"{printable(name)}: {why}")
        if not wanted:
            line("there is nothing to push")
    if failed:
        raise typer.Exit(Code.FAILED)


async def _push(files: list[Path]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    done: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    if not files:
        return done, failed
    client = await connect()
    from affidavit.spooling import push as push_file

    for path in files:
        try:
            pushed = await push_file(client, path)
        except SpoolBusy as error:
            failed[path.name] = str(error)
        except (SpoolError, OSError) as error:
            failed[path.name] = str(error) if isinstance(error, SpoolError) else f"cannot be read: {error.strerror}"
        except Exception as error:
            known = explained(error)
            if known is None:
                raise
            if known[1] == Code.UNAVAILABLE:
                raise CommandError(known[0], Code.UNAVAILABLE) from error
            failed[path.name] = known[0]
        else:
            outcome = pushed.outcome
            done.append(
                {
                    "file": path.name,
                    "session": pushed.session_id,
                    "messages": pushed.messages,
                    "torn": pushed.torn,
                    "status": outcome.status if outcome else "open",
                    "receipt": outcome.receipt_id if outcome else None,
                }
            )
            if pushed.kept:
                failed[path.name] = (
                    f"not all of it was reported: {pushed.bad} lines cannot be read, the session did not "
                    f"take {pushed.rejected} messages; the file is kept"
                )
    return done, failed
