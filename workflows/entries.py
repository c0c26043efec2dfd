"""From a row, which says all that is decided of an event, to the entry that is journaled."""

from __future__ import annotations

from typing import Any

from affidavit.activity_api import Entry
from workflows.accounting import Row


def entry_of(
    row: Row,
    *,
    sequence: int,
    uid: str,
    time: int,
    payload: dict[str, Any] | None = None,
    step: int | None = None,
    ttl_remaining_s: int | None = None,
    attempt_id: str | None = None,
) -> Entry:
    """The numbered entry of an event.

    Args:
        row: what is decided of it.
        sequence, uid: its number and id.
        time: in epoch milliseconds.
        payload: instead of the row's own.
        step: the place of the step behind it; None for an event that no step stands behind.
        ttl_remaining_s: how long the agent's identity lasts, in seconds.
        attempt_id: the model attempt that it opens, or ends where the row is terminal.
    """
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
        payload=row.payload if payload is None else payload,
        metrics=row.metrics,
        counts=row.counts,
        step=step,
        ttl_remaining_s=ttl_remaining_s,
        attempt_id=attempt_id,
        attempt_terminal=None if attempt_id is None else row.terminal,
    )
