"""The workflow's time in epoch milliseconds, and ids.

The time is for people and for the length of timers. A replay may see another one than the run it repeats did: tasks
that gave no command are played together with the next one, at its time. So nothing that a session does may depend on
a comparison of times, but for those taken by updates, which are never played with a later task; and no id holds one.
"""

from __future__ import annotations

import uuid
from typing import Final

from temporalio import workflow

from workflows.state import SessionState

MOMENT_S: Final = 0.001
"""A timer for what is due already: that something is due is told by a timer that fires, never by the clock."""


def now_ms() -> int:
    """The workflow's time."""
    return int(workflow.now().timestamp() * 1000)


def seconds_until(due_ms: float) -> float:
    """For how long a timer has to run; at least a moment."""
    return max((due_ms - now_ms()) / 1000, MOMENT_S)


def new_id() -> str:
    """A UUIDv7 that a replay makes again, so its time is when the run was started and not when the id was made."""
    started, chance = workflow.info().workflow_start_time, workflow.random()
    fields = (int(started.timestamp() * 1000) << 80) | (chance.getrandbits(12) << 64) | chance.getrandbits(62)
    return str(uuid.UUID(int=fields | 0x7 << 76 | 0b10 << 62))


def admitted_ms(state: SessionState) -> int:
    """The time to give out now in a session: it never runs backward there (B11)."""
    return state.admit(now_ms())
