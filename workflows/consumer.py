"""The two tasks behind a session: the loop that journals and seals, and the publisher beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError

from affidavit.activity_api import (
    Entry,
    JournalRequest,
    LifecycleRequest,
    OpenRequest,
    OutcomeRequest,
    SealRequest,
    SealResult,
)
from affidavit.assessment import Assessment, encode_request
from affidavit.contract import SessionOutcome
from affidavit.evidence.stops import StopReason, caption
from affidavit.evidence.totals import Totals, final_stop_reason
from affidavit.publishing_api import PublishRequest
from workflows import presenting, stages
from workflows.accounting import own_row
from workflows.decide import Decision, assessable, decide
from workflows.inbox import Inbox, Item
from workflows.registration import Registration
from workflows.state import SessionState

Status = Literal["closed", "cancelled", "quarantined", "abandoned"]


class Consumer:
    """Owns the ledger: nothing else numbers, journals or ends a session.

    `processed` counts tickets that are journaled or given up, -1 until it is known whether the session opens;
    `sealing` is set once the chain is complete;
    `working` names the stage under way and since when (epoch milliseconds), for the view.
    """

    def __init__(self, registration: Registration, state: SessionState, inbox: Inbox) -> None:
        self._registration = registration
        self._spec = registration.spec
        self._state = state
        self._inbox = inbox
        self.processed = -1
        self.sealing = False
        self.outcome: SessionOutcome | None = None
        self.working: dict[str, int] = {}

    async def consume(self) -> SessionOutcome:
        """Open, take batches until the session closes, seal. Returns how it ended."""
        if not await self._open():
            self.sealing = True
            self._give_up(self._inbox.drain())
            self.outcome = self._outcome("quarantined", published=False)
            self.processed = self._inbox.arrived
            return self.outcome
        self.processed = 0
        while True:
            await workflow.wait_condition(lambda: self._inbox.depth > 0 or self._state.closing)
            batch = self._inbox.cut()
            if batch:
                await self._process(batch)
                self.processed = self._inbox.first_ticket
            elif await self._drained():
                break
        self.sealing = True
        self.outcome = await self._end()
        presenting.show(self._registration, self._state, self.outcome)
        return self.outcome

    async def publish(self) -> None:
        """Publish journaled events in order and by reference, beside the loop, until the chain is out."""
        state = self._state
        while True:
            await workflow.wait_condition(
                lambda: state.published < state.ledger.count or self.sealing or state.poisoned is not None
            )
            if state.published >= state.ledger.count or state.poisoned is not None:
                return
            try:
                last = await self._publish_range(state.published, state.ledger.count - 1)
            except ActivityError as error:
                state.poison(f"publishing: {stages.reason_of(error)}")
                return
            state.published = last + 1

    # -- opening ---------------------------------------------------------------------------------------

    async def _open(self) -> bool:
        registration, state = self._registration, self._state
        payload = {
            "mode": self._spec.mode,
            "content": self._spec.content,
            "generation": state.generation,
            "registration_sha256": registration.sha256,
        }
        opening = Item("opened", self._now_ms(), payload=payload)
        decision = self._decide([opening], {})
        request = OpenRequest(
            generation=state.generation,
            mode=self._spec.mode,
            content=self._spec.content,
            agent=self._spec.agent,
            product_version=state.product_version,
            trajectory_id=state.trajectory_id,
            registration=registration.form,
            registration_sha256=registration.sha256,
            entry=decision.entries[0],
        )
        with self._stage("open"):
            try:
                result = await stages.open_session(request)
            except ActivityError as error:
                state.poison(f"opening: {stages.reason_of(error)}")
                return False
        self._commit(decision, result.head)
        state.store_id = result.store_id
        state.opened = True
        return True

    # -- batches ---------------------------------------------------------------------------------------

    async def _process(self, batch: list[Item]) -> None:
        if self._state.poisoned is not None:
            self._give_up(batch)
            return
        assessments = await self._assess(batch)
        decision = self._decide(batch, assessments)
        if decision.entries:
            await self._journal(decision)
        if self._state.poisoned is not None:
            self._give_up(batch)
        elif decision.overflow is not None:
            self._state.poison(f"overflow of {decision.overflow}")
            self._give_up(decision.left)

    async def _assess(self, batch: list[Item]) -> dict[int, Assessment]:
        places = [place for place, item in enumerate(batch) if assessable(item)]
        if not places:
            return {}
        request = encode_request(self._state.ledger.breaker.vectors, [batch[place].value for place in places])
        with self._stage("embed"):
            result = await stages.embed(request)
        if result is None:
            return {}
        return dict(zip(places, result.assessments, strict=True))

    def _decide(self, items: list[Item], assessments: dict[int, Assessment]) -> Decision:
        return decide(self._state.ledger, self._spec, items, assessments, lambda: str(workflow.uuid7()))

    async def _journal(self, decision: Decision) -> None:
        request = JournalRequest(
            generation=self._state.generation,
            content=self._spec.content,
            product_version=self._state.product_version,
            agent=self._spec.agent,
            head=self._state.ledger.head,
            entries=decision.entries,
        )
        steps = ("[" + ",".join(decision.steps) + "]").encode("utf-8")
        with self._stage("journal"):
            try:
                result = await stages.journal(request, steps)
            except ActivityError as error:
                self._state.poison(f"journaling: {stages.reason_of(error)}")
                return
        self._commit(decision, result.head)

    def _commit(self, decision: Decision, head: str) -> None:
        decision.ledger.head = head
        self._state.ledger = decision.ledger
        presenting.show(self._registration, self._state, None)

    def _give_up(self, items: Sequence[Item]) -> None:
        for item in items:
            item.sequence = -1
            self._state.unprocessed += item.step is not None

    # -- the end ---------------------------------------------------------------------------------------

    async def _drained(self) -> bool:
        """Wait for the publisher; False if something arrived meanwhile (a cancel is an event of the chain)."""
        state = self._state
        await workflow.wait_condition(
            lambda: self._inbox.depth > 0 or state.poisoned is not None or state.published == state.ledger.count
        )
        return self._inbox.depth == 0

    async def _end(self) -> SessionOutcome:
        if self._state.poisoned is None:
            sealed = await self._seal()
            if sealed is not None:
                return await self._close(sealed)
        return await self._quarantine()

    async def _seal(self) -> SealResult | None:
        ledger = self._state.ledger
        request = SealRequest(
            generation=self._state.generation,
            head=ledger.head,
            count=ledger.count,
            totals=ledger.totals,
            stop_reason_id=self._stop_reason(),
            receipt_id=str(workflow.uuid7()),
            issued_at=self._now_ms(),
        )
        with self._stage("seal"):
            try:
                return await stages.seal(request)
            except ActivityError as error:
                self._state.poison(f"sealing: {stages.reason_of(error)}")
                return None

    async def _close(self, sealed: SealResult) -> SessionOutcome:
        status: Literal["closed", "cancelled"] = "cancelled" if self._state.cancelled else "closed"
        ledger, receipt = self._state.ledger, sealed.receipt
        announced = {key: receipt[key] for key in ("receipt_id", "key_id", "subject")}
        closed = {
            "mode": self._spec.mode,
            "outcome": status,
            "chain_head": ledger.head,
            "event_count": ledger.count,
        }
        outcome = self._outcome(status, published=True)
        outcome.receipt_id = receipt["receipt_id"]
        outcome.key_id = receipt["key_id"]
        outcome.receipt = receipt
        outcome.receipt_sha256 = sealed.receipt_sha256
        await self._conclude([("receipt", {**announced, "receipt": receipt}), ("closed", closed)], outcome)
        return outcome

    async def _quarantine(self) -> SessionOutcome:
        ledger = self._state.ledger
        self._give_up(self._inbox.drain())
        outcome = self._outcome("quarantined", published=self._state.published == ledger.count)
        payload = {"reason": self._state.poisoned, "chain_head": ledger.head, "event_count": ledger.count}
        await self._conclude([("quarantined", payload)], outcome)
        return outcome

    async def _conclude(self, events: list[tuple[str, dict[str, Any]]], outcome: SessionOutcome) -> None:
        """Write the lifecycle events, publish them, seal the outcome. The end does not depend on the bus' word
        alone: what it refuses for good is said in the outcome (E4)."""
        state, first = self._state, self._state.ledger.count
        entries = [
            self._lifecycle_entry(first + place, action, payload) for place, (action, payload) in enumerate(events)
        ]
        request = LifecycleRequest(
            generation=state.generation,
            product_version=state.product_version,
            agent=state.ledger.agent,
            entries=entries,
        )
        with self._stage("lifecycle"):
            try:
                await stages.write_lifecycle(request)
                await self._publish_range(first, first + len(entries) - 1, lifecycle=True)
            except ActivityError as error:
                workflow.logger.error("lifecycle events: %s", stages.reason_of(error))
                outcome.published = False
        with self._stage("outcome"):
            try:
                await stages.write_outcome(OutcomeRequest(generation=state.generation, outcome=outcome))
            except ActivityError as error:
                workflow.logger.error("outcome: %s", stages.reason_of(error))

    def _lifecycle_entry(self, sequence: int, action: str, payload: dict[str, Any]) -> Entry:
        row = own_row(action, payload)
        return Entry(
            action=action,
            sequence=sequence,
            uid=str(workflow.uuid7()),
            time=self._now_ms(),
            class_name=row.class_name,
            status_id=row.status_id,
            severity_id=row.severity_id,
            payload=row.payload,
        )

    async def _publish_range(self, first: int, last: int, *, lifecycle: bool = False) -> int:
        request = PublishRequest(
            session_id=workflow.info().workflow_id,
            generation=self._state.generation,
            first=first,
            last=last,
            lifecycle=lifecycle,
            store_id=self._state.store_id,
        )
        with self._stage("publish"):
            result = await stages.publish(request)
        return result.last

    # -- small things ----------------------------------------------------------------------------------

    def _outcome(self, status: Status, *, published: bool) -> SessionOutcome:
        state = self._state
        stop_reason_id = self._stop_reason()
        return SessionOutcome(
            session_id=workflow.info().workflow_id,
            generation=state.generation,
            mode=self._spec.mode,
            status=status,
            reason=state.poisoned,
            stop_reason_id=stop_reason_id,
            stop_reason=caption(StopReason(stop_reason_id)),
            totals=state.ledger.totals,
            steps=state.ledger.steps,
            event_count=state.ledger.count,
            chain_head=state.ledger.head,
            rejected=state.ledger.rejected,
            repeated=state.repeated,
            late_steps=state.late_steps,
            unprocessed=state.unprocessed,
            published=published,
        )

    def _stop_reason(self) -> int:
        state = self._state
        evidence = Totals(
            stop_reason_id=state.ledger.stop_reason_id,
            cancel_requested=state.cancelled,
            abort_tripped=state.ledger.aborted,
        )
        return final_stop_reason(evidence)

    def _now_ms(self) -> int:
        return self._state.admit(int(workflow.now().timestamp() * 1000))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.working[name] = self._now_ms()
        try:
            yield
        finally:
            # The publisher may be stuck in a stage that the end of a quarantined session goes through as well.
            self.working.pop(name, None)
