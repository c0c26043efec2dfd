"""From a row, which says all that is decided of an event, to the entry that is journaled."""

from __future__ import annotations

from affidavit.activity_api import Entry
from workflows.accounting import Row


def entry_of(row: Row, *, sequence: int, uid: str, time: int) -> Entry:
    """The numbered entry of an event that no step stands behind; `time` in epoch milliseconds."""
    return Entry(
        action=row.action,
        sequence=sequence,
        uid=uid,
        time=time,
        class_name=row.class_name,
        status_id=row.status_id,
        severity_id=row.severity_id,
        stop_reason_id=row.stop[0] if row.stop else None,
        stop_reason=row.stop[1] if row.stop else None,
        payload=row.payload,
        metrics=row.metrics,
        counts=row.counts,
    )
