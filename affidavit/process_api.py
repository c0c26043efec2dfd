"""Sessions as processes: what is asked of one from outside, and what it answers (P6-P14)."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, Field, StringConstraints

from affidavit.fields import Count, Maybe, Name, Strict

TAIL: Final = 128
"""Event summaries that a session keeps in its state; older ones are in the evidence store alone."""

REASON_CHARS: Final = 256
"""Where a reason is cut in an event and in the view."""

CUSTOM: Final = "event"
"""Action of all custom events. Those of one type are asked for, and counted, as `event:<type>` as well."""

Reason = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Cursor(NamedTuple):
    """A place in the events of one life of a session; sequence -1 stands before its first event."""

    generation: str
    sequence: int


# -- requests -----------------------------------------------------------------------------------------


class WaitRequest(Strict):
    """What the session waits for, such as kind `approval`, name `manager`."""

    kind: Name
    name: Name


class CancelRequest(Strict):
    """Ask the session to end as cancelled."""

    reason: Maybe[Reason] = None


class AbandonRequest(Strict):
    """Say that the session's owner seems to be gone: who says so, and why."""

    by: Name
    reason: Reason


class ExternalRefRequest(Strict):
    """What the session is called elsewhere; written once."""

    external_ref: Name


class EventsAfter(Strict):
    """Events strictly after a cursor, ascending. Without `generation`, of the life that is asked."""

    generation: Maybe[Name] = None
    sequence: Annotated[int, Field(ge=-1)] = -1
    action: Maybe[Name] = None
    limit: int = Field(default=100, ge=1, le=TAIL)


class RecentEvents(Strict):
    """The last so many events."""

    count: int = Field(default=10, ge=1, le=TAIL)


class EventCountRequest(Strict):
    """How many events of an action there are with a sequence up to `through`; all of them without it."""

    action: Name
    through: Maybe[Count] = None


# -- answers ------------------------------------------------------------------------------------------


class EventSummary(BaseModel):
    """One event in short: `time` in epoch milliseconds, `type` of a custom event."""

    sequence: int
    time: int
    action: str
    status_id: int
    type: str | None = None

    def is_a(self, action: str | None) -> bool:
        """Whether it is an event of that action, or of `event:<type>`; None stands for any."""
        return action in (None, self.action) or (self.type is not None and action == f"{CUSTOM}:{self.type}")


class EventPage(BaseModel):
    """Events of one life. `held_from`: the lowest sequence that the session itself can still tell; `last`: its newest
    one, -1 before the first; `ended`: there will be none after that."""

    generation: str
    events: list[EventSummary]
    held_from: int
    last: int
    ended: bool = False


class EventCount(BaseModel):
    """How many there are; None where only the evidence store can tell."""

    generation: str
    count: int | None


class Wait(BaseModel):
    """What a session waits for, since when (epoch milliseconds)."""

    kind: str
    name: str
    since: int


class CancelRequested(BaseModel):
    """The first cancel request; a cancel by Temporal has no reason. `time` in epoch milliseconds."""

    time: int
    reason: str | None = None


class AbandonRequested(BaseModel):
    """The first abandon request. `time` in epoch milliseconds."""

    time: int
    by: str
    reason: str


class Abandonment(BaseModel):
    """Evidence of an abandoned session: by whose word, when it ended (epoch milliseconds), and why.

    `requested_at` is None where nobody had asked: the execution was terminated, or timed out.
    """

    by: str
    at: int
    why: str
    requested_at: int | None = None


class ExternalRefResult(BaseModel):
    """What the session is called elsewhere, from now on for good."""

    external_ref: str
