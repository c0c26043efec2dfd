"""The end of a session: seal, tell, remember. Each step is fixed in the state before it is tried (F4, H1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from affidavit import contract
from affidavit.activity_api import (
    Entry,
    LifecycleRequest,
    OutcomeRequest,
    SealRequest,
    SealResult,
    TrajectoryRequest,
)
from affidavit.contract import SessionOutcome
from affidavit.evidence.stops import StopReason, caption
from affidavit.evidence.totals import Totals, final_stop_reason
from workflows import stages
from workflows.accounting import own_row
from workflows.clock import admitted_ms, new_id
from workflows.entries import entry_of
from workflows.registration import Registration
from workflows.state import Ending, SessionState

Events = list[tuple[str, dict[str, Any]]]
"""Lifecycle events in order: action and payload."""

Status = Literal["closed", "cancelled", "quarantined", "abandoned"]


class Publish(Protocol):
    """Publishes a range; returns the last event that is out."""

    async def __call__(self, first: int, last: int, *, lifecycle: bool = False) -> int: ...


class Ender:
    """Ends a session whose chain is complete, or whose capture never will be."""

    def __init__(
        self,
        registration: Registration,
        state: SessionState,
        stage: Callable[[str], AbstractContextManager[None]],
        publish: Publish,
    ) -> None:
        self._spec = registration.spec
        self._state = state
        self._stage = stage
        self._publish = publish

    async def end(self) -> SessionOutcome:
        """Seal and close, or quarantine or abandon; goes on where an earlier run was."""
        state = self._state
        if state.ending is None:
            state.ending = Ending()
        ending = state.ending
        abandonment = state.process.abandonment()
        if state.poisoned is None and abandonment is None and ending.outcome is None:
            await (self._seal(ending) if self._spec.mode == "signed" else self._write_trajectory(ending))
        if ending.outcome is None:
            if ending.sealed is not None:
                self._prepare_close(ending, self._announcement(ending.sealed))
                _attested(ending.outcome, ending.sealed)
            elif ending.written is not None:
                self._prepare_close(ending, [])
                assert ending.outcome is not None
                ending.outcome.trajectory_digest = ending.written.trajectory_digest
            elif state.poisoned is None and abandonment is not None:
                self._prepare_failure(ending, "abandoned")
                assert ending.outcome is not None
                ending.outcome.abandonment = abandonment
            else:
                # Also where it was abandoned as well: an incomplete capture is the graver thing to know (A4).
                self._prepare_failure(ending, "quarantined")
        assert ending.outcome is not None
        await self._tell(ending, ending.outcome)
        await self._remember(ending.outcome)
        return ending.outcome

    def unopened(self) -> SessionOutcome:
        """The outcome of a session that could not be opened; it has no evidence to write to."""
        return self._outcome("quarantined", published=False)

    async def _seal(self, ending: Ending) -> None:
        """Have the signer check the journal and sign a receipt over the chain."""
        if ending.seal is None:
            ending.seal = SealRequest(**self._claims(), receipt_id=new_id(), issued_at=admitted_ms(self._state))
        with self._stage("seal"):
            try:
                ending.sealed = ending.sealed or await stages.seal(ending.seal)
            except ActivityError as error:
                self._state.poison(f"sealing: {stages.reason_of(error)}")

    async def _write_trajectory(self, ending: Ending) -> None:
        """Have the trajectory of an unsigned session written; one without a step is no trajectory (F3)."""
        if ending.trajectory is None:
            ending.trajectory = TrajectoryRequest(**self._claims())
        with self._stage("trajectory"):
            try:
                ending.written = ending.written or await stages.write_trajectory(ending.trajectory)
            except ActivityError as error:
                cause = error.cause
                if isinstance(cause, ApplicationError) and cause.type == contract.FAILED_NO_STEPS:
                    self._state.poison("no captured steps")
                else:
                    self._state.poison(f"trajectory: {stages.reason_of(error)}")

    def _claims(self) -> dict[str, Any]:
        state, ledger = self._state, self._state.ledger
        return {
            "generation": state.generation,
            "store_id": state.store_id,
            "head": ledger.head,
            "count": ledger.count,
            "totals": ledger.totals,
            "stop_reason_id": self._stop_reason(),
            "idle": state.idle,
        }

    def _announcement(self, sealed: SealResult) -> Events:
        receipt = sealed.receipt
        announced = {key: receipt[key] for key in ("receipt_id", "key_id", "subject")}
        return [("receipt", {**announced, "receipt": receipt})]

    def _prepare_close(self, ending: Ending, before: Events) -> None:
        status: Status = "cancelled" if self._state.cancelled else "closed"
        ledger = self._state.ledger
        closed = {
            "mode": self._spec.mode,
            "outcome": status,
            "chain_head": ledger.head,
            "event_count": ledger.count,
        }
        ending.outcome = self._outcome(status, published=True)
        self._prepare_lifecycle(ending, [*before, ("closed", closed)])

    def _prepare_failure(self, ending: Ending, status: Status) -> None:
        ledger = self._state.ledger
        ending.outcome = self._outcome(status, published=True)
        payload = {"reason": self._reason(status), "chain_head": ledger.head, "event_count": ledger.count}
        self._prepare_lifecycle(ending, [(status, payload)])

    def _prepare_lifecycle(self, ending: Ending, events: Events) -> None:
        state, first = self._state, self._state.ledger.count
        ending.lifecycle = LifecycleRequest(
            generation=state.generation,
            store_id=state.store_id,
            product_version=state.product_version,
            agent=state.ledger.agent,
            entries=[self._entry(first + place, action, payload) for place, (action, payload) in enumerate(events)],
        )

    def _entry(self, sequence: int, action: str, payload: dict[str, Any]) -> Entry:
        row, uid = own_row(action, payload), new_id()
        return entry_of(row, sequence=sequence, uid=uid, time=admitted_ms(self._state))

    async def _tell(self, ending: Ending, outcome: SessionOutcome) -> None:
        """Write and publish the lifecycle events. The end does not depend on the bus' word alone: what it refuses
        for good is said in the outcome (E4)."""
        if ending.settled:
            return
        assert ending.lifecycle is not None
        entries = ending.lifecycle.entries
        with self._stage("lifecycle"):
            try:
                if not ending.lifecycle_written:
                    await stages.write_lifecycle(ending.lifecycle)
                    ending.lifecycle_written = True
                    self._state.process.log.append(entries)
                outcome.published = self._state.published == self._state.ledger.count
                await self._publish(entries[0].sequence, entries[-1].sequence, lifecycle=True)
            except ActivityError as error:
                workflow.logger.error("lifecycle events: %s", stages.reason_of(error))
                outcome.published = False
        # Messages came while this took its time; what the outcome says of them is fixed here, once.
        outcome.late_steps = self._state.late_steps
        ending.settled = True

    async def _remember(self, outcome: SessionOutcome) -> None:
        with self._stage("outcome"):
            try:
                await stages.write_outcome(self._outcome_request(outcome))
            except ActivityError as error:
                workflow.logger.error("outcome: %s", stages.reason_of(error))

    def _outcome_request(self, outcome: SessionOutcome) -> OutcomeRequest:
        state = self._state
        return OutcomeRequest(generation=state.generation, store_id=state.store_id, outcome=outcome)

    def _outcome(self, status: Status, *, published: bool) -> SessionOutcome:
        state = self._state
        stop_reason_id = self._stop_reason()
        return SessionOutcome(
            session_id=workflow.info().workflow_id,
            generation=state.generation,
            mode=self._spec.mode,
            status=status,
            reason=self._reason(status),
            stop_reason_id=stop_reason_id,
            stop_reason=caption(StopReason(stop_reason_id)),
            totals=state.ledger.totals,
            steps=state.ledger.steps,
            event_count=state.ledger.count,
            chain_head=state.ledger.head,
            rejected=state.ledger.rejected,
            repeated=state.repeated,
            unverified=state.unverified,
            late_steps=state.late_steps,
            unprocessed=state.unprocessed,
            unprocessed_sha256=state.unprocessed_sha256 or None,
            published=published,
        )

    def _reason(self, status: Status) -> str | None:
        process = self._state.process
        if status == "cancelled" and process.cancel is not None:
            return process.cancel.reason
        if status == "abandoned" and process.abandon is not None:
            return process.abandon.reason
        return self._state.poisoned

    def _stop_reason(self) -> int:
        state = self._state
        evidence = Totals(
            stop_reason_id=state.ledger.stop_reason_id,
            cancel_requested=state.cancelled,
            abort_tripped=state.ledger.aborted,
        )
        return final_stop_reason(evidence, idle=state.idle)


def _attested(outcome: SessionOutcome | None, sealed: SealResult) -> None:
    assert outcome is not None
    outcome.receipt_id = sealed.receipt["receipt_id"]
    outcome.key_id = sealed.receipt["key_id"]
    outcome.receipt = sealed.receipt
    outcome.receipt_sha256 = sealed.receipt_sha256
