"""Writes a session's evidence: metadata, journal and captures segments, lifecycle events, outcome.

Every method may run again, and beside an attempt of itself that was given up: all it writes was fixed before it
was called, so a repeat writes the same bytes or finds them.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalio import activity
from temporalio.common import RawValue

from activities.composing import Session, compose
from activities.custom_events import check_declaration
from activities.errors import OpeningRefused, told_to_temporal
from activities.heartbeats import beating
from activities.sealed import Life, SealedEvidence
from affidavit import contract
from affidavit.activity_api import (
    JournalRequest,
    JournalResult,
    LifecycleRequest,
    OpenRequest,
    OpenResult,
    OutcomeRequest,
)
from affidavit.evidence.capture import read_reported
from affidavit.evidence.chain import extend_canonical, genesis
from affidavit.evidence.journal import JOURNAL_VERSION, domain_lifecycle, domain_metadata, domain_outcome
from affidavit.evidence.layout import lifecycle_name, metadata_name, outcome_name


class JournalingActivity:
    """Around the evidence store. It holds the journal keys and never sees the signing seed."""

    def __init__(
        self, evidence: SealedEvidence, attributes: Callable[[], bool] = lambda: False, embedding: str = ""
    ) -> None:
        """`attributes`: whether sessions can set the search attributes; it does not raise. `embedding`: as `OpenResult`
        tells it to the sessions that are opened here."""
        self._evidence = evidence
        self._attributes = attributes
        self._embedding = embedding

    @activity.defn(name=contract.ACTIVITY_OPEN)
    def open(self, request: OpenRequest) -> OpenResult:
        """Write the metadata and the opening event of a generation.

        Raises:
            ApplicationError: type IntegrityError, not retryable, if the generation exists and is another one.
        """
        with told_to_temporal(), beating():
            life = self._evidence.callers_life(request)
            self._check_earlier_lives(life, request.reopen)
            check_declaration(request.registration.get("event_types", {}))
            metadata = {
                "journal_version": JOURNAL_VERSION,
                "session_id": life.session_id,
                "generation": life.generation,
                "mode": request.mode,
                "content": request.content,
                "identity": request.agent.as_identity(request.agent.ttl_remaining_s),
                "product_version": request.product_version,
                "trajectory_id": request.trajectory_id,
                "registration_sha256": request.registration_sha256,
                "registration": request.registration,
            }
            domain = domain_metadata(life.session_id, life.generation)
            self._evidence.create(metadata_name(life.session_id, life.generation), domain, 0, metadata)
            batch = JournalRequest(
                generation=request.generation,
                content=request.content,
                product_version=request.product_version,
                agent=request.agent,
                head=genesis(life.session_id).hex(),
                entries=[request.entry],
            )
            head = self._write(life, batch, [])
            return OpenResult(
                head=head,
                store_id=self._evidence.store.store_id,
                attributes=self._attributes(),
                embedding=self._embedding,
            )

    @activity.defn(name=contract.ACTIVITY_JOURNAL)
    def journal(self, request: JournalRequest, steps: RawValue) -> JournalResult:
        """Write one batch: captures first, then the journal segment, whose existence is the commit.

        Raises:
            ApplicationError: type IntegrityError, not retryable, if another segment stands in its place.
        """
        with told_to_temporal(), beating():
            reported = read_reported(steps.payload.data)["steps"]
            head = self._write(self._evidence.callers_life(request), request, reported)
            return JournalResult(head=head, count=request.entries[-1].sequence + 1)

    @activity.defn(name=contract.ACTIVITY_LIFECYCLE)
    def lifecycle(self, request: LifecycleRequest) -> None:
        """Write the events numbered after the chain, each an object of its own."""
        with told_to_temporal(), beating():
            life = self._evidence.callers_life(request)
            session = Session(life.session_id, request.product_version, request.agent)
            for entry in request.entries:
                entry.ttl_remaining_s = request.agent.ttl_remaining_s
                record, _ = compose(session, entry, None)
                self._evidence.create(
                    lifecycle_name(life.session_id, life.generation, entry.sequence),
                    domain_lifecycle(life.session_id, life.generation),
                    entry.sequence,
                    {"event": record["event"]},
                )

    @activity.defn(name=contract.ACTIVITY_OUTCOME)
    def outcome(self, request: OutcomeRequest) -> None:
        """Seal the outcome: the memory of the session that outlives Temporal's."""
        with told_to_temporal(), beating():
            life = self._evidence.callers_life(request)
            self._evidence.create(
                outcome_name(life.session_id, life.generation),
                domain_outcome(life.session_id, life.generation),
                0,
                request.outcome.model_dump(mode="json", exclude_none=True),
            )

    def _check_earlier_lives(self, life: Life, reopen: bool) -> None:
        """That an id which has lived before may live again: by what the store remembers, not Temporal (A4).

        Raises:
            OpeningRefused: it may not.
        """
        for generation in self._evidence.generations(life.session_id):
            if generation == life.generation:
                continue
            if not reopen:
                raise OpeningRefused("the session has ended; only reopen starts a fresh generation")
            status = self._evidence.outcome_status(Life(life.session_id, generation))
            if status not in contract.REOPENABLE:
                raise OpeningRefused(f"an earlier generation ended {status}; the id is not opened again")

    def _write(self, life: Life, request: JournalRequest, steps: list[dict[str, object]]) -> str:
        session = Session(life.session_id, request.product_version, request.agent, request.content)
        composed = [
            compose(session, entry, None if entry.step is None else steps[entry.step]) for entry in request.entries
        ]
        first = request.entries[0].sequence
        if request.content != "digest":
            self._evidence.create_captures(life, first, [captured for _, captured in composed])
        head = bytes.fromhex(request.head)
        for event in self._evidence.create_segment(life, first, [record for record, _ in composed]):
            head = extend_canonical(head, event)
        return head.hex()
