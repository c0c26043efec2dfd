"""The contract between a runtime and a session: wire names, and the models that cross the wire.

Everything a client in any language needs is here and in ``affidavit.steps``; both sides import the names
from here, so that a renamed constant is a type error and not a message nobody hears (design.md 3).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from affidavit.event_types import check_event_types
from affidavit.evidence.canonical import digest
from affidavit.evidence.layout import check_generation
from affidavit.evidence.scalars import check_session_id
from affidavit.fields import AttemptId, Count, Maybe, Name, Strict
from affidavit.process_api import (
    Abandonment,
    AbandonRequested,
    CancelRequested,
    EventSummary,
    Wait,
)
from affidavit.steps import STEP_KINDS

# -- wire names ---------------------------------------------------------------------------------------

SESSION_WORKFLOW: Final = "AgentSession"

TASK_QUEUE: Final = "affidavit"


def signing_queue(task_queue: str) -> str:
    """The task queue of the signer that belongs to a session's task queue."""
    return f"{task_queue}-signing"


PROMOTION_WORKFLOW: Final = "TrajectoryPromotion"


def promotion_id(session_id: str, generation: str) -> str:
    """The workflow id of a promotion: one at a time for each life. No session has it, because no session id has `#`."""
    return f"promote#{session_id}#{generation}"


SIGNAL_RECORD: Final = "record"
STEP_SIGNALS: Final = STEP_KINDS

UPDATE_ATTACH: Final = "attach"
UPDATE_ADMIT: Final = "admit"
UPDATE_SUBMIT: Final = "submit"
UPDATE_FLUSH: Final = "flush"
UPDATE_CLOSE: Final = "close"
UPDATE_REFRESH_IDENTITY: Final = "refresh_identity"
UPDATE_RESET_BREAKER: Final = "reset_breaker"

UPDATE_SET_WAIT: Final = "set_wait"
UPDATE_CLEAR_WAIT: Final = "clear_wait"
UPDATE_SET_EXTERNAL_REF: Final = "set_external_ref"
UPDATE_REQUEST_CANCEL: Final = "request_cancel"
UPDATE_REQUEST_ABANDON: Final = "request_abandon"

QUERY_VIEW: Final = "view"
QUERY_TERMINAL_STATE: Final = "terminal_state"
QUERY_EVENTS_AFTER: Final = "events_after"
QUERY_RECENT_EVENTS: Final = "recent_events"
QUERY_COUNT_EVENTS: Final = "count_events"

ACTIVITY_EMBED: Final = "embed"
ACTIVITY_OPEN: Final = "open"
ACTIVITY_CHECK_EVENTS: Final = "check_events"
ACTIVITY_JOURNAL: Final = "journal"
ACTIVITY_PUBLISH: Final = "publish"
ACTIVITY_SEAL: Final = "seal"
ACTIVITY_TRAJECTORY: Final = "trajectory"
ACTIVITY_PROMOTE: Final = "promote"
ACTIVITY_LIFECYCLE: Final = "lifecycle"
ACTIVITY_OUTCOME: Final = "outcome"

# -- search attributes and memo: what is seen of a session without a worker --------------------------------

ATTRIBUTE_MODE: Final = "AffidavitMode"
ATTRIBUTE_AGENT: Final = "AffidavitAgent"
ATTRIBUTE_STATUS: Final = "AffidavitStatus"
ATTRIBUTE_STOP_REASON: Final = "AffidavitStopReason"
ATTRIBUTE_WAITING: Final = "AffidavitWaiting"
ATTRIBUTE_COST: Final = "AffidavitCost"
ATTRIBUTE_STEPS: Final = "AffidavitSteps"
ATTRIBUTE_TOKENS: Final = "AffidavitTokens"
ATTRIBUTE_BREAKER_TRIPPED: Final = "AffidavitBreakerTripped"

MEMO_OUTCOME: Final = "AffidavitOutcome"
"""Key of the memo with the facts of the end; see `affidavit.attributes.terminal_facts`."""

# -- stable error types -------------------------------------------------------------------------------

REFUSED_BAD_SPEC: Final = "BadSpec"
REFUSED_BAD_REQUEST: Final = "BadRequest"
REFUSED_MODE: Final = "ModeConflict"
REFUSED_IDENTITY: Final = "IdentityConflict"
REFUSED_REGISTRATION: Final = "RegistrationConflict"
REFUSED_CLOSING: Final = "SessionClosing"
REFUSED_ENDED: Final = "SessionEnded"
REFUSED_INCOMPLETE: Final = "CaptureIncomplete"
REFUSED_QUEUE_FULL: Final = "QueueFull"
REFUSED_SLOTS_FULL: Final = "ResponseSlotsFull"
REFUSED_LOOP: Final = "LoopDetected"
REFUSED_BUSY: Final = "Busy"
REFUSED_ROLLING_OVER: Final = "RollingOver"
"""The run is being handed on; the same request is taken by the next one in a moment. Clients retry it."""
REFUSED_EVENT: Final = "EventRefused"
"""A custom event of a type that was not declared, or off its schema; nothing of the message was taken."""
REFUSED_EXTERNAL_REF: Final = "ExternalRefConflict"
REFUSED_UNKNOWN: Final = "SessionUnknown"
"""The evidence store has no such session, or no such life of it."""
REFUSED_NOT_ENDED: Final = "SessionNotEnded"
REFUSED_NOTHING_TO_ATTEST: Final = "NothingToAttest"
"""The session ended without evidence that anybody could sign."""
FAILED_QUARANTINED: Final = "SessionQuarantined"
FAILED_ABANDONED: Final = "SessionAbandoned"
FAILED_OPEN: Final = "SessionNotOpened"
FAILED_NO_STEPS: Final = "NoCapturedSteps"
"""Of the trajectory activity: the session has nothing that is a step of a trajectory (F3)."""

# -- limits -------------------------------------------------------------------------------------------

MESSAGE_BYTES: Final = 1_500_000
"""A message as encoded, at most; Temporal takes 2 MB in one payload."""

STORED_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The same where client and workers share an evidence store that takes big payloads out of the history."""

MESSAGE_VALUES: Final = 100_000
"""Values in a message over `MESSAGE_BYTES`, at most: time to read it goes by them, not by bytes of text."""

OFFLOAD_BYTES: Final = 256 * 1024
"""A payload over this size is kept in the shared evidence store instead of the history."""

SPEC_BYTES: Final = 128 * 1024
SPEC_NESTING: Final = 64
"""A spec is read again for everybody who attaches, and its registration stands inside the metadata."""

READ_AT_ONCE_BYTES: Final = 64 * 1024
"""A submission up to this size is read, and refused, before it is accepted; a larger one when its turn comes."""

RECORD_STEPS: Final = 1024
"""Steps in one message, at most: a workflow has two seconds to read it, on any machine."""

BATCH_STEPS: Final = 64
BATCH_BYTES: Final = 256 * 1024
WAITING_UPDATES: Final = 8
"""Temporal lets ten updates of a run be in flight; two places stay free for close, attach and refusals."""

NESTING: Final = 512
"""A message nested deeper is rejected: it could not be parsed within Python's stack on every worker."""

SKEW_MS: Final = 5 * 60 * 1000
REFUSED_EVENT_INTERVAL_MS: Final = 1000

ROLLOVER_SIGNALS: Final = 8_000
ROLLOVER_UPDATES: Final = 1_500
"""Temporal ends a run at 10 000 signals and 2 000 updates; a session hands itself on before."""
ROLLOVER_WAIT_S: Final = 10
HANDED_ON_BYTES: Final = 1_000_000
"""Bytes of waiting messages that a run can hand to the next one."""


# -- registration -------------------------------------------------------------------------------------


class Agent(Strict):
    """Who acts: the identity triple, and how long the credential behind it still lives (seconds)."""

    version: Name
    charter: Name
    instance_uid: Name
    ttl_remaining_s: Maybe[Count] = None

    def triple(self) -> tuple[str, str, str]:
        """What is fixed for the life of a session (behaviours A3)."""
        return self.version, self.charter, self.instance_uid

    def as_identity(self) -> dict[str, Any]:
        """The `ai_agent` object of events and receipts (formats.md 3.1)."""
        identity: dict[str, Any] = {
            "version": self.version,
            "charter": {"name": self.charter, "type_id": 1},
            "instance_uid": self.instance_uid,
        }
        if self.ttl_remaining_s is not None:
            identity["ttl_remaining_s"] = self.ttl_remaining_s
        return identity


class BreakerConfig(Strict):
    """When repetition becomes a loop, and what is done about it (formats.md 8)."""

    delta_epsilon: float = 0.30
    window: int = Field(default=3, ge=1, le=1_000)
    min_tokens: Count = 1000
    action: Literal["observe", "reject", "inject", "abort"] = "reject"

    @field_validator("delta_epsilon")
    @classmethod
    def _epsilon(cls, value: float) -> float:
        if not math.isfinite(value) or not 0 < value <= 2:
            raise ValueError("delta_epsilon is above 0 and at most 2 (a delta is 1 minus a cosine)")
        return value


class Limits(Strict):
    """Bounds of one session; times in seconds. See the table in the README."""

    queue: int = Field(default=1024, ge=1, le=100_000)
    response_slots: int = Field(default=64, ge=1, le=10_000)
    drain_timeout_s: int = Field(default=60, ge=1, le=86_400)
    idle_close_s: int = Field(default=900, ge=1, le=31_536_000)
    attempt_lapse_s: int = Field(default=3600, ge=1, le=31_536_000)
    owner_lapse_s: int = Field(default=3600, ge=1, le=31_536_000)
    gap_grace_s: int = Field(default=30, ge=1, le=86_400)


class SessionSpec(Strict):
    """How a session is opened. Two opens of one id must agree on all of it but `ttl_remaining_s`."""

    agent: Agent
    mode: Literal["signed", "unsigned"] = "signed"
    content: Literal["digest", "store", "full"] = "store"
    breaker: BreakerConfig = BreakerConfig()
    limits: Limits = Limits()
    originator: Maybe[Name] = None
    wake_target: Maybe[Name] = None
    external_ref: Maybe[Name] = None
    reopen: bool = False
    """Start a fresh generation of an id whose last one ended `closed`; not part of the registration."""
    event_types: Maybe[Annotated[dict[str, Any], AfterValidator(check_event_types)]] = None
    """JSON Schemas (draft 2020-12) of the payloads of custom events, by type."""
    model_name: Maybe[Name] = None
    tool_definitions: Maybe[list[Any]] = None
    trajectory_extra: Maybe[dict[str, Any]] = None

    @model_validator(mode="after")
    def _digests_make_no_trajectory(self) -> SessionSpec:
        if self.mode == "unsigned" and self.content == "digest":
            raise ValueError("content 'digest' keeps nothing to build a trajectory from; use 'store' or 'full'")
        return self

    def registration(self) -> dict[str, Any]:
        """Every default written out, absent optionals omitted, the volatile lifetime removed (design.md 3)."""
        form = self.model_dump(mode="json", exclude_none=True)
        form["agent"].pop("ttl_remaining_s", None)
        form.pop("reopen")
        return form


def registration_hash(registration: dict[str, Any]) -> str:
    """SHA-256 over the JCS form of a registration, as 64 hex digits.

    Raises:
        CanonicalError: a free value of the spec (`trajectory_extra`, …) is none that JSON carries exactly.
    """
    return digest(registration)


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


# -- answers of updates and queries -------------------------------------------------------------------


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
