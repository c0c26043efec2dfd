"""The contract between a runtime and a session: wire names, and the models that cross the wire.

Everything a client in any language needs is here and in ``affidavit.steps``; both sides import the names
from here, so that a renamed constant is a type error and not a message nobody hears (design.md 3).
"""

from __future__ import annotations

from typing import Final

from affidavit.session_api import (
    AdmitRequest,
    AdmitResult,
    AttachResult,
    BreakerReset,
    CloseAccepted,
    CloseRequest,
    FlushResult,
    IdentityResult,
    PromotionRequest,
    PromotionResult,
    Refusal,
    SessionOutcome,
    SessionView,
    Stalled,
    SubmitResult,
    TerminalState,
    Totals,
)
from affidavit.spec import Agent, BreakerConfig, Limits, SessionSpec, registration_hash
from affidavit.steps import STEP_KINDS

__all__ = [  # beside the names below, what makes the contract and lives in modules of its own
    "AdmitRequest",
    "AdmitResult",
    "Agent",
    "AttachResult",
    "BreakerConfig",
    "BreakerReset",
    "CloseAccepted",
    "CloseRequest",
    "FlushResult",
    "IdentityResult",
    "Limits",
    "PromotionRequest",
    "PromotionResult",
    "Refusal",
    "SessionOutcome",
    "SessionSpec",
    "SessionView",
    "Stalled",
    "SubmitResult",
    "TerminalState",
    "Totals",
    "registration_hash",
]

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

PLAYED_AHEAD: Final = "a query has played the workflow ahead of this task; it begins anew"
"""Why a workflow task fails, or another query, that came to a worker after a query which it did not bring along."""

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

REOPENABLE: Final = ("closed", "cancelled")
"""How every life of an id must have ended for another one to begin."""

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
EMBED_AT_ONCE_BYTES: Final = 256 * 1024
EMBED_AT_ONCE_VALUES: Final = 16_384
"""Responses of a batch that are measured within a workflow task, which has two seconds: so many bytes of text take up
to 50 ms on one core, so many values in arguments up to 300 ms, where none of them can stay as it is. More goes to an
activity."""
WAITING_UPDATES: Final = 8
"""Temporal lets ten updates of a run be in flight; two places stay free for close, attach and refusals."""

NESTING: Final = 512
"""A message nested deeper is rejected: it could not be parsed within Python's stack on every worker."""

SKEW_MS: Final = 5 * 60 * 1000
REFUSED_EVENT_INTERVAL_MS: Final = 1000

ROLLOVER_SIGNALS: Final = 8_000
ROLLOVER_UPDATES: Final = 1_500
"""Temporal ends a run at 10 000 signals and 2 000 updates; a session hands itself on before."""
ROLLOVER_LOOK: Final = 25
"""After so many messages a session looks whether Temporal suggests a new run, also where nothing is journaled."""
ROLLOVER_WAIT_S: Final = 10
HANDED_ON_BYTES: Final = 1_000_000
"""Bytes of waiting messages that a run can hand to the next one."""
