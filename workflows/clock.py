"""The workflow's time in epoch milliseconds: what every time of a session is, and what goes into its events."""

from __future__ import annotations

from temporalio import workflow

from workflows.state import SessionState


def now_ms() -> int:
    """The workflow's time, the same in every replay."""
    return int(workflow.now().timestamp() * 1000)


def admitted_ms(state: SessionState) -> int:
    """The time to give out now in a session: it never runs backward there (B11)."""
    return state.admit(now_ms())
