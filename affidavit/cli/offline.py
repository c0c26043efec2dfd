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
    hint,
    line,
    pairs,
    plain,
    read_file,
    table,
    totals_rows,
)
from affidavit.contract import SessionSpec
from affidavit.evidence import schemas
from affidavit.evidence import verify as library
from affidavit.evidence.bundle import DirectoryReader, open_bundle, write_bundle
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keyring import KEYRING_LIMIT, Keyring
from affidavit.evidence.keys import read_secret_file
from affidavit.evidence.layout import JOURNAL, RECEIPT
from affidavit.evidence.ocsf import CLASSES
from affidavit.evidence.receipt import RECEIPT_LIMIT, EventChain, Receipt, VerificationError
from affidavit.evidence.text import printable
from affidavit.evidence.trajectory import MAX_BYTES
from affidavit.fields import WireSchema
from affidavit.message_schemas import message_schemas
from affidavit.steps import step_schemas
from affidavit.stores.folder import reader_of

VALID = "receipt: VALID"
INTEGRITY_ONLY = "receipt: INTEGRITY ONLY, signer not trusted"
REFUSED = "receipt: REFUSED"
CHOICES = 4
"""Folders that an error names, where several could be meant."""


# -- verify -------------------------------------------------------------------------------------------


class _JournalFolder(DirectoryReader):
    """A journal's own folder, seen as a generation's: its segments stand under `journal/`."""

    def read(self, name: str) -> bytes:
        prefix, _, rest = name.partition("/")
        if prefix != JOURNAL:
            raise FileNotFoundError(name)
        return super().read(rest)

    def list(self, prefix: str) -> list[str]:
        return [f"{JOURNAL}/{name}" for name in super().list("")] if prefix in ("", JOURNAL) else []


class Judgement:
    """The verdict on a receipt, and everything that was looked at on the way."""

    def __init__(self) -> None:
        self.checks: list[library.Check] = []
        self.unchecked: list[library.Unchecked] = []
        self.receipt: Receipt | None = None
        self.generation: str | None = None
        self.trusted = True
        self.error: VerificationError | None = None
        self.refusal: str | None = None

    def add(self, look: Callable[[], library.Report]) -> None:
        """Make one verification part of the verdict; after a refusal there is no further one."""
        if self.refusal is not None:
            return
        try:
            report = look()
        except VerificationError as error:
            self.error, self.refusal = error, str(error)
            made = getattr(error, "report", None)
            if not isinstance(made, library.Report):
                return
            report = made
        self.receipt = report.receipt or self.receipt
        self.generation = report.generation or self.generation
        self.trusted = self.trusted and report.trusted
        self.checks += [check for check in report.checks if check not in self.checks]
        self.unchecked += [left for left in report.unchecked if left not in self.unchecked]

    @property
    def code(self) -> Code:
        """0 valid, 1 refused, 3 integrity only."""
        if self.refusal is not None:
            return Code.FAILED
        return Code.OK if self.trusted else Code.INTEGRITY_ONLY

    @property
    def verdict(self) -> str:
        """The last line."""
        if self.refusal is not None:
            return f"{REFUSED}: {self.refusal}"
        return VALID if self.trusted else INTEGRITY_ONLY

    def document(self) -> dict[str, Any]:
        """The judgement as JSON."""
        words = {Code.OK: "valid", Code.FAILED: "refused", Code.INTEGRITY_ONLY: "integrity_only"}
        return {
            "verdict": words[self.code],
            **({"reason": self.refusal} if self.refusal is not None else {}),
            "checks": [{"name": each.name, "outcome": each.outcome, "detail": each.detail} for each in self.checks],
            "unchecked": [{"name": each.name, "reason": each.reason} for each in self.unchecked],
            **({"generation": self.generation} if self.generation else {}),
            **({"receipt": self.receipt.document()} if self.receipt else {}),
        }

    def show(self) -> None:
        """Print what was checked and what could not be, what the receipt says, and the verdict."""
        rows: list[tuple[str, str, str, str]] = [
            ("green" if each.outcome == "passed" else "bold red", each.outcome, each.name, each.detail)
            for each in self.checks
        ]
        rows += [("yellow", "not checked", each.name, each.reason) for each in self.unchecked]
        table(rows)
        if self.receipt is not None:
            line("")
            pairs(_summary(self.receipt, self.generation))
            line("")
        styles = {Code.OK: "bold green", Code.FAILED: "bold red", Code.INTEGRITY_ONLY: "bold yellow"}
        line(printable(self.verdict, 400), styles[self.code])


def _summary(receipt: Receipt, generation: str | None) -> dict[str, Any]:
    """What a receipt says, in the order in which it is shown."""
    agent, subject, calls = receipt.ai_agent, receipt.subject, receipt.tool_calls
    covers = (
        {"events": subject.event_count}
        if isinstance(subject, EventChain)
        else {"steps": f"{subject.step_count}, of a trajectory attested afterwards"}
    )
    return {
        "session": receipt.session_id,
        "generation": generation,
        "agent": f"{agent.charter.name} {agent.version} ({agent.instance_uid})",
        "issued at": receipt.issued_at_iso,
        **covers,
        **totals_rows({"tool_calls": calls.total, "tool_blocked": calls.blocked, **receipt.cost.model_dump()}),
        "stop reason": receipt.stop_reason,
        "key id": receipt.key_id,
    }


def judge(
    file: Path,
    keyring: Keyring | None,
    *,
    events: Path | None = None,
    journal_keys: list[bytes] | None = None,
    trajectory: bytes | None = None,
) -> Judgement:
    """Verify a receipt or a bundle, with whatever goes with it.

    Raises:
        CommandError: the file is neither.
        OSError: a file cannot be read.
    """
    judgement = Judgement()
    receipt: bytes | None = None
    if file.is_dir() or _is_zip(file):
        judgement.add(lambda: library.verify_with_events(None, file, keyring, journal_keys, trajectory=trajectory))
        if events is not None and judgement.refusal is None:
            receipt = _receipt_of(file)
    else:
        with file.open("rb") as opened:
            # One byte more than a receipt may have: the strict reader then refuses it by its size.
            receipt = data = opened.read(RECEIPT_LIMIT + 1)
        # A receipt that somebody has spoilt is refused; what never was one is bad usage.
        if not data.lstrip().startswith(b"{") and b'"receipt_version"' not in data:
            raise CommandError(f"{printable(file.name)}: not a receipt or bundle", Code.USAGE)
        if events is None:
            judgement.add(lambda: library.verify_receipt(data, keyring, trajectory=trajectory))
    if events is not None and judgement.refusal is None:
        source: library.Source = _JournalFolder(events) if _is_journal(events) else events
        judgement.add(lambda: library.verify_with_events(receipt, source, keyring, journal_keys, trajectory=trajectory))
        if isinstance(judgement.error, library.MixedSessions) and judgement.receipt is not None and events.is_file():
            alone = hint("events", "--session", judgement.receipt.session_id)
            judgement.refusal = f"{judgement.refusal}; the events of one session alone: {alone}"
    return judgement


def _is_journal(folder: Path) -> bool:
    return folder.is_dir() and not (folder / JOURNAL).is_dir() and any(folder.glob("*.ndjson"))


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
    if _is_journal(path):
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


def _is_zip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"PK"


def _receipt_of(source: Path) -> bytes:
    if source.is_dir():
        return DirectoryReader(source).read(RECEIPT)
    with open_bundle(source) as bundle:
        return bundle.read(RECEIPT)


def read_keyring(file: Path) -> Keyring:
    """The trusted keys in a file.

    Raises:
        CommandError: it is no keyring.
        OSError: it cannot be read.
    """
    data = read_file(file, KEYRING_LIMIT)
    try:
        return Keyring.parse(data)
    except EvidenceError as error:
        raise CommandError(f"{printable(file.name)}: {error}", Code.USAGE) from None


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
        events=None if events is None else events if _is_journal(events) else _evidence_at(events),
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
