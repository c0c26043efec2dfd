"""Verifying a receipt with all that goes with it: one verdict of every look that was taken, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from affidavit.cli.output import (
    Code,
    CommandError,
    hint,
    line,
    pairs,
    read_file,
    table,
    totals_rows,
)
from affidavit.evidence import verify as library
from affidavit.evidence.bundle import DirectoryReader, open_bundle
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keyring import KEYRING_LIMIT, Keyring
from affidavit.evidence.layout import JOURNAL, RECEIPT
from affidavit.evidence.receipt import RECEIPT_LIMIT, EventChain, Receipt, VerificationError
from affidavit.evidence.text import printable

VALID = "receipt: VALID"
INTEGRITY_ONLY = "receipt: INTEGRITY ONLY, signer not trusted"
REFUSED = "receipt: REFUSED"


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
        source: library.Source = _JournalFolder(events) if is_journal(events) else events
        judgement.add(lambda: library.verify_with_events(receipt, source, keyring, journal_keys, trajectory=trajectory))
        if isinstance(judgement.error, library.MixedSessions) and judgement.receipt is not None and events.is_file():
            alone = hint("events", "--session", judgement.receipt.session_id)
            judgement.refusal = f"{judgement.refusal}; the events of one session alone: {alone}"
    return judgement


def is_journal(folder: Path) -> bool:
    """Whether a folder is a journal alone, without the generation around it."""
    return folder.is_dir() and not (folder / JOURNAL).is_dir() and any(folder.glob("*.ndjson"))


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
