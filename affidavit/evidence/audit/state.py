"""How a generation ended, or that it has not, and whether what its end promised is there."""

from __future__ import annotations

from typing import Any, Final

from affidavit.evidence.audit.findings import Findings
from affidavit.evidence.audit.life import Life
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.layout import ERASED, OUTCOME, PROVENANCE, RECEIPT, TRAJECTORY, number_of
from affidavit.evidence.scalars import BadTime, iso_ms

ATTESTED: Final = ("closed", "cancelled")
STATUSES: Final = (*ATTESTED, "quarantined", "abandoned")


def promise(life: Life, *, settled_ms: int) -> int | None:
    """The sequence through which the events must be there; None while it has not ended.

    A promotion announces its receipt with an event; one issued before `settled_ms` must have done so.
    """
    if life.outcome is None:
        return None
    count = int(life.outcome["event_count"])
    if life.outcome["status"] in ATTESTED:
        if life.outcome.get("mode") == "signed":
            return count + 1
        promoted = life.receipt is not None and life.receipt.issued_at < settled_ms
        return count + promoted
    return count


def check_state(life: Life) -> Findings:
    """How the session ended, and whether what it left is there."""
    if life.outcome is not None:
        yield from _check_named(life, life.outcome)
    elif not life.store.has(OUTCOME):
        lacking = ["no outcome"]
        if life.mode != "unsigned" and not life.has_receipt:
            lacking.insert(0, "no receipt")
        if life.mode == "unsigned" and not life.store.has(TRAJECTORY):
            lacking.insert(0, "no trajectory")
        last = "no event" if life.count == 0 else f"last event {_iso(life.last_ms)}"
        yield life.say("open" if life.recent else "open_or_abandoned", f"{', '.join(lacking)}; {last}")


def orphan_captures(life: Life) -> Findings:
    """Captures whose journal segment is not there."""
    for name in sorted(life.captures):
        # Captures are written just before their events.
        if life.recent and life.outcome is None and number_of(name) == life.count:
            continue
        yield life.say("orphan_captures", f"{name} goes with no journal segment")


def _check_named(life: Life, outcome: dict[str, Any]) -> Findings:
    if life.count > outcome["event_count"]:
        what = f"the outcome names {outcome['event_count']} events, the journal holds event {life.count - 1}"
        yield life.say("differs", what)
    if outcome["status"] not in ATTESTED:
        return
    if outcome.get("mode") == "signed":
        yield from _check_object(life, RECEIPT, outcome["status"], outcome.get("receipt_sha256"))
        return
    yield from _check_object(life, TRAJECTORY, outcome["status"], outcome.get("trajectory_digest"))
    data, failed = life.optional(PROVENANCE)
    if failed is not None:
        yield failed
    elif data is None:
        yield life.say("missing", f"{PROVENANCE}, though the outcome is {outcome['status']}")
    else:
        try:
            life.payload(data, PROVENANCE, None)
        except EvidenceError as error:
            yield life.unreadable(PROVENANCE, error)


def _check_object(life: Life, name: str, status: str, digest: object) -> Findings:
    if name == TRAJECTORY and not life.store.has(name) and life.store.has(ERASED):
        return
    if not life.store.has(name):
        yield life.say("missing", f"{name}, though the outcome is {status}")
        return
    try:
        if digest is not None and life.store.sha256(name) != digest:
            yield life.say("differs", f"{name} is not the one that the outcome names")
    except (OSError, EvidenceError) as error:
        yield life.unreadable(name, error)


def _iso(ms: int | None) -> str:
    try:
        return iso_ms(-1 if ms is None else ms)
    except BadTime:
        return "at no known time"
