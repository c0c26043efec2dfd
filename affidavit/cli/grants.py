"""`affidavit grant`: who may address which session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from affidavit.cli.connecting import connect, require_worker
from affidavit.cli.evidence import checked_session
from affidavit.cli.output import EXIT_CODES, AsJson, emit, line, table
from affidavit.evidence.text import printable
from affidavit.grants import Grant

if TYPE_CHECKING:
    from affidavit.granting import Grants

T = TypeVar("T")

app = typer.Typer(
    name="grant",
    help="Who may address which session: await it, look at it, cancel and wake it. Cooperative: clients with a holder "
    "ask; the hard border is Temporal's own authorisation.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Holder = Annotated[str, typer.Argument(metavar="HOLDER", help="A session id, or another name of that form.")]
Sessions = Annotated[list[str], typer.Argument(metavar="SESSION...", help="Session ids.")]


@app.command(epilog=EXIT_CODES)
def grant(
    holder: Holder,
    sessions: Sessions,
    descriptor: Annotated[str, typer.Option("--descriptor", help="Shown with the grant; at most 200 bytes.")] = "",
    as_json: AsJson = False,
) -> None:
    """Let a holder address sessions; all of them or none are granted."""
    changed = _asked(lambda book: book.grant(holder, *_checked(sessions), descriptor=descriptor))
    _changed("granted", changed, as_json=as_json)


@app.command(epilog=EXIT_CODES)
def revoke(holder: Holder, sessions: Sessions, as_json: AsJson = False) -> None:
    """Take grants back. The sessions go on, also without any holder."""
    _changed("revoked", _asked(lambda book: book.revoke(holder, *_checked(sessions))), as_json=as_json)


@app.command(epilog=EXIT_CODES)
def transfer(
    holder: Holder,
    to: Annotated[str, typer.Argument(metavar="TO", help="The holder who gets them.")],
    sessions: Sessions,
    as_json: AsJson = False,
) -> None:
    """Move grants to another holder with their descriptors: all or none."""
    _changed("moved", _asked(lambda book: book.transfer(holder, to, *_checked(sessions))), as_json=as_json)


@app.command("list", epilog=EXIT_CODES)
def list_(
    holder: Holder,
    live_only: Annotated[bool, typer.Option("--live-only", metavar="", help="Only sessions that run now.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what a holder may address."""
    _show(_asked(lambda book: book.list(holder, live_only=live_only)), by_session=True, as_json=as_json)


@app.command(epilog=EXIT_CODES)
def holders(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A session id.")], as_json: AsJson = False
) -> None:
    """List who may address a session."""
    checked_session(session)
    _show(_asked(lambda book: book.holders(session)), by_session=False, as_json=as_json)


@app.command("delete-holder", epilog=EXIT_CODES)
def delete_holder(holder: Holder, as_json: AsJson = False) -> None:
    """Revoke everything that a holder has. Nothing is cancelled; what lives without a holder now is named."""
    deleted = _asked(lambda book: book.delete_holder(holder))
    if as_json:
        emit(deleted.model_dump())
        return
    kinds = (("orphaned", deleted.orphaned), ("preserved", deleted.preserved))
    table([("", kind, printable(each, 200), "") for kind, found in kinds for each in found])
    line(
        f"revoked: {len(deleted.revoked)}, orphaned: {len(deleted.orphaned)}, preserved: {len(deleted.preserved)}",
        "bold",
    )


def _asked(ask: Callable[[Grants], Awaitable[T]]) -> T:
    async def asked() -> T:
        client = await connect()
        await require_worker(client)
        return await ask(client.grants)

    return asyncio.run(asked())


def _checked(sessions: list[str]) -> list[str]:
    return [checked_session(session) for session in sessions]


def _changed(what: str, changed: int, *, as_json: bool) -> None:
    if as_json:
        emit({what: changed})
    else:
        line(f"{what}: {changed}", "bold")


def _show(grants: list[Grant], *, by_session: bool, as_json: bool) -> None:
    if as_json:
        emit([each.model_dump() for each in grants])
        return
    named = [each.session_id if by_session else each.holder for each in grants]
    table(("", "", printable(name, 200), each.descriptor) for name, each in zip(named, grants, strict=True))
    line(f"{len(grants)} grants", "bold")
