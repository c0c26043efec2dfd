"""What a client of a session can meet, each with a message that fits one line."""

from __future__ import annotations


class AffidavitError(Exception):
    """Base of the client's errors."""


class AffidavitUnavailable(AffidavitError):
    """No Temporal server, or no worker for the task queue, answered in time.

    `session_id` is set where an open has left its execution in Temporal: opening that id again joins it, cancelling it
    takes it back.
    """

    def __init__(self, text: str = "", *, session_id: str | None = None) -> None:
        super().__init__(text)
        self.session_id = session_id


class AnswerUnreadable(AffidavitError):
    """There is an answer, and this client cannot open it; `key_id` is the codec key that it lacks, None if none does.

    Not an outage: asking again, or spooling, does not mend what has to be configured.
    """

    def __init__(self, text: str, key_id: str | None = None) -> None:
        super().__init__(text)
        self.key_id = key_id


class SessionRefused(AffidavitError):
    """The session refused a request. `type` is one of the contract's stable types."""

    def __init__(self, type_: str, reason: str) -> None:
        super().__init__(reason)
        self.type = type_
        self.reason = reason


class SessionSpooled(AffidavitUnavailable):
    """The session goes on in a local spool file, so there is no answer yet; `affidavit spool push` reports it later."""


class ToolBlocked(AffidavitError):
    """A tool call that was not made. `stage` says at which check it ended: `parse`, `schema` or `policy`."""

    def __init__(self, tool: str, stage: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.stage = stage
        self.reason = reason


class NotAttested(AffidavitError, TypeError):
    """A call of a model by a way that an integration does not cover; it was not made."""


class NotReported(AffidavitError):
    """A step of a tool's call could not be reported. The call itself has gone on; its evidence lacks that step."""


class InvalidStep(AffidavitError, ValueError):
    """A step that the session would reject; nothing was sent."""


class MessageTooLarge(AffidavitError, ValueError):
    """A message over the limit; nothing was sent. The text gives its size in bytes."""


class SessionStalled(AffidavitError):
    """The session takes nothing more for now: its run is full because the store has been away. Retry later."""


class EvidenceNeeded(AffidavitError):
    """The session itself has forgotten these events; a client that shares the evidence store finds them there."""


class SessionNotFound(AffidavitError):
    """Temporal knows no session of this id, or it has ended."""


class SessionPruned(SessionNotFound):
    """It has ended, and its evidence and executions were erased on purpose.

    `generation` is the life that is meant, `status` how it ended, `closed_at` when (epoch milliseconds).
    """

    def __init__(self, text: str, *, generation: str, status: str, closed_at: int) -> None:
        super().__init__(text)
        self.generation = generation
        self.status = status
        self.closed_at = closed_at


class SessionFailed(AffidavitError):
    """The session's workflow ended without an outcome: it was terminated, timed out, or never opened."""


class SessionNotOpened(SessionFailed):
    """The newest run of the id failed in its opening. That is no life; an earlier one may have an outcome."""
