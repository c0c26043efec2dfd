"""What passes between the session workflow and its activities.

An `Entry` carries what the workflow decided and must therefore repeat: number, uid, time, verdict, counters.
What can be derived from a step as reported (digests, values, names) the journal activity derives, so that
nothing big is walked in workflow code. The steps travel beside the request as one raw JSON array.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from affidavit.contract import Agent, SessionOutcome, Totals


class Compact(BaseModel):
    """Absent instead of null or empty in the history: these objects are written once a batch, for ever."""

    @model_serializer(mode="wrap")
    def _drop_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None and value != {}}


class Entry(Compact):
    """One event as decided. `step` is its place in the raw array of steps, None where nothing was reported."""

    action: str
    sequence: int
    uid: str
    time: int
    class_name: str
    status_id: int
    severity_id: int
    stop_reason_id: int | None = None
    stop_reason: str | None = None
    payload: dict[str, Any] = {}
    metrics: dict[str, int] = {}
    counts: dict[str, int] = {}
    step: int | None = None
    ttl_remaining_s: int | None = None
    attempt_id: str | None = None
    attempt_terminal: bool | None = None


class OpenRequest(Compact):
    """The opening of a generation: its metadata, and the event with sequence 0."""

    generation: str
    mode: str
    content: str
    agent: Agent
    product_version: str
    trajectory_id: str
    registration: dict[str, Any]
    registration_sha256: str
    entry: Entry


class OpenResult(BaseModel):
    """Chain head (hex) after the opening event, and the id of the store that holds it."""

    head: str
    store_id: str


class JournalRequest(Compact):
    """A batch: `entries` are numbered without a gap and continue `head` (hex)."""

    generation: str
    content: str
    product_version: str
    agent: Agent
    head: str
    entries: list[Entry]


class JournalResult(BaseModel):
    """Chain head (hex) after the batch. `adopted`: an equal segment of another key or version was there."""

    head: str
    count: int
    adopted: bool = False


class SealRequest(Compact):
    """What the workflow believes of its session; the signer checks all of it against the journal."""

    generation: str
    head: str
    count: int
    totals: Totals
    stop_reason_id: int
    idle: bool = False
    receipt_id: str
    issued_at: int


class SealResult(BaseModel):
    """The receipt as signed and stored, with the SHA-256 of its stored bytes."""

    receipt: dict[str, Any]
    receipt_sha256: str


class LifecycleRequest(Compact):
    """Events numbered after the chain: receipt and closed, or quarantined."""

    generation: str
    product_version: str
    agent: Agent
    entries: list[Entry]


class OutcomeRequest(BaseModel):
    """The outcome to seal in the store, which outlives Temporal's memory of the session."""

    generation: str
    outcome: SessionOutcome
