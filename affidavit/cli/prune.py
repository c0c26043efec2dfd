"""`affidavit prune`: erase sessions that ended before a time, or their content alone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from affidavit.cli.connecting import connect
from affidavit.cli.evidence import KEYS, store_in
from affidavit.cli.output import (
    DATA_DIR,
    AsJson,
    Code,
    CommandError,
    DataDir,
    StorePlace,
    emit,
    given_path,
    given_place,
    line,
    note,
)
from affidavit.errors import AffidavitUnavailable
from affidavit.evidence.keys import JOURNAL_KEY_FILE, read_secret_file
from affidavit.evidence.scalars import iso_ms
from affidavit.evidence.text import printable
from affidavit.pruning import Ended, Left, Pruner, Stem
from affidavit.stores.place import StoreUrl, open_erasable_store

if TYPE_CHECKING:
    from temporalio.client import Client

BUS_NOTE: Final = "events on the bus stay: how long it keeps them is its own affair"
HISTORY_NOTE: Final = (
    "Temporal's history holds the steps too, until its retention ends or the sessions are pruned whole"
)
VERSIONS_NOTE: Final = "a bucket that keeps versions keeps what was erased too, until its lifecycle rules expire it"
FULL_NOTE: Final = "with content `full` the events hold content, and stay because the chain is made of them"

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def time_ms(text: str) -> int:
    """Epoch milliseconds of a day (its beginning, UTC) or of a time with its offset."""
    try:
        parsed = datetime.fromisoformat(text)
        if _DATE.fullmatch(text):
            parsed = parsed.replace(tzinfo=UTC)
        if parsed.tzinfo is not None:
            return int(parsed.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter(f"{printable(text)}: a day, or a time with its offset: 2026-08-31, 2026-08-31T12:00:00Z")


@dataclass
class _Done:
    """What a prune has done, or would do."""

    pruned: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, str]] = field(default_factory=list)
    objects: int = 0
    executions: int = 0
    holds_content: bool = False


def prune(
    closed_before: Annotated[
        int,
        typer.Option(
            "--closed-before",
            metavar="TIME",
            parser=time_ms,
            help="Only what ended before: a day (UTC), or a time with its offset.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Say what would go, and erase nothing.")
    ] = False,
    receipts: Annotated[bool, typer.Option("--receipts", metavar="", help="Erase receipts too.")] = False,
    captures_only: Annotated[
        bool,
        typer.Option("--captures-only", metavar="", help="Erase content alone; chains and receipts still verify."),
    ] = False,
    journal_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal-key",
            metavar="FILE",
            parser=given_path,
            help="A journal key's file (0600); repeatable, the first one seals. Default: the data folder's own.",
        ),
    ] = None,
    data_dir: DataDir = DATA_DIR,
    store: StorePlace = None,
    as_json: AsJson = False,
) -> None:
    """Erase the evidence of sessions that have ended, and their executions with it.

    Receipts stay, and of each life a sealed note that it was and how it ended, so that its id is refused as before. A
    repeat finds nothing; one that died half-way is finished by the next. Records on the bus stay. With --store the data
    folder is not looked at, nor a key in it.
    """
    if captures_only and receipts:
        raise CommandError("--receipts goes with whole sessions, not with --captures-only", Code.USAGE)
    place = given_place(store)
    root = store_in(data_dir) if place is None else place
    own = data_dir / KEYS / JOURNAL_KEY_FILE
    given = list(journal_key or ()) or ([own] if place is None and own.exists() else [])
    if not given:
        raise CommandError(
            "the journal key is needed, to tell an outcome that is authentic (--journal-key)", Code.USAGE
        )
    pruner = Pruner(
        open_erasable_store(root),
        [read_secret_file(path) for path in given],
        closed_before_ms=closed_before,
        now_ms=time.time_ns() // 1_000_000,
        captures_only=captures_only,
        receipts=receipts,
    )
    done = asyncio.run(_prune(pruner, dry_run=dry_run, executions=not captures_only))
    if as_json:
        emit({"dry_run": dry_run, "captures_only": captures_only, **asdict(done), "bus": BUS_NOTE})
    else:
        _show(done, dry_run=dry_run, captures_only=captures_only)
        if isinstance(place, StoreUrl):
            note(VERSIONS_NOTE)
    raise typer.Exit(Code.FAILED if done.left else Code.OK)


async def _prune(pruner: Pruner, *, dry_run: bool, executions: bool) -> _Done:
    done = _Done()
    temporal: Client | None = None
    async for stem in _stems(pruner):
        done.left += [asdict(each) for each in stem.left]
        if executions and not dry_run and stem.ended and temporal is None:
            # Only now: where there is nothing to do, no server is needed. Without one nothing is erased.
            temporal = (await connect()).temporal
        kept = bool(stem.left)
        for ended in stem.ended:
            kept |= not await _one(pruner, ended, done, temporal, dry_run=dry_run)
        if stem.payloads and not kept:
            done.objects += len(stem.payloads) if dry_run else await asyncio.to_thread(pruner.erase, stem.payloads)
    return done


async def _one(pruner: Pruner, ended: Ended, done: _Done, temporal: Client | None, *, dry_run: bool) -> bool:
    """Prune one generation. False if it is left as it is."""
    executions = 0
    if not dry_run:
        if temporal is not None and await _still_lives(temporal, ended):
            why = "its execution has not ended yet"
            done.left.append(asdict(Left(printable(ended.session_id), ended.generation, why)))
            return False
        await asyncio.to_thread(pruner.mark, ended)
        if temporal is not None:
            executions = await _forget(temporal, ended)
        await asyncio.to_thread(pruner.erase, ended.names)
    done.objects += len(ended.names)
    done.executions += executions
    done.holds_content |= ended.content == "full"
    done.pruned.append(
        {
            "session_id": ended.session_id,
            "generation": ended.generation,
            "status": ended.status,
            "closed_at": iso_ms(ended.closed_ms),
            "objects": len(ended.names),
        }
    )
    return True


async def _stems(pruner: Pruner) -> AsyncIterator[Stem]:
    found = pruner.stems()
    while (stem := await asyncio.to_thread(next, found, None)) is not None:
        yield stem


async def _still_lives(temporal: Client, ended: Ended) -> bool:
    from temporalio.service import RPCError

    from affidavit.forgetting import lives

    try:
        return await lives(temporal, ended.session_id, ended.generation)
    except RPCError as error:
        raise AffidavitUnavailable(f"the Temporal server does not answer: {printable(error.message, 200)}") from error


async def _forget(temporal: Client, ended: Ended) -> int:
    from temporalio.service import RPCError

    from affidavit.forgetting import forget

    try:
        return await forget(temporal, ended.session_id, ended.generation)
    except RPCError as error:
        raise AffidavitUnavailable(f"the Temporal server does not answer: {printable(error.message, 200)}") from error


def _show(done: _Done, *, dry_run: bool, captures_only: bool) -> None:
    verb = ("would be " if dry_run else "") + ("erased" if captures_only else "pruned")
    for each in done.pruned:
        what = f"{each['status']} {each['closed_at']}, {each['objects']} objects"
        line(printable(f"{verb}  {each['session_id']}  {each['generation']}  {what}", 600))
    for each in done.left:
        line(printable(f"left    {each['stem']}  {each['generation']}  {each['why']}", 600), "yellow")
    executions = "" if captures_only or dry_run else f", {done.executions} executions"
    line(f"{verb}: {len(done.pruned)} generations, {done.objects} objects{executions}", "bold")
    note(BUS_NOTE)
    if captures_only and done.pruned:
        note(HISTORY_NOTE)
        if done.holds_content:
            note(FULL_NOTE)
