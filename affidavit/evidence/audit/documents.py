"""Reading the single objects of a generation: which session it is, how it was opened, how it ended."""

from __future__ import annotations

from affidavit.evidence.audit.findings import Findings
from affidavit.evidence.audit.life import Life
from affidavit.evidence.audit.state import STATUSES
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import Metadata, parse_envelope
from affidavit.evidence.layout import ERASED, JOURNAL, METADATA, OUTCOME, PRUNED, RECEIPT
from affidavit.evidence.receipt import parse
from affidavit.evidence.scalars import MAX_INTEGER, check_session_id, is_uuid7, session_stem
from affidavit.evidence.sources import lines
from affidavit.evidence.text import printable


def own_id(life: Life) -> str | None:
    """The id by which the generation calls itself, if it is the one whose folder this is."""
    for name, path in (
        (METADATA, ("session_id",)),
        (f"{JOURNAL}/{0:012d}.ndjson", ("event", "session_uid")),
        (PRUNED, ("session_id",)),
    ):
        try:
            value = parse_envelope(lines(life.store.read(name))[0]).payload
            for key in path:
                value = value[key]
            if session_stem(check_session_id(value)) == life.stem:
                return str(value)
        except (OSError, EvidenceError, LookupError, TypeError):
            continue
    return None


def read_metadata(life: Life) -> Findings:
    """How it was opened."""
    data, failed = life.optional(METADATA)
    if failed is not None:
        yield failed
    elif data is None:
        yield life.say("missing", "metadata.json")
    else:
        try:
            metadata = Metadata.read(life.payload(data, METADATA))
        except EvidenceError as error:
            yield life.unreadable(METADATA, error)
            return
        life.mode = metadata.mode
        if is_uuid7(metadata.trajectory_id):  # the one time in there; counts where no event tells a later one
            life.opened_ms = int(metadata.trajectory_id.replace("-", "")[:12], 16)
        if life.session_id != metadata.session_id or metadata.generation != life.generation:
            yield life.say("misplaced", "metadata.json is of another session or generation")


def read_outcome(life: Life) -> Findings:
    """How it ended, if it has."""
    data, failed = life.optional(OUTCOME)
    if failed is not None:
        yield failed
    if data is None:
        return
    try:
        outcome = life.payload(data, OUTCOME)
    except EvidenceError as error:
        yield life.unreadable(OUTCOME, error)
        return
    count = outcome.get("event_count") if isinstance(outcome, dict) else None
    if type(count) is not int or not 0 <= count < MAX_INTEGER or outcome.get("status") not in STATUSES:
        yield life.say("unreadable", "outcome.json is no outcome")
        return
    if outcome.get("generation") != life.generation or life.session_id not in (None, outcome.get("session_id")):
        yield life.say("misplaced", "outcome.json is of another session or generation")
    life.outcome = outcome


def read_receipt(life: Life) -> Findings:
    """Its receipt, if it has one."""
    life.has_receipt = life.store.has(RECEIPT)
    data, failed = life.optional(RECEIPT)
    if failed is not None:
        yield failed
    if data is None:
        return
    try:
        life.receipt = parse(data)
    except EvidenceError as error:
        yield life.unreadable(RECEIPT, error)
        return
    if life.receipt.session_id != life.session_id and life.session_id is not None:
        yield life.say("misplaced", "receipt.json is of another session")


def check_erased(life: Life) -> Findings:
    """The word on captures that were erased, if there is one."""
    yield from _check_sealed(life, ERASED)


def read_pruned(life: Life) -> Findings:
    """What was pruned on purpose is no fault: its events stay on the bus, and its receipt may have been kept."""
    life.session_id = own_id(life)
    yield from _check_sealed(life, PRUNED)
    if left := [name for name in life.store.list("") if name not in (PRUNED, RECEIPT)]:
        yield life.say("half_pruned", f"{len(left)} objects are left, such as {printable(left[0])}; prune it again")
    yield from read_receipt(life)


def _check_sealed(life: Life, name: str) -> Findings:
    data, failed = life.optional(name)
    if failed is not None:
        yield failed
    if data is None:
        return
    try:
        life.payload(data, name)
    except EvidenceError as error:
        yield life.unreadable(name, error)
