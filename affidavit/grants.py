"""The grants' side of the contract: names and models of the `GrantBook` workflow (process.md P15, P16).

A grant is permission to address a session: (session, holder, descriptor). It is cooperative, kept by clients that
ask; the hard border is Temporal's own authorisation.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, Field

from affidavit.evidence.scalars import BadSessionId, check_session_id
from affidavit.fields import Strict

GRANT_WORKFLOW: Final = "GrantBook"

GRANT_BOOK_ID = "grants#book"
"""There is one book in a namespace. No session has this id, because no session id has `#`."""

UPDATE_GRANT: Final = "grant"
UPDATE_REVOKE: Final = "revoke"
UPDATE_TRANSFER: Final = "transfer"
UPDATE_DELETE_HOLDER: Final = "delete_holder"

QUERY_LIST: Final = "list"
QUERY_HOLDERS: Final = "holders"
QUERY_HOLDS: Final = "holds"
QUERY_DELETED: Final = "deleted"

REFUSED_GRANTS_FULL: Final = "GrantsFull"
REFUSED_GRANT_MISSING: Final = "GrantMissing"
"""A transfer names a session of which the holder has no grant; nothing was transferred."""
REFUSED_NOT_GRANTED: Final = "NotGranted"

GRANTS: Final = 5_000
BOOK_BYTES: Final = 1_500_000
"""All grants as JSON, at most: the state handed on, and every answer, is one payload that Temporal takes."""
DESCRIPTOR_BYTES: Final = 200
DELETED_HOLDERS: Final = 1_000
"""Deleted holders that the book remembers, the latest ones; a holder that is granted something again is none."""


def _descriptor(text: str) -> str:
    if any(ord(char) < 0x20 or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("a descriptor holds no control characters and no lone surrogates")
    if len(text.encode("utf-8")) > DESCRIPTOR_BYTES:
        raise ValueError(f"a descriptor has at most {DESCRIPTOR_BYTES} bytes")
    return text


SessionId = Annotated[str, AfterValidator(check_session_id)]
Holder = Annotated[str, AfterValidator(check_session_id)]
"""Who may address: a session id, or any other name of the same form."""
Descriptor = Annotated[str, AfterValidator(_descriptor)]
Sessions = Annotated[list[SessionId], Field(min_length=1, max_length=GRANTS)]


def holder_of(wake_target: str | None) -> str | None:
    """The holder that a wake target names: its session id; None where it names no session."""
    try:
        return None if wake_target is None else check_session_id(wake_target.partition("#")[0])
    except BadSessionId:
        return None


class GrantRequest(Strict):
    """Give a holder sessions to address. `only_first`: only those of which nobody holds a grant."""

    holder: Holder
    sessions: Sessions
    descriptor: Descriptor = ""
    only_first: bool = False


class RevokeRequest(Strict):
    """Take grants back; those that are not there are no error."""

    holder: Holder
    sessions: Sessions


class TransferRequest(Strict):
    """Move grants from one holder to another, with their descriptors; all of them or none."""

    from_holder: Holder
    to_holder: Holder
    sessions: Sessions


class HolderRequest(Strict):
    """Name a holder: to list what it has, or to revoke all of it."""

    holder: Holder


class HoldsRequest(Strict):
    """Ask for one grant."""

    holder: Holder
    session_id: SessionId


class Changed(BaseModel):
    """How many grants an update has changed; a repeat changes none."""

    changed: int


class Grant(BaseModel):
    """One grant."""

    session_id: str
    holder: str
    descriptor: str = ""


class Revoked(BaseModel):
    """A grant that went with its holder; `others`: somebody else still holds one of the session."""

    session_id: str
    others: bool


class HolderRevoked(BaseModel):
    """What the book did for `delete_holder`."""

    sessions: list[Revoked] = []


class GrantList(BaseModel):
    """Grants, by session and holder."""

    grants: list[Grant] = []


class DeletedHolder(BaseModel):
    """What became of a deleted holder's sessions. Nothing was cancelled.

    `revoked`: all of which it held a grant; `orphaned`: those of them that live and have no holder left;
    `preserved`: those that somebody else still holds.
    """

    holder: str
    revoked: list[str]
    orphaned: list[str]
    preserved: list[str]
