"""Whether an id may live again, asked before a workflow is started for it (behaviours A4).

The opening activity decides, by what the evidence store remembers. But a run that it refuses is the newest one of its
id from then on, and stands before the end of the last life. So a client starts none where it knows the answer: from
what Temporal describes, without a worker, and from the store where it shares it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract
from affidavit.answers import readable
from affidavit.errors import SessionRefused
from affidavit.evidence.text import printable
from affidavit.rpc import SHORT_CALL
from affidavit.stored import StoredSession

_NO_OUTCOME: Final = "without an outcome"
_NEVER_OPENED: Final = "before it was opened"
"""Of a run that failed in its opening: no life, and nothing that forbids another one."""


async def last_end(temporal: Client, session_id: str, stored: StoredSession | None) -> str | None:
    """How the last life of an id ended, in a word or a few; None where it runs, or there is no telling.

    Args:
        stored: what the evidence store has of it, where this client shares the store.

    Raises:
        AnswerUnreadable: the memo of its end cannot be opened here.
        SessionFailed: its end in the store cannot be read.
        RPCError.
    """
    found = await _described(temporal, session_id)
    if found is not None and found.status is WorkflowExecutionStatus.RUNNING:
        return None
    end = None if found is None else await _told(found, session_id)
    if stored is not None and end in (None, _NEVER_OPENED):
        return await asyncio.to_thread(_sealed, stored) or end
    return end


def check_reopenable(session_id: str, end: str | None) -> None:
    """That an id whose last life ended so may live again, as far as that is known.

    Raises:
        SessionRefused: type SessionEnded.
    """
    if end not in (None, _NEVER_OPENED, *contract.REOPENABLE):
        raise SessionRefused(
            contract.REFUSED_ENDED,
            f"session {printable(session_id)}: an earlier generation ended {end}; the id is not opened again",
        )


def has_ended(session_id: str, end: str | None) -> SessionRefused:
    """What an open without `reopen` is told of an id that has lived; it offers `reopen` only where that works.

    Raises:
        SessionRefused: as `check_reopenable`.
    """
    check_reopenable(session_id, end)
    text = f"session {printable(session_id)} has ended"
    if end == _NEVER_OPENED:
        text += f" {_NEVER_OPENED}; reopen=True tries again"
    elif end is not None:
        text += "; reopen=True starts another life of its id"
    return SessionRefused(contract.REFUSED_ENDED, text)


async def _described(temporal: Client, session_id: str) -> WorkflowExecutionDescription | None:
    try:
        return await temporal.get_workflow_handle(session_id).describe(rpc_timeout=SHORT_CALL)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def _told(found: WorkflowExecutionDescription, session_id: str) -> str | None:
    if found.status is WorkflowExecutionStatus.COMPLETED:
        return "closed"  # or cancelled, which is the same to who reopens
    if found.status is WorkflowExecutionStatus.FAILED:
        facts: Any = (await found.memo()).get(contract.MEMO_OUTCOME)
        facts = readable(facts, f"how session {printable(session_id)} ended")
        if not isinstance(facts, Mapping):
            return None
        return str(facts.get("status")) if facts.get("event_count") else _NEVER_OPENED
    # Terminated or timed out. Only what was opened has set a status there.
    return (
        _NO_OUTCOME
        if any(each.key.name == contract.ATTRIBUTE_STATUS for each in found.typed_search_attributes)
        else None
    )


def _sealed(stored: StoredSession) -> str | None:
    """How the last life in a store ended, kept or pruned; None without any, and while it has no outcome."""
    life = stored.latest()
    if life is None:
        return None
    end = stored.outcome(life) or stored.pruned(life)
    return None if end is None else end.status
