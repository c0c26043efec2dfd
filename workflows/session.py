"""The life of one agent session (design.md 2).

Message handlers only read, stamp and enqueue. One loop assigns numbers, so order, sequence and chain follow
arrival; a second task publishes beside it. `run` awaits neither of them directly: a cancel reaches `run` alone,
which records it and lets the loop end the session in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit.contract import (
        Agent,
        AttachResult,
        BreakerReset,
        CloseAccepted,
        FlushResult,
        IdentityResult,
        Refusal,
        SessionOutcome,
        SessionView,
        SubmitResult,
        TerminalState,
    )
    from affidavit.evidence.text import printable
    from affidavit.version import VERSION
    from workflows import presenting
    from workflows.consumer import Consumer
    from workflows.inbox import Inbox, Item
    from workflows.messages import Unreadable, message, read_message, read_model, read_submission
    from workflows.registration import Refused, check_same, read_registration
    from workflows.state import Ledger, SessionState


# Dynamic, because only then the SDK hands over start arguments of any number and encoding as they came. A named
# definition decodes a second argument before this code runs, and a failure there retries the task for ever (A6).
@workflow.defn(dynamic=True)
class AgentSession:
    """One agent session; the workflow type is `contract.SESSION_WORKFLOW`, the workflow id the session id."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self._inbox = Inbox(read_message)
        self._waiting_updates = 0
        self._bad_start: Refused | None = None
        try:
            self._refuse_restarts()
            self._registration = read_registration([arg.payload for arg in args])
            if self._registration.spec.mode != "signed":
                raise Refused(contract.REFUSED_BAD_SPEC, "this version runs signed sessions only")
        except Refused as error:
            self._bad_start = error
            return
        self._state = SessionState(
            generation=workflow.info().first_execution_run_id,
            product_version=VERSION,
            trajectory_id=str(workflow.uuid7()),
            registration_sha256=self._registration.sha256,
            ledger=Ledger(agent=self._registration.spec.agent),
        )
        self._consumer = Consumer(self._registration, self._state, self._inbox)

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> SessionOutcome:
        _check_type()
        if workflow.info().cron_schedule:
            # A failed run is followed by the next one of its schedule, for ever; one that is continued by this
            # command has no schedule any more, and its failure is the end.
            workflow.continue_as_new()
        if self._bad_start is not None:
            raise ApplicationError(str(self._bad_start), type=self._bad_start.type, non_retryable=True)
        loop = asyncio.create_task(self._consumer.consume())
        publisher = asyncio.create_task(self._consumer.publish())

        def ended() -> bool:
            return loop.done() or (publisher.done() and publisher.exception() is not None)

        while not ended():
            try:
                await workflow.wait_condition(ended)
            except asyncio.CancelledError:
                self._cancel()
        if publisher.done():
            publisher.result()  # a bug in it suspends the session like one in the loop; a mended worker resumes
        outcome = loop.result()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if outcome.status in ("quarantined", "abandoned"):
            type_ = contract.FAILED_QUARANTINED if self._state.opened else contract.FAILED_OPEN
            raise ApplicationError(
                f"session {outcome.status}: {outcome.reason}", outcome, type=type_, non_retryable=True
            )
        return outcome

    # -- signals ---------------------------------------------------------------------------------------

    @workflow.signal(dynamic=True)
    def report(self, name: str, args: Sequence[RawValue]) -> None:
        """Every signal there is: what can be read is enqueued, what cannot becomes an event (B5, B6)."""
        if self._bad_start is not None:
            return
        unread = message(name, [arg.payload for arg in args], self._admitted_ms())
        if self._state.closing:
            self._state.late_steps += len(read_message(unread))
        else:
            self._inbox.put([unread])

    # -- updates ---------------------------------------------------------------------------------------

    @workflow.update
    async def attach(self, raw: RawValue) -> AttachResult:
        """Join the session; answers once its opening event is on disk."""
        await workflow.wait_condition(lambda: self._state.opened or self._consumer.outcome is not None)
        if not self._state.opened:
            raise ApplicationError(str(self._state.poisoned), type=contract.FAILED_OPEN)
        return AttachResult(
            session_id=workflow.info().workflow_id,
            generation=self._state.generation,
            registration_sha256=self._registration.sha256,
            store_id=self._state.store_id,
            product_version=self._state.product_version,
        )

    @attach.validator
    def _check_attach(self, raw: RawValue) -> None:
        self._check_start()
        try:
            check_same(self._registration, read_registration([raw.payload]))
        except Refused as error:
            _refuse(error.type, str(error))
        self._check_live()

    @workflow.update
    async def submit(self, raw: RawValue) -> SubmitResult:
        """Report steps and learn where they stand in the journal (B8)."""
        items = read_submission(raw.payload, self._admitted_ms())
        await self._journaled(items)
        ledger = self._state.ledger
        verdicts = [item.verdict for item in items if item.verdict is not None]
        return SubmitResult(
            first_sequence=items[0].sequence,
            last_sequence=items[-1].sequence,
            chain_head=ledger.head,
            event_count=ledger.count,
            breaker_open=ledger.breaker.open,
            verdict=verdicts[-1] if verdicts else None,
        )

    @submit.validator
    def _check_submit(self, raw: RawValue) -> None:
        self._check_capacity()
        try:
            read_submission(raw.payload, 0)
        except Unreadable as error:
            _refuse(contract.REFUSED_BAD_REQUEST, str(error))

    @workflow.update
    async def flush(self) -> FlushResult:
        """Answers when everything reported before is on disk, or is known not to be."""
        ticket = self._inbox.arrived
        await self._wait(lambda: self._consumer.processed >= ticket)
        ledger = self._state.ledger
        return FlushResult(
            event_count=ledger.count, chain_head=ledger.head, published_through=self._state.published - 1
        )

    @flush.validator
    def _check_flush(self) -> None:
        self._check_start()
        self._check_places()

    @workflow.update
    async def close(self) -> CloseAccepted:
        """Begin the end; repeating it changes nothing. The outcome is the workflow's result."""
        self._state.closing = True
        return CloseAccepted(session_id=workflow.info().workflow_id, generation=self._state.generation)

    @close.validator
    def _check_close(self) -> None:
        self._check_start()

    @workflow.update
    async def refresh_identity(self, raw: RawValue) -> IdentityResult:
        """Renew the credential's lifetime; another identity is refused, and the refusal is an event (A3)."""
        agent = read_model(raw.payload, Agent)
        if agent.triple() != self._state.ledger.agent.triple():
            reason = "session is bound to a different agent identity"
            self._report_refusal("identity")
            refusal = Refusal(type=contract.REFUSED_IDENTITY, reason=reason)
            return IdentityResult(agent=self._state.ledger.agent, refused=refusal)
        await self._journaled([self._own("identity_refreshed", ttl_remaining_s=agent.ttl_remaining_s)])
        return IdentityResult(agent=self._state.ledger.agent)

    @refresh_identity.validator
    def _check_refresh_identity(self, raw: RawValue) -> None:
        self._check_capacity()
        _check_model(raw, Agent)

    @workflow.update
    async def reset_breaker(self, raw: RawValue) -> FlushResult:
        """Close the breaker again; who and why is an event."""
        request = read_model(raw.payload, BreakerReset)
        await self._journaled([self._own("breaker_reset", by=request.by, reason=request.reason)])
        ledger = self._state.ledger
        return FlushResult(
            event_count=ledger.count, chain_head=ledger.head, published_through=self._state.published - 1
        )

    @reset_breaker.validator
    def _check_reset_breaker(self, raw: RawValue) -> None:
        self._check_capacity()
        _check_model(raw, BreakerReset)

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query
    def view(self) -> SessionView:
        """Everything an operator asks."""
        self._check_start()
        return presenting.view(self._registration, self._state, self._inbox, self._consumer)

    @workflow.query
    def terminal_state(self) -> TerminalState:
        """The outcome, or nothing while the session lives."""
        self._check_start()
        return TerminalState(outcome=self._consumer.outcome)

    # -- what the handlers share -----------------------------------------------------------------------

    def _refuse_restarts(self) -> None:
        # A second run under the same generation would write over the first one's evidence.
        info = workflow.info()
        if info.retry_policy is not None or info.cron_schedule or info.continued_run_id is not None:
            raise Refused(contract.REFUSED_BAD_SPEC, "a session takes no retry policy and no cron schedule")

    def _admitted_ms(self) -> int:
        """The workflow's time in epoch milliseconds."""
        return self._state.admit(int(workflow.now().timestamp() * 1000))

    def _own(self, action: str, **payload: object) -> Item:
        return Item(action, self._admitted_ms(), payload={k: v for k, v in payload.items() if v is not None})

    def _cancel(self) -> None:
        if self._state.cancelled or self._consumer.sealing:
            return
        self._state.cancelled = True
        self._inbox.put([self._own("cancel_requested")])
        self._state.closing = True

    def _report_refusal(self, reason: str) -> None:
        """An event for an enforced refusal, at most one a second; the others are counted into the next one."""
        state = self._state
        state.refusals_unreported += 1
        now = self._admitted_ms()
        if now - state.last_refusal_ms >= contract.REFUSED_EVENT_INTERVAL_MS:
            self._inbox.put([self._own("refused", reason=reason, count=state.refusals_unreported)])
            state.refusals_unreported, state.last_refusal_ms = 0, now

    async def _journaled(self, items: list[Item]) -> None:
        """Enqueue and wait until the journal holds the items, or it is certain that it never will."""
        self._inbox.put(items)
        last = items[-1]
        await self._wait(lambda: self._consumer.processed > last.ticket)
        if last.sequence < 0:
            _refuse(contract.REFUSED_INCOMPLETE, f"capture is incomplete: {self._state.poisoned}")

    async def _wait(self, condition: Callable[[], bool]) -> None:
        self._waiting_updates += 1
        try:
            await workflow.wait_condition(condition)
        finally:
            self._waiting_updates -= 1

    def _check_start(self) -> None:
        if self._bad_start is not None:
            _refuse(self._bad_start.type, str(self._bad_start))

    def _check_live(self) -> None:
        if self._state.closing:
            _refuse(contract.REFUSED_CLOSING, "session is closing")
        if self._state.poisoned is not None:
            _refuse(contract.REFUSED_INCOMPLETE, f"capture is incomplete: {self._state.poisoned}")

    def _check_places(self) -> None:
        if self._waiting_updates >= contract.WAITING_UPDATES:
            _refuse(contract.REFUSED_BUSY, f"{self._waiting_updates} updates are waiting already")

    def _check_capacity(self) -> None:
        self._check_start()
        self._check_live()
        if self._inbox.depth >= self._registration.spec.limits.queue:
            _refuse(contract.REFUSED_QUEUE_FULL, f"queue full: {self._inbox.depth} steps waiting")
        self._check_places()


def _check_type() -> None:
    # What the SDK does with a type that no worker has registered: the task fails until one has.
    if (name := workflow.info().workflow_type) != contract.SESSION_WORKFLOW:
        raise RuntimeError(f"workflow type {printable(name)} is not registered on this worker")


def _refuse(type_: str, reason: str) -> NoReturn:
    raise ApplicationError(reason, type=type_, non_retryable=True)


def _check_model(raw: RawValue, model: type[Agent] | type[BreakerReset]) -> None:
    try:
        read_model(raw.payload, model)
    except Unreadable as error:
        _refuse(contract.REFUSED_BAD_REQUEST, str(error))
