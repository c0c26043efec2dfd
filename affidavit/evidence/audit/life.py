"""One generation, as far as an audit has read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from affidavit.evidence.audit.findings import Finding, Kind, reason_of
from affidavit.evidence.audit.folder import AuditedFolder
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    authenticate,
    domain_active,
    domain_erased,
    domain_lifecycle,
    domain_metadata,
    domain_outcome,
    domain_pruned,
    domain_trajectory,
    parse_envelope,
)
from affidavit.evidence.layout import ERASED, JOURNAL, LIFECYCLE, METADATA, OUTCOME, PROVENANCE, PRUNED
from affidavit.evidence.receipt import Receipt
from affidavit.evidence.sources import optional
from affidavit.evidence.text import printable

_DOMAINS: Final = {
    METADATA: domain_metadata,
    OUTCOME: domain_outcome,
    JOURNAL: domain_active,
    LIFECYCLE: domain_lifecycle,
    PROVENANCE: domain_trajectory,
    PRUNED: domain_pruned,
    ERASED: domain_erased,
}


@dataclass(slots=True)
class Life:
    """A generation's folder, and what was read in it."""

    store: AuditedFolder
    stem: str
    generation: str
    ended: bool
    """Whether the outcome was there before the bus was read."""
    keys: Sequence[bytes] = ()
    """The keys under which MACs are checked; without one they are not."""
    session_id: str | None = None
    mode: str | None = None
    opened_ms: int | None = None
    outcome: dict[str, Any] | None = None
    receipt: Receipt | None = None
    has_receipt: bool = False
    count: int = 0
    last_ms: int | None = None
    recent: bool = False
    promised: int | None = None
    """The sequence through which the events must be there, lifecycle events included."""
    captures: set[str] = field(default_factory=set)

    def say(self, kind: Kind, what: str) -> Finding:
        """A finding about this generation."""
        return Finding(kind, self.session_id or self.stem, self.generation, what)

    def unreadable(self, name: str, error: Exception) -> Finding:
        """A finding about an object that cannot be read, or is not what its name says."""
        reason = reason_of(error)
        return self.say("unreadable", reason if name in reason else f"{printable(name)}: {reason}")

    def optional(self, name: str) -> tuple[bytes | None, Finding | None]:
        """An object that need not be there; a finding where it is and cannot be read."""
        if not self.store.has(name):
            return None, None
        try:
            return optional(self.store, name), None
        except (OSError, EvidenceError) as error:
            return None, self.unreadable(name, error)

    def payload(self, data: bytes, kind: str, index: int | None = 0) -> Any:
        """Payload of an envelope; its MAC is checked where there are keys and the session is known."""
        envelope = parse_envelope(data)
        if self.keys and self.session_id is not None:
            domain = _DOMAINS[kind](self.session_id, self.generation)
            authenticate(envelope, keys=self.keys, domain=domain, index=index)
        return envelope.payload
