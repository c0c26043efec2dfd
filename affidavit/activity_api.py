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


class Caller(Compact):
    """Which life of the session asks, and in which of its runs; the activity checks both (F10).

    `run_id` is the id that the run was started with: a run that was reset has another one by then.
    """

    generation: str
    run_id: str = ""
    store_id: str | None = None
    """The store that holds the session; unknown only while it is opened."""


class OpenRequest(Caller):
    """The opening of a generation: its metadata, and the event with sequence 0.

    `reopen`: the id may have lived before, if its last life ended closed.
    """

    reopen: bool = False
    mode: str
    content: str
    agent: Agent
    product_version: str
    trajectory_id: str
    registration: dict[str, Any]
    registration_sha256: str
    entry: Entry


class OpenResult(BaseModel):
    """Chain head (hex) after the opening event, and the id of the store that holds it.

    `attributes`: whether the namespace has all search attributes, so that the session may set them. None in the
    history of a session that was opened before there were any: it tells nothing of itself that way.

    `embedding`: the format that the session's responses are embedded with in its own workflow tasks
    (`affidavit.assessment.BUILT_IN`); empty where the worker has another embedder, or did not say.
    """

    head: str
    store_id: str
    attributes: bool | None = None
    embedding: str = ""


class EventRange(BaseModel):
    """Events of a life, first to last."""

    generation: str
    first: int
    last: int


class JournalRequest(Caller):
    """A batch: `entries` are numbered without a gap and continue `head` (hex)."""

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


class Claims(Caller):
    """What the workflow believes of its session; whoever attests it checks all of it against the journal.

    `head` (hex) is the chain's after `count` events; `idle`: it closed itself, which no event records.
    """

    head: str
    count: int
    totals: Totals
    stop_reason_id: int
    idle: bool = False


class SealRequest(Claims):
    """The end of a signed session: what its receipt will say."""

    receipt_id: str
    issued_at: int


class SealResult(BaseModel):
    """The receipt as signed and stored, with the SHA-256 of its stored bytes."""

    receipt: dict[str, Any]
    receipt_sha256: str


class TrajectoryRequest(Claims):
    """The end of an unsigned session: its trajectory is written once, from what the journal and the captures hold."""


class TrajectoryResult(BaseModel):
    """The trajectory as stored: SHA-256 of its bytes, how many steps it has, and its length in bytes."""

    trajectory_digest: str
    step_count: int
    size: int


class PromoteRequest(Compact):
    """Attest a session's trajectory afterwards. Ids and time are those of a receipt that is still to be made."""

    session_id: str
    generation: str
    receipt_id: str
    issued_at: int
    event_uid: str


class PromoteResult(Compact):
    """The receipt that stands in the store, with the SHA-256 of its bytes.

    `event_sequence` is the number of the event that announces it, None where the session itself has published it;
    `event_stood`: the event was there already, so it may be on the bus. `store_id` names the store.
    """

    receipt: dict[str, Any]
    receipt_sha256: str
    event_sequence: int | None = None
    event_stood: bool = False
    store_id: str


class LifecycleRequest(Caller):
    """Events numbered after the chain: receipt and closed, or quarantined."""

    product_version: str
    agent: Agent
    entries: list[Entry]


class OutcomeRequest(Caller):
    """The outcome to seal in the store, which outlives Temporal's memory of the session."""

    outcome: SessionOutcome
