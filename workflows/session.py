"""The life of one agent session (design.md 2).

Message handlers only read, stamp and enqueue. One loop assigns numbers, so order, sequence and chain follow
arrival; a second task publishes beside it. `run` awaits neither of them directly: a cancel reaches `run` alone,
which records it and lets the loop end the session in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit.contract import (
        AdmitRequest,
        AdmitResult,
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
    from affidavit.waking_api import SIGNAL_ACK_WAKE, SIGNAL_WOKEN, WakesResult
    from workflows import handover, metrics, presenting
    from workflows.admission import IDENTITY, accepted, enforced
    from workflows.attributes import Attributes
    from workflows.consumer import Consumer
    from workflows.guards import Guards, check_model, refuse
    from workflows.inbox import Arrival, Inbox, Item, Reply
    from workflows.messages import (
        Unreadable,
        check_submission,
        message,
        read_model,
        read_sequence,
        read_submission,
    )
    from workflows.receiving import Receiver
    from workflows.registration import Refused, check_same, read_registration
    from workflows.rollover import Rollover
    from workflows.state import Ledger, SessionState
    from workflows.timers import Timers
    from workflows.wakes import Wakes
    from workflows.waking import Waking


# When a run is handed on while its store is away, Temporal fails what waits in it, and the client asks the next run.
_waiting_update = workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)


# Dynamic, because only then the SDK hands over start arguments of any number and encoding as they came. A named
# definition decodes a second argument before this code runs, and a failure there retries the task for ever (A6).
@workflow.defn(dynamic=True)
class AgentSession:
    """One agent session; the workflow type is `contract.SESSION_WORKFLOW`, the workflow id the session id."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self._bad_start: Refused | None = None
        payloads = [arg.payload for arg in args]
        handed_on = workflow.info().continued_run_id is not None and len(payloads) == handover.ARGUMENTS
        try:
            self._refuse_restarts(handed_on)
            if handed_on:
                handover.check_opened(payloads)
            self._registration = read_registration(payloads[:1] if handed_on else payloads)
        except Refused as error:
            self._bad_start = error
            return
        steps, received, arrivals = b"", list[Item](), list[Arrival]()
        if handed_on:
            self._state, steps, received, arrivals = handover.unpack(payloads)
        else:
            self._state = self._fresh_state()
        self._inbox = Inbox(Receiver(self._state).receive)
        self._inbox.put_received(received)
        self._inbox.put(arrivals)
        self._guards = guards = Guards(self._registration.spec.limits, self._state, self._inbox)
        limits = self._registration.spec.limits
        undelivered = handover.unpack_wakes(payloads) if handed_on else []
        self._waking = waking = Waking(self._state, undelivered, limits.drain_timeout_s)
        self._consumer = Consumer(
            self._registration, self._state, self._inbox, lambda: guards.waiting > 0, waking, steps
        )
        self._rollover = Rollover(args[0], self._state, self._inbox, self._consumer, lambda: waking.outbox.wakes)
        self._timers = Timers(self._registration.spec.limits, self._state, self._inbox, self._consumer)
        self._attributes = Attributes(self._registration, self._state)

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> SessionOutcome:
        _check_type()
        if workflow.info().cron_schedule:
            # A failed run is followed by the next one of its schedule, for ever; one that is continued by this
            # command has no schedule any more, and its failure is the end.
            workflow.continue_as_new()
        if self._bad_start is not None:
            raise ApplicationError(str(self._bad_start), type=self._bad_start.type, non_retryable=True)
        tasks = [
            asyncio.create_task(task)
            for task in (
                self._consumer.consume(),
                self._consumer.publish(),
                self._timers.idle(),
                self._timers.gaps(),
                self._attributes.follow(),
                self._waking.deliver(),
            )
        ]

        def failed() -> bool:
            return any(task.done() and task.exception() is not None for task in tasks)

        def ended() -> bool:
            return self._consumer.outcome is not None or failed()

        while not ended():
            try:
                await workflow.wait_condition(lambda: ended() or self._rollover.is_due())
                if not ended():
                    await self._rollover.hand_on(ended)
            except asyncio.CancelledError:
                self._cancel()
        for task in tasks:
            if task.done():
                task.result()  # a bug suspends the session; a mended worker resumes it
        outcome = self._consumer.outcome
        assert outcome is not None
        while not workflow.all_handlers_finished():
            # It has ended; a cancel that comes now takes nothing back.
            with contextlib.suppress(asyncio.CancelledError):
                await workflow.wait_condition(workflow.all_handlers_finished)
        self._attributes.end(outcome)
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
        self._rollover.signals += 1
        state = self._state
        if name == SIGNAL_ACK_WAKE and (through := read_sequence(args)) is not None:
            self._heard_ms()
            state.wakes.acknowledge(through)
            return
        # Another session's wake is no sign of life of who reports to this one.
        now = self._admitted_ms() if name == SIGNAL_WOKEN else self._heard_ms()
        unread = message(name, [arg.payload for arg in args], now, late=state.closing)
        if self._consumer.sealing:
            state.late_steps += unread.weight  # not read any more: there may be many, and no loop to take its time
        else:
            self._inbox.put([unread])

    # -- updates ---------------------------------------------------------------------------------------

    @_waiting_update
    async def attach(self, raw: RawValue) -> AttachResult:
        """Join the session; answers once its opening event is on disk."""
        self._rollover.updates += 1
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
            refuse(error.type, str(error))
        self._guards.live()

    @workflow.update
    async def admit(self, raw: RawValue) -> AdmitResult:
        """Whether the model may be called now. What is accepted opens an attempt that one terminal record closes."""
        self._rollover.updates += 1
        request, state, spec = read_model(raw.payload, AdmitRequest), self._state, self._registration.spec
        now = self._heard_ms()
        refusal = enforced(request, spec, state)
        if refusal is not None:
            self._report_refusal(refusal.reason)
            return AdmitResult(accepted=False, refused=refusal)
        attempt_id = request.attempt_id or str(workflow.uuid7())
        if attempt_id not in state.attempts.open:  # a repeat of a request whose answer was lost is answered again
            state.attempts.admit(attempt_id, now)
        result = accepted(attempt_id, spec, state)
        if result.message is not None:
            self._inbox.put([self._own("breaker_reset", by="affidavit", reason="corrective message injected")])
        return result

    @admit.validator
    def _check_admit(self, raw: RawValue) -> None:
        self._check_start()
        self._guards.live()
        check_model(raw, AdmitRequest)
        request, attempts = read_model(raw.payload, AdmitRequest), self._state.attempts.open
        if enforced(request, self._registration.spec, self._state) is not None:
            return
        self._guards.queue()
        open_already = attempts.get(request.attempt_id) if request.attempt_id is not None else None
        if open_already is not None and open_already.requested:
            refuse(contract.REFUSED_BAD_REQUEST, "the attempt is open and has had its request")
        if open_already is None:
            self._guards.slots(len(attempts))

    @_waiting_update
    async def submit(self, raw: RawValue) -> SubmitResult:
        """Report steps and learn where they stand in the journal (B8)."""
        self._rollover.updates += 1
        now, consumer = self._heard_ms(), self._consumer
        if len(raw.payload.data) <= contract.READ_AT_ONCE_BYTES:
            items = read_submission(raw.payload, now)
            await self._guards.journaled(items, consumer)
        else:
            unread, reply = message(contract.UPDATE_SUBMIT, [raw.payload], now), Reply()
            unread.reply = reply
            items = await self._guards.read_and_journaled(unread, reply, consumer)
        ledger = self._state.ledger
        verdicts = [item.verdict for item in items if item.verdict is not None]
        sequences = [item.sequence for item in items if not item.repeat]
        return SubmitResult(
            first_sequence=sequences[0] if sequences else None,
            last_sequence=sequences[-1] if sequences else None,
            repeated=len(items) - len(sequences),
            chain_head=ledger.head,
            event_count=ledger.count,
            breaker_open=ledger.breaker.open,
            verdict=verdicts[-1] if verdicts else None,
        )

    @submit.validator
    def _check_submit(self, raw: RawValue) -> None:
        self._check_capacity()
        try:
            check_submission(raw.payload)
        except Unreadable as error:
            refuse(contract.REFUSED_BAD_REQUEST, str(error))

    @_waiting_update
    async def flush(self) -> FlushResult:
        """Answers when everything reported before is on disk, or is known not to be."""
        self._rollover.updates += 1
        ticket = self._inbox.arrived
        await self._guards.wait(lambda: self._consumer.processed >= ticket)
        ledger = self._state.ledger
        return FlushResult(
            event_count=ledger.count, chain_head=ledger.head, published_through=self._state.published - 1
        )

    @flush.validator
    def _check_flush(self) -> None:
        self._check_start()
        self._guards.places(self._consumer)

    @workflow.update
    async def close(self) -> CloseAccepted:
        """Begin the end; repeating it changes nothing. The outcome is the workflow's result."""
        self._rollover.updates += 1
        self._admitted_ms()
        self._state.close()
        return CloseAccepted(session_id=workflow.info().workflow_id, generation=self._state.generation)

    @close.validator
    def _check_close(self) -> None:
        self._check_start()

    @_waiting_update
    async def refresh_identity(self, raw: RawValue) -> IdentityResult:
        """Renew the credential's lifetime; another identity is refused, and the refusal is an event (A3)."""
        self._rollover.updates += 1
        self._heard_ms()
        agent = read_model(raw.payload, Agent)
        if agent.triple() != self._state.ledger.agent.triple():
            reason = "session is bound to a different agent identity"
            self._report_refusal(IDENTITY)
            refusal = Refusal(type=contract.REFUSED_IDENTITY, reason=reason)
            return IdentityResult(agent=self._state.ledger.agent, refused=refusal)
        await self._guards.journaled(
            [self._own("identity_refreshed", ttl_remaining_s=agent.ttl_remaining_s)], self._consumer
        )
        return IdentityResult(agent=self._state.ledger.agent)

    @refresh_identity.validator
    def _check_refresh_identity(self, raw: RawValue) -> None:
        self._check_capacity()
        check_model(raw, Agent)

    @_waiting_update
    async def reset_breaker(self, raw: RawValue) -> FlushResult:
        """Close the breaker again; who and why is an event."""
        self._rollover.updates += 1
        request = read_model(raw.payload, BreakerReset)
        await self._guards.journaled([self._own("breaker_reset", by=request.by, reason=request.reason)], self._consumer)
        ledger = self._state.ledger
        return FlushResult(
            event_count=ledger.count, chain_head=ledger.head, published_through=self._state.published - 1
        )

    @reset_breaker.validator
    def _check_reset_breaker(self, raw: RawValue) -> None:
        self._check_capacity()
        check_model(raw, BreakerReset)

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

    @workflow.query
    def wakes_after(self, raw: RawValue) -> WakesResult:
        """Wakes that are not acknowledged, of events strictly after a sequence; -1 for all (P18)."""
        self._check_start()
        sequence = read_sequence([raw])
        return self._state.wakes.after(-1 if sequence is None else sequence)

    # -- what the handlers share -----------------------------------------------------------------------

    def _refuse_restarts(self, handed_on: bool) -> None:
        # A second run under the same generation would write over the first one's evidence.
        info = workflow.info()
        if info.retry_policy is not None or info.cron_schedule or (info.continued_run_id and not handed_on):
            raise Refused(contract.REFUSED_BAD_SPEC, "a session takes no retry policy and no cron schedule")

    def _fresh_state(self) -> SessionState:
        now = int(workflow.now().timestamp() * 1000)
        return SessionState(
            generation=workflow.info().first_execution_run_id,
            product_version=VERSION,
            trajectory_id=str(workflow.uuid7()),
            registration_sha256=self._registration.sha256,
            ledger=Ledger(agent=self._registration.spec.agent),
            wakes=Wakes(target=self._registration.spec.wake_target),
            last_admitted_ms=now,
            last_report_ms=now,
        )

    def _admitted_ms(self) -> int:
        """The workflow's time in epoch milliseconds."""
        return self._state.admit(int(workflow.now().timestamp() * 1000))

    def _heard_ms(self) -> int:
        """The same, and a sign of life of who reports."""
        self._state.last_report_ms = self._admitted_ms()
        return self._state.last_report_ms

    def _check_start(self) -> None:
        if self._bad_start is not None:
            refuse(self._bad_start.type, str(self._bad_start))

    def _check_capacity(self) -> None:
        self._check_start()
        self._guards.live()
        self._guards.queue()
        self._guards.places(self._consumer)

    def _own(self, action: str, **payload: object) -> Item:
        return Item(action, self._admitted_ms(), payload={k: v for k, v in payload.items() if v is not None})

    def _cancel(self) -> None:
        if self._state.cancelled or self._consumer.sealing:
            return
        self._state.cancelled = True
        self._inbox.put([self._own("cancel_requested")])
        self._state.close()

    def _report_refusal(self, reason: str) -> None:
        metrics.refused(contract.REFUSED_IDENTITY if reason == IDENTITY else contract.REFUSED_LOOP)
        told = self._state.refusals.add(reason, self._admitted_ms())
        if told is not None:
            self._inbox.put([self._own("refused", **told)])


def _check_type() -> None:
    # What the SDK does with a type that no worker has registered: the task fails until one has.
    if (name := workflow.info().workflow_type) != contract.SESSION_WORKFLOW:
        raise RuntimeError(f"workflow type {printable(name)} is not registered on this worker")
