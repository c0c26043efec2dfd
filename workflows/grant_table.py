"""Who may address what: the grants of a namespace, and what may be done with them (pure; process.md P15, P16)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from affidavit.evidence.text import printable
from affidavit.grants import (
    BOOK_BYTES,
    DELETED_HOLDERS,
    GRANTS,
    REFUSED_GRANT_MISSING,
    REFUSED_GRANTS_FULL,
    Grant,
    GrantRequest,
    Revoked,
    RevokeRequest,
    TransferRequest,
)

STATE_VERSION = 1
NAMED = 3
"""Sessions that a refusal names."""


class Refused(Exception):
    """A request that would break a rule of the table; nothing was changed. `type` is a stable one."""

    def __init__(self, type_: str, reason: str) -> None:
        super().__init__(reason)
        self.type = type_


class GrantState(BaseModel):
    """What a run of the book hands to the next: descriptors by session and holder, and the holders that were deleted,
    the latest last."""

    state_version: int = STATE_VERSION
    runs: int = 1
    grants: dict[str, dict[str, str]] = {}
    deleted: list[str] = []


class GrantTable:
    """All grants. Every change is checked whole before any of it is made.

    `count` is how many there are. No model itself: a request may touch all of them, in a part of the two seconds that
    a workflow has, and attributes of a model cost a microsecond each.
    """

    def __init__(self, state: GrantState | None = None) -> None:
        self._state = state = state or GrantState()
        self.grants = state.grants
        self.count = 0
        self._bytes = 0
        # A dict, because the order of a set would not repeat.
        self._held: dict[str, dict[str, None]] = {}
        for session, holders in self.grants.items():
            for holder, descriptor in holders.items():
                self._add(session, holder, descriptor)

    @property
    def runs(self) -> int:
        """How many runs the book has had, this one included."""
        return self._state.runs

    @property
    def deleted(self) -> list[str]:
        """Holders that were deleted, the latest last."""
        return self._state.deleted

    @classmethod
    def load(cls, state: Any) -> GrantTable:
        """What `dump` gave, decoded; raises `ValidationError` for anything else."""
        return cls(GrantState.model_validate(state))

    def dump(self) -> bytes:
        """The state as JSON, for the next run."""
        return self._state.model_copy(update={"runs": self.runs + 1}).model_dump_json().encode("utf-8")

    # -- changes ---------------------------------------------------------------------------------------

    def check_grant(self, request: GrantRequest) -> None:
        """That a grant fits in.

        Raises:
            Refused: the book is full.
        """
        count, size = self.count, self._bytes
        for session in self._granted(request):
            before = self.grants.get(session, {}).get(request.holder)
            count += before is None
            size += _size(session, request.holder, request.descriptor)
            size -= 0 if before is None else _size(session, request.holder, before)
        if count > GRANTS:
            raise Refused(REFUSED_GRANTS_FULL, f"grants full: {self.count} of {GRANTS}")
        if size > BOOK_BYTES and size > self._bytes:
            raise Refused(REFUSED_GRANTS_FULL, f"grants full: {self._bytes} of {BOOK_BYTES} bytes")

    def grant(self, request: GrantRequest) -> int:
        """Give grants; a grant that stands gets the new descriptor. Returns how many changed."""
        self.check_grant(request)
        changed = 0
        for session in self._granted(request):
            if self.grants.get(session, {}).get(request.holder) != request.descriptor:
                self._put(session, request.holder, request.descriptor)
                changed += 1
        if request.holder in self._held and request.holder in self.deleted:
            self.deleted.remove(request.holder)
        return changed

    def revoke(self, request: RevokeRequest) -> int:
        """Take grants back. Returns how many there were; zero holders are legal."""
        return sum(self._take(session, request.holder) is not None for session in dict.fromkeys(request.sessions))

    def check_transfer(self, request: TransferRequest) -> None:
        """That all of a transfer can be made, or has been made already.

        Raises:
            Refused: `from` lacks a grant of one of the sessions; or the moved grants do not fit in.
        """
        held = self._held.get(request.from_holder, {})
        lacking = [session for session in dict.fromkeys(request.sessions) if session not in held]
        if lacking and not self._is_done(request):
            shown = ", ".join(printable(session) for session in lacking[:NAMED])
            more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
            raise Refused(REFUSED_GRANT_MISSING, f"{printable(request.from_holder)} holds no grant of {shown}{more}")
        longer = len(request.to_holder) - len(request.from_holder)
        if longer > 0 and self._bytes + 2 * longer * len(request.sessions) > BOOK_BYTES:
            raise Refused(REFUSED_GRANTS_FULL, f"grants full: {self._bytes} of {BOOK_BYTES} bytes")

    def transfer(self, request: TransferRequest) -> int:
        """Move grants with their descriptors, all or none. Returns how many moved; 0 for a repeat."""
        self.check_transfer(request)
        if request.from_holder == request.to_holder or self._is_done(request):
            return 0
        sessions = list(dict.fromkeys(request.sessions))
        for session in sessions:
            descriptor = self._take(session, request.from_holder)
            assert descriptor is not None
            self._put(session, request.to_holder, descriptor)
        if request.to_holder in self.deleted:
            self.deleted.remove(request.to_holder)
        return len(sessions)

    def delete_holder(self, holder: str) -> list[Revoked]:
        """Revoke everything that a holder has, and remember that it is gone."""
        sessions = list(self._held.get(holder, {}))
        for session in sessions:
            self._take(session, holder)
        self._state.deleted = [*(each for each in self.deleted if each != holder), holder][-DELETED_HOLDERS:]
        return [Revoked(session_id=session, others=session in self.grants) for session in sessions]

    # -- questions -------------------------------------------------------------------------------------

    def of_holder(self, holder: str) -> list[Grant]:
        """What a holder may address."""
        return [
            Grant(session_id=session, holder=holder, descriptor=self.grants[session][holder])
            for session in self._held.get(holder, {})
        ]

    def of_session(self, session: str) -> list[Grant]:
        """Who may address a session."""
        holders = self.grants.get(session, {})
        return [Grant(session_id=session, holder=holder, descriptor=text) for holder, text in holders.items()]

    def holds(self, holder: str, session: str) -> bool:
        """Whether a holder may address a session."""
        return holder in self.grants.get(session, {})

    # -- small things ----------------------------------------------------------------------------------

    def _granted(self, request: GrantRequest) -> Iterable[str]:
        """The sessions that a request is about, each once."""
        sessions = dict.fromkeys(request.sessions)
        return [session for session in sessions if session not in self.grants] if request.only_first else sessions

    def _is_done(self, request: TransferRequest) -> bool:
        """A transfer whose answer was lost is asked for again: it stands if nothing of it is left to move."""
        return all(
            self.holds(request.to_holder, session) and not self.holds(request.from_holder, session)
            for session in request.sessions
        )

    def _put(self, session: str, holder: str, descriptor: str) -> None:
        if self.holds(holder, session):
            self._take(session, holder)
        self.grants.setdefault(session, {})[holder] = descriptor
        self._add(session, holder, descriptor)

    def _add(self, session: str, holder: str, descriptor: str) -> None:
        self._held.setdefault(holder, {})[session] = None
        self.count += 1
        self._bytes += _size(session, holder, descriptor)

    def _take(self, session: str, holder: str) -> str | None:
        holders = self.grants.get(session, {})
        descriptor = holders.pop(holder, None)
        if descriptor is None:
            return None
        if not holders:
            del self.grants[session]
        del self._held[holder][session]
        if not self._held[holder]:
            del self._held[holder]
        self.count -= 1
        self._bytes -= _size(session, holder, descriptor)
        return descriptor


_AROUND = len('{"session_id":"","holder":"","descriptor":""},')


def _size(session: str, holder: str, descriptor: str) -> int:
    """Bytes of a grant as JSON, as an answer has it; by arithmetic, because thousands are counted in one task."""
    text = f"{session}{holder}{descriptor}"
    size = len(text) if text.isascii() else len(text.encode("utf-8"))
    return size + text.count('"') + text.count("\\") + _AROUND
