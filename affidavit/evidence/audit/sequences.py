"""The numbers of a generation's events: each once, none missing, the same in the journal and on the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from affidavit.evidence.audit.findings import Findings, events_are
from affidavit.evidence.audit.life import Life
from affidavit.evidence.audit.scratch import Scratch, gaps, ranges


def check_journal(life: Life, scratch: Scratch) -> Findings:
    """What is doubled or missing in the journal."""
    yield from _doubled(life, "in the journal", scratch.doubled_in_journal())
    chained = None if life.outcome is None else int(life.outcome["event_count"])
    for first, last in gaps(scratch.journal_sequences(), -1 if life.promised is None else life.promised):
        # Numbered after the chain: a receipt, the end.
        if chained is not None and first < chained <= last:
            parts: tuple[tuple[int, int], ...] = ((first, chained - 1), (chained, last))
        else:
            parts = ((first, last),)
        for start, end in parts:
            after = "lifecycle " if chained is not None and start >= chained else ""
            yield life.say("gap", f"{after}{events_are(start, end)} missing in the journal")
    if not scratch.has_journal() and life.promised is None and not life.recent:
        yield life.say("missing", "the opening event")


def compare_with_bus(life: Life, scratch: Scratch, is_recent: Callable[[int], bool]) -> Findings:
    """What the journal and the bus do not have in common. `is_recent` says of a time whether it is not long ago."""

    def awaited(sequence: int, time: int) -> bool:
        """Whether an event may be on its way to the bus."""
        if not is_recent(time):
            return False
        # What comes after a session's end is a promotion's receipt.
        return not life.ended or life.promised is None or sequence > life.promised

    here = (life.stem, life.generation)
    yield from _doubled(life, "on the bus", scratch.doubled_on_bus(*here))
    for first, last in gaps(scratch.bus_sequences(*here), -1):
        yield life.say("gap", f"{events_are(first, last)} missing on the bus")
    for first, last in ranges(sequence for sequence, time in scratch.behind(*here) if not awaited(sequence, time)):
        yield life.say("not_on_bus", f"{events_are(first, last)} in the journal and not on the bus")
    for first, last in ranges(scratch.surplus(*here)):
        yield life.say("not_in_journal", f"{events_are(first, last)} on the bus and not in the journal")
    for first, last in ranges(scratch.differing(*here)):
        yield life.say("differs", f"{events_are(first, last)} on the bus with other content than in the journal")


def _doubled(life: Life, where: str, found: Iterable[tuple[int, int]]) -> Findings:
    for sequence, count in found:
        yield life.say("duplicate", f"event {sequence} stands {count} times {where}")
