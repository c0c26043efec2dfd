"""What passes between the session workflow and the publish activity: references and counts, never events."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from affidavit.fields import Count


class PublishRequest(BaseModel):
    """A range of journaled events to put on the bus.

    `first` and `last` (inclusive) are sequence numbers: the first of one journal batch and the last of the
    same or a later one. With `lifecycle` they are the numbers of lifecycle events, which follow the chain.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str
    generation: str
    first: Count
    last: Count
    lifecycle: bool = False
    look_up_through: int = Field(default=-1, ge=-1)
    """Events up to this number may have been published by a run that did not learn of it."""
    store_id: str | None = None
    """The store that holds the session; None skips the check that the worker has the same."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last < self.first:
            raise ValueError("last is before first")
        return self


class PublishResult(BaseModel):
    """The range that is on the bus, the number of acknowledgements, and whether uids were looked up first.

    `last` is the last event that was published; before the request's own, if the range was too long for one call.
    """

    model_config = ConfigDict(frozen=True)

    first: int
    last: int
    count: int
    look_up: bool
