"""What a verification found: its report, and a named error for each way to be refused (behaviours G2, G3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.receipt import (
    Receipt,
)
from affidavit.evidence.receipt import (
    VerificationError as VerificationError,
)


class UnreadableEvidence(VerificationError):
    """A document is not what it should be; the message of the first error stands in it."""


class NoReceipt(VerificationError):
    """No receipt was given and the source holds none."""


class MixedSessions(VerificationError):
    """An event belongs to another session than the receipt."""


class MixedGenerations(VerificationError):
    """The events are not all of one generation."""


class OpeningMissing(VerificationError):
    """The first event is not an opening event with sequence 0."""


class EventGap(VerificationError):
    """Events inside the chain are missing."""


class TailMissing(VerificationError):
    """The last events of the chain are missing."""


class ExtraEvent(VerificationError):
    """There is an event that the receipt does not cover."""


class EventOrder(VerificationError):
    """The journal's records are not in ascending order."""


class AlteredContent(VerificationError):
    """The events are not those that were signed.

    ``places`` holds the sequences where the journal's MACs fail; empty where the place is unknown.
    """

    def __init__(self, message: str, places: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)


class JournalKeyMismatch(VerificationError):
    """No record authenticates: the journal key is another journal's."""


class InvalidChainEvent(VerificationError):
    """A chained event is not a valid event."""


class IdentityMismatch(VerificationError):
    """The receipt names another agent than the events."""


class TotalsMismatch(VerificationError):
    """The receipt's totals, the events and the journal's increments disagree."""


class StopReasonMismatch(VerificationError):
    """The receipt's stop reason does not follow from the events."""


class LifecycleMismatch(VerificationError):
    """A lifecycle event contradicts the receipt."""


class CaptureMismatch(VerificationError):
    """A capture is not the one whose digest its event carries."""


class MetadataMismatch(VerificationError):
    """metadata.json contradicts the opening event."""


class TrajectoryMismatch(VerificationError):
    """The trajectory is not the one that the receipt names."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check that was made."""

    name: str
    outcome: Literal["passed", "refused"]
    detail: str


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that could not be checked, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Report:
    """What an auditor learns.

    ``trusted`` is true only if the signature is by a key of the given keyring and nothing was refused. ``generation``
    is the one that the events state; None where there are none. ``unchecked`` names after a refusal what was not
    reached any more.
    """

    receipt: Receipt | None = None
    generation: str | None = None
    trusted: bool = False
    checks: list[Check] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    _planned: list[str] = field(default_factory=list, repr=False)

    def plan(self, *names: str) -> None:
        """Announce checks, so that a refusal can name those that it has kept from being made."""
        self._planned += names

    def leave(self, name: str, reason: str) -> None:
        """Note something that could not be checked."""
        self.unchecked.append(Unchecked(name, reason))

    @contextmanager
    def guarding(self, name: str) -> Iterator[None]:
        """Every refusal leaves the block as a `VerificationError` that carries this report; success is not noted."""
        try:
            yield
        except EvidenceError as error:
            if isinstance(error, VerificationError) and error.report is self:  # noted by a check inside
                raise
            self.checks.append(Check(name, "refused", str(error)))
            self.trusted = False
            reached = {each.name for each in self.checks} | {each.name for each in self.unchecked}
            for planned in self._planned:
                if planned not in reached:
                    self.leave(planned, "not reached")
            if isinstance(error, VerificationError):
                error.report = self
                raise
            refusal = UnreadableEvidence(f"{name}: {error}")
            refusal.report = self
            raise refusal from error

    @contextmanager
    def checking(self, name: str, detail: str) -> Iterator[None]:
        """As `guarding`, and what goes well is noted as a check that passed."""
        with self.guarding(name):
            yield
        self.checks.append(Check(name, "passed", detail))
