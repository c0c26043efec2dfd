"""The commands that need no server: `verify`, `bundle`, `events`, `schema`."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from affidavit.buslog import BusLogError, BusLogReader
from affidavit.cli.evidence import BUS, checked_session, found, lives_in, session_in
from affidavit.cli.judging import is_journal, judge, read_keyring
from affidavit.cli.output import (
    CHOOSE,
    DATA_DIR,
    AsJson,
    Code,
    CommandError,
    DataDir,
    Generation,
    StorePlace,
    emit,
    emit_text,
    given_path,
    given_place,
    line,
    plain,
    read_file,
)
from affidavit.contract import SessionSpec
from affidavit.evidence import schemas
from affidavit.evidence.bundle import write_bundle
from affidavit.evidence.keys import read_secret_file
from affidavit.evidence.ocsf import CLASSES
from affidavit.evidence.receipt import Receipt
from affidavit.evidence.text import printable
from affidavit.evidence.trajectory import MAX_BYTES
from affidavit.fields import WireSchema
from affidavit.message_schemas import message_schemas
from affidavit.steps import step_schemas
from affidavit.stores.folder import reader_of

CHOICES = 4
"""Folders that an error names, where several could be meant."""


# -- verify -------------------------------------------------------------------------------------------


def _evidence_at(path: Path) -> Path:
    """The file that was given, or the one generation in the folder that was.

    Raises:
        CommandError: it is neither, or the folder holds none or several.
    """
    name = printable(path.name or str(path))
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return path
    if not stat.S_ISDIR(mode):
        raise CommandError(f"{name}: neither a regular file nor a folder", Code.USAGE)
    if is_journal(path):
        raise CommandError(f"{name}: a journal alone; give the folder above it, or it as --events", Code.USAGE)
    lives = lives_in(path)
    if not lives:
        raise CommandError(f"{name}: a folder without evidence of a session", Code.USAGE)
    if len(lives) > 1:
        shown = [f"{printable(str(life.relative_to(path)), 100)} ({session_in(life)})" for life in lives[:CHOICES]]
        more = f", and {len(lives) - CHOICES} more" if len(lives) > CHOICES else ""
        raise CommandError(
            f"{name}: {len(lives)} generations, give one of the folders in it: {', '.join(shown)}{more}", Code.USAGE
        )
    return lives[0]


def verify(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", parser=given_path, help="A receipt, a bundle, or an evidence folder."),
    ],
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            "--keys",
            metavar="FILE",
            parser=given_path,
            help="The trusted public keys: a keyring, or one key as base64 or hex.",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events",
            metavar="FILE",
            parser=given_path,
            help="The events: a dump of `affidavit events --session ID`, an evidence or journal folder, or a bundle.",
        ),
    ] = None,
    journal_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal-key", metavar="FILE", help="A journal key's file (0600), to place an alteration; repeatable."
        ),
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option("--trajectory", metavar="FILE", parser=given_path, help="The trajectory of the receipt."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt offline. Without --key it can only say: integrity only, signer not trusted.

    FILE may also be a session's folder, an evidence store or a data folder, if it holds one session. The last line is
    the verdict: receipt: VALID, receipt: INTEGRITY ONLY, signer not trusted, or receipt: REFUSED.
    """
    judgement = judge(
        _evidence_at(file),
        None if key is None else read_keyring(key),
        events=None if events is None else events if is_journal(events) else _evidence_at(events),
        journal_keys=[read_secret_file(path) for path in journal_key or ()],
        trajectory=None if trajectory is None else read_file(trajectory, MAX_BYTES),
    )
    if as_json:
        emit(judgement.document())
    else:
        judgement.show()
    raise typer.Exit(judgement.code)


# -- bundle -------------------------------------------------------------------------------------------


def bundle(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A session id.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.zip", parser=given_path, help="The file to make.")
    ],
    generation: Generation = None,
    data_dir: DataDir = DATA_DIR,
    store: StorePlace = None,
    as_json: AsJson = False,
) -> None:
    """Write one session's evidence as a zip file for an auditor. Never overwrites."""
    life = found(session, generation, data_dir, given_place(store))
    write_bundle(reader_of(life.store), session, life.generation, output)
    if as_json:
        emit({"bundle": str(output), "session_id": session, "generation": life.generation})
    else:
        line(f"{printable(plain(output), 200)}: generation {life.generation} of session {printable(session)}")


# -- events -------------------------------------------------------------------------------------------


def events(
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic, such as agent.tool_call.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="Only this session id.")] = None,
    generation: Annotated[str | None, typer.Option("--generation", help="Only this life of a session.")] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="The output is JSON lines with or without it.")
    ] = False,
) -> None:
    """Print the events on the embedded bus, one line {generation, event} each: the dump that verify reads."""
    del as_json
    if session is not None:
        checked_session(session)
    if topic is not None and topic not in CLASSES:
        raise CommandError(f"no topic {printable(topic)!r}; there are {', '.join(CLASSES)}", Code.USAGE)
    try:
        with BusLogReader.open_read_only(data_dir / BUS) as log:
            for row in log.read(topic=topic, session=session):
                if generation in (None, row.generation):
                    # The event's bytes as published: the dump is then the chain's own text.
                    emit_text(f'{{"generation":{json.dumps(row.generation)},"event":{row.value.decode()}}}\n')
    except BusLogError as error:
        raise CommandError(f"{error} in {printable(plain(data_dir), 200)} {CHOOSE}", Code.USAGE) from None


# -- schema -------------------------------------------------------------------------------------------


def _schemas() -> dict[str, Callable[[], dict[str, Any]]]:
    def of_step(kind: str) -> Callable[[], dict[str, Any]]:
        return lambda: step_schemas()[kind]

    return {
        **{kind: of_step(kind) for kind in step_schemas()},
        **message_schemas(),
        "session-spec": lambda: SessionSpec.model_json_schema(schema_generator=WireSchema),
        "event": lambda: schemas.load("event"),
        "trajectory": lambda: schemas.load("trajectory"),
        "receipt": lambda: Receipt.model_json_schema(schema_generator=WireSchema),
    }


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one; without it the names are listed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of a step or another message, of a session's spec, an event, a trajectory or a receipt."""
    known = _schemas()
    if name is None:
        if as_json:
            emit(list(known))
        else:
            for each in known:
                line(each)
        return
    wanted = next((each for each in known if each.replace("_", "-") == name.replace("_", "-")), None)
    if wanted is None:
        raise CommandError(f"no schema named {printable(name)!r}; there are {', '.join(known)}", Code.USAGE)
    emit({"$schema": "https://json-schema.org/draft/2020-12/schema", **known[wanted]()})
