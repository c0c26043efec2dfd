"""`affidavit audit`: is the evidence in a data folder complete? Without a server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from affidavit.buslog import BusLogReader, LogRow
from affidavit.cli.evidence import BUS, KEYS, store_at, store_in
from affidavit.cli.output import (
    DATA_DIR,
    AsJson,
    Code,
    DataDir,
    StorePlace,
    emit_text,
    given_path,
    given_place,
    line,
)
from affidavit.evidence.audit import Audit, Counts, Finding
from affidavit.evidence.keys import JOURNAL_KEY_FILE, read_secret_file
from affidavit.evidence.text import printable
from affidavit.stores.folder import folder_of

OLDER_THAN: Final = "1h"
LINE_CHARS: Final = 600

_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Milliseconds of a whole number with a unit: 90s, 15m, 1h, 2d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{printable(text)}: a number with a unit is needed, such as 90s, 15m, 1h or 2d")
    return int(match[1]) * _UNIT_MS[match[2]]


def audit(
    data_dir: DataDir = DATA_DIR,
    journal_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal-key",
            metavar="FILE",
            parser=given_path,
            help="A journal key's file (0600), to check every MAC; repeatable. Default: the data folder's own, if any.",
        ),
    ] = None,
    older_than: Annotated[
        int,
        typer.Option(
            "--older-than",
            metavar="AGE",
            parser=duration_ms,
            help="A session without an outcome is a finding if its last event is older, by event time (90s, 15m, 2d).",
        ),
    ] = OLDER_THAN,  # type: ignore[assignment]
    store: StorePlace = None,
    as_json: AsJson = False,
) -> None:
    """Look through all evidence, and the embedded bus if there is one, for what is missing, doubled or out of place.

    One line for each finding: what kind, session, generation, what. A session without an outcome whose last event is
    not older than --older-than is listed as open and is no finding; an older one is "open or abandoned". The last line
    sums up. With --store the evidence alone is looked at, without the data folder's bus and keys.

    Exit 0 without findings, 1 with any. Whether a receipt is to be believed is for verify to say.
    """
    given = list(journal_key or ())
    place = given_place(store)
    own = data_dir / KEYS / JOURNAL_KEY_FILE
    keys = [read_secret_file(path) for path in given or ([own] if place is None and own.exists() else [])]
    bus = data_dir / BUS
    auditing = Audit(
        folder_of(store_in(data_dir) if place is None else store_at(place)),
        _records(bus) if place is None and bus.exists() else None,
        keys,
        now_ms=_now_ms(),
        older_than_ms=older_than,
    )
    if as_json:
        _emit(auditing, authenticated=bool(keys))
    else:
        for finding in auditing.findings():
            _show(finding)
        _sum_up(auditing.counts, authenticated=bool(keys))
    raise typer.Exit(Code.FAILED if auditing.counts.findings else Code.OK)


def _records(bus: Path) -> Iterator[LogRow]:
    """Opened only when it is read, so that an unusable log is a finding and the store is audited all the same."""
    with BusLogReader.open_read_only(bus) as log:
        yield from log.read()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _show(finding: Finding) -> None:
    kind = finding.kind.replace("_", " ")
    text = f"{kind:<17}  {finding.session}  {finding.generation}  {finding.what}"
    line(printable(text, LINE_CHARS), "dim" if finding.kind == "open" else "red")


def _sum_up(counts: Counts, *, authenticated: bool) -> None:
    bus = "no bus" if counts.bus_events is None else f"{_counted(counts.bus_events, 'event')} on the bus"
    macs = "MACs checked" if authenticated else "MACs not checked: no journal key"
    pruned = f", {counts.pruned} pruned" if counts.pruned else ""
    line(
        f"looked at {_counted(counts.sessions, 'session')} ({_counted(counts.generations, 'generation')}, "
        f"{counts.open} open{pruned}), {_counted(counts.journal_events, 'event')} in the journal, {bus}; {macs}"
    )
    verdict = _counted(counts.findings, "finding").upper() if counts.findings else "CLEAN"
    unchecked = "" if authenticated else ", MACs not checked"  # here too: the last line is what is read
    line(f"audit: {verdict}{unchecked}", "bold red" if counts.findings else "bold green")


def _emit(auditing: Audit, *, authenticated: bool) -> None:
    """One JSON document, written as it is found; only the open sessions are kept for its end."""
    alive: list[dict[str, Any]] = []
    separator = "\n"
    emit_text('{\n  "findings": [')
    for finding in auditing.findings():
        if finding.kind == "open":
            alive.append(asdict(finding))
            continue
        emit_text(f"{separator}    {json.dumps(asdict(finding), ensure_ascii=False)}")
        separator = ",\n"
    counts = asdict(auditing.counts)
    found = counts.pop("findings")
    rest = {"open": alive, "looked_at": {**counts, "macs_checked": authenticated}, "clean": not found}
    end = "\n  ]" if found else "]"
    emit_text(f"{end},\n  {json.dumps(rest, ensure_ascii=False)[1:]}\n")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
