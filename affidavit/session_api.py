"""What is asked of a session by its runtime and its operator, and what it answers; its outcome; its promotion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel

from affidavit.evidence.layout import check_generation
from affidavit.evidence.scalars import check_session_id
from affidavit.fields import AttemptId, Maybe, Name, Strict
from affidavit.process_api import Abandonment, AbandonRequested, CancelRequested, EventSummary, Wait
from affidavit.spec import Agent


class Totals(BaseModel):
    """What a session has counted (formats.md 9)."""

    tool_calls: int = 0
    tool_allowed: int = 0
    tool_blocked: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd_micros: int = 0


class AttachResult(BaseModel):
    """The session that an open has led to, once its opening event is on disk."""

    session_id: str
    generation: str
    registration_sha256: str
    store_id: str
    product_version: str


class Refusal(BaseModel):
    """Why an enforced request was refused; the refusal itself is an event."""

    type: str
    reason: str


class SubmitResult(BaseModel):
    """Where submitted steps stand in the journal, and what the breaker said of the last response."""

    first_sequence: int | None
    last_sequence: int | None
    chain_head: str
    event_count: int
    repeated: int = 0
    """Steps that had been reported before, by their producer's number; they have no sequence here."""
    breaker_open: bool = False
    verdict: Literal["progressing", "suspicious", "tripped", "not_assessed"] | None = None


class AdmitRequest(Strict):
    """Ask before a model is called. `attempt_id` names the attempt that its answer will close; one is made if
    it is left out. `agent` is checked against the session's identity where it is given."""

    attempt_id: Maybe[AttemptId] = None
    agent: Maybe[Agent] = None


class AdmitResult(BaseModel):
    """Whether the model may be called. `flagged`: the breaker is open and only observes. `message`: a system
    message to put before the next request, where the breaker injects one."""

    accepted: bool
    attempt_id: str | None = None
    flagged: bool = False
    message: str | None = None
    refused: Refusal | None = None


class FlushResult(BaseModel):
    """What is durable: everything reported before the flush has a sequence below `event_count`."""

    event_count: int
    chain_head: str
    published_through: int


class IdentityResult(BaseModel):
    """Answer of `refresh_identity`: the identity in force, or why the new one was refused."""

    agent: Agent
    refused: Refusal | None = None


class BreakerReset(Strict):
    """Who resets the breaker, and why; both go into an event."""

    by: Name
    reason: Name


class CloseRequest(Strict):
    """Nothing is needed to close; the object is there so that it can grow."""


class CloseAccepted(BaseModel):
    """The session is closing; its outcome is the workflow's result."""

    session_id: str
    generation: str


class Stalled(BaseModel):
    """The stage that makes no progress, and since when (epoch milliseconds)."""

    stage: str
    since: int


class SessionView(BaseModel):
    """Everything an operator asks of a living session."""

    session_id: str
    generation: str
    mode: str
    state: Literal["opening", "open", "closing", "sealing", "closed", "cancelled", "quarantined", "abandoned"]
    agent: Agent
    steps: int
    queue_depth: int
    queue_limit: int = 1024
    event_count: int
    chain_head: str
    published_through: int
    totals: Totals
    stop_reason_id: int
    breaker_open: bool
    breaker_streak: int
    breaker_tokens: int
    rejected: int
    repeated: int
    unverified: int = 0
    late_steps: int
    unprocessed: int
    open_attempts: int = 0
    runs: int = 1
    poisoned: str | None = None
    stalled: Stalled | None = None
    recent: list[EventSummary] = []
    opened_at: int | None = None
    """Time of the opening event: when the session first started (epoch milliseconds)."""
    waiting: Wait | None = None
    external_ref: str | None = None
    cancel_requested: CancelRequested | None = None
    abandon_requested: AbandonRequested | None = None


class SessionOutcome(BaseModel):
    """How a session ended: the workflow's result, and the payload of the sealed outcome.json."""

    session_id: str
    generation: str
    mode: Literal["signed", "unsigned"]
    status: Literal["closed", "cancelled", "quarantined", "abandoned"]
    reason: str | None = None
    """Why it was cancelled, quarantined or abandoned, as far as anybody said."""
    abandonment: Abandonment | None = None
    stop_reason_id: int
    stop_reason: str
    totals: Totals
    steps: int
    event_count: int
    chain_head: str
    receipt_id: str | None = None
    receipt: dict[str, Any] | None = None
    receipt_sha256: str | None = None
    key_id: str | None = None
    trajectory_digest: str | None = None
    rejected: int = 0
    repeated: int = 0
    unverified: int = 0
    late_steps: int = 0
    unprocessed: int = 0
    unprocessed_sha256: str | None = None
    published: bool


class TerminalState(BaseModel):
    """Answer of `terminal_state`: None while the session lives."""

    outcome: SessionOutcome | None = None


# -- promotion ----------------------------------------------------------------------------------------


class PromotionRequest(Strict):
    """Start argument of a promotion: which life of which session."""

    session_id: Annotated[str, AfterValidator(check_session_id)]
    generation: Annotated[str, AfterValidator(check_generation)]


class PromotionResult(BaseModel):
    """Result of a promotion. `published`: the event that announces the receipt is on the bus."""

    session_id: str
    generation: str
    receipt: dict[str, Any]
    receipt_sha256: str
    published: bool
