"""The life of one agent session (design.md 2).

Message handlers only read, stamp and enqueue. One loop assigns numbers, so order, sequence and chain follow
arrival; a second task publishes beside it. `run` awaits neither of them directly: a cancel reaches `run` alone,
which records it and lets the loop end the session in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit import process_api as api
    from affidavit.contract import FlushResult, SessionOutcome
    from affidavit.waking_api import SIGNAL_ACK_WAKE, SIGNAL_WOKEN, WakesResult
    from workflows import handover, metrics, presenting
    from workflows.admission import ANOTHER_IDENTITY, IDENTITY, accepted, enforced
    from workflows.attributes import Attributes
    from workflows.budget import RunBudget
    from workflows.clock import MOMENT_S, admitted_ms, new_id
    from workflows.consumer import Consumer
    from workflows.guards import Guards, check_model, refuse
    from workflows.inbox import Arrival, Inbox, Item, Reply
    from workflows.messages import Unreadable, check_submission, message, read_model, read_sequence, read_submission
    from workflows.receiving import Receiver
    from workflows.registration import Refused, check_same, read_registration
    from workflows.rollover import Rollover
    from workflows.starting import check_type, fresh_state, refuse_restarts
    from workflows.timers import Timers
    from workflows.turns import Turn, Turns, taking
    from workflows.updates import quick_update, waiting_update
    from workflows.waking import Waking


_FAILURES: Final = {"quarantined": contract.FAILED_QUARANTINED, "abandoned": contract.FAILED_ABANDONED}

M = TypeVar("M", bound=BaseModel)


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
            refuse_restarts(handed_on)
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
            self._state = fresh_state(self._registration)
        self._process = self._state.process
        self._inbox = Inbox(Receiver(self._state).receive)
        self._inbox.put_received(received)
        self._inbox.put(arrivals)
        self._turns = turns = Turns()
        self._guards = guards = Guards(self._registration.spec.limits, self._state, self._inbox, turns)
        limits = self._registration.spec.limits
        undelivered = handover.unpack_wakes(payloads) if handed_on else []
        self.budget = RunBudget()
        self._waking = waking = Waking(self._state, undelivered, limits.drain_timeout_s, turns)
        self._consumer = Consumer(
            self._registration, self._state, self._inbox, lambda: guards.waiting > 0, waking, self.budget, turns, steps
        )
        self._rollover = Rollover(args[0], self._state, self._inbox, self._consumer, turns, lambda: waking.outbox.wakes)
        self._timers = Timers(limits, self._state, self._consumer, turns)
        self._attributes = Attributes(self._registration, self._state, turns)

    @workflow.run
    async def run(self, _args: Sequence[RawValue]) -> SessionOutcome:
        check_type()
        if workflow.info().cron_schedule:
            # A failed run is followed by the next one of its schedule, for ever; one that is continued by this
            # command has no schedule any more, and its failure is the end.
            workflow.continue_as_new()
        if self._bad_start is not None:
            raise ApplicationError(str(self._bad_start), type=self._bad_start.type, non_retryable=True)
        tasks = [
            asyncio.create_task(taking(turn, task))
            for turn, task in (
                (Turn.LOOP, self._consumer.consume()),
                (Turn.PUBLISH, self._consumer.publish()),
                (Turn.IDLE, self._timers.idle()),
                (Turn.ABANDON, self._timers.abandon()),
                (Turn.GAPS, self._timers.gaps()),
                (Turn.ATTRIBUTES, self._attributes.follow()),
                (Turn.WAKES, self._waking.deliver()),
                (Turn.RUN, self._turns.serve()),
            )
        ]

        def failed() -> bool:
            return any(task.done() and task.exception() is not None for task in tasks)

        def ended() -> bool:
            return self._consumer.outcome is not None or failed()

        while not ended():
            try:
                await self._turns.wait(lambda: ended() or self.budget.is_spent() or self.budget.is_to_look())
                if ended():
                    break
                if self.budget.is_spent():
                    await self._rollover.hand_on(ended)
                else:
                    await self._turns.sleep(MOMENT_S)
                    self.budget.look()
            except asyncio.CancelledError:
                await self._turns.after_cancel()
                self._cancel()
                self._turns.speak()
        for task in tasks:
            if task.done():
                task.result()  # a bug suspends the session; a mended worker resumes it
        outcome = self._consumer.outcome
        assert outcome is not None
        while not workflow.all_handlers_finished():
            try:
                await self._turns.wait(workflow.all_handlers_finished)
            except asyncio.CancelledError:
                await self._turns.after_cancel()  # it has ended; a cancel that comes now takes nothing back
        self._attributes.end(outcome)
        if outcome.status in _FAILURES:
            type_ = _FAILURES[outcome.status] if self._state.opened else contract.FAILED_OPEN
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
        self.budget.take_signal()
        state = self._state
        if name == SIGNAL_ACK_WAKE and (through := read_sequence(args)) is not None:
            self._heard_ms()
            state.wakes.acknowledge(through)
            return
        # Another session's wake is no sign of life of who reports to this one.
        now = admitted_ms(self._state) if name == SIGNAL_WOKEN else self._heard_ms()
        unread = message(name, [arg.payload for arg in args], now, late=state.closing)
        if self._consumer.sealing:
            state.late_steps += unread.weight  # not read any more: there may be many, and no loop to take its time
        else:
            self._inbox.put([unread])

    # -- updates ---------------------------------------------------------------------------------------

    @waiting_update
    async def attach(self, raw: RawValue) -> contract.AttachResult:
        """Join the session; answers once its opening event is on disk."""
        await self._turns.wait(lambda: self._state.opened or self._consumer.outcome is not None)
        if not self._state.opened:
            raise ApplicationError(str(self._state.poisoned), type=contract.FAILED_OPEN)
        return contract.AttachResult(
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

    @quick_update
    async def admit(self, raw: RawValue) -> contract.AdmitResult:
        """Whether the model may be called now. What is accepted opens an attempt that one terminal record closes."""
        request, state, spec = read_model(raw.payload, contract.AdmitRequest), self._state, self._registration.spec
        now = self._heard_ms()
        refusal = enforced(request, spec, state)
        if refusal is not None:
            self._report_refusal(refusal.reason)
            return contract.AdmitResult(accepted=False, refused=refusal)
        attempt_id = request.attempt_id or new_id()
        if attempt_id not in state.attempts.open:  # a repeat of a request whose answer was lost is answered again
            state.attempts.admit(attempt_id, now)
        result = accepted(attempt_id, spec, state)
        if result.message is not None:
            self._tell("breaker_reset", {"by": "affidavit", "reason": "corrective message injected"})
        return result

    @admit.validator
    def _check_admit(self, raw: RawValue) -> None:
        self._check_start()
        self._guards.live()
        request, attempts = check_model(raw, contract.AdmitRequest), self._state.attempts.open
        if enforced(request, self._registration.spec, self._state) is not None:
            return
        self._guards.queue()
        open_already = attempts.get(request.attempt_id) if request.attempt_id is not None else None
        if open_already is not None and open_already.requested:
            refuse(contract.REFUSED_BAD_REQUEST, "the attempt is open and has had its request")
        if open_already is None:
            self._guards.slots(len(attempts))

    @waiting_update
    async def submit(self, raw: RawValue) -> contract.SubmitResult:
        """Report steps and learn where they stand in the journal (B8)."""
        now, consumer = self._heard_ms(), self._consumer
        if len(raw.payload.data) <= contract.READ_AT_ONCE_BYTES:
            async with self._guards.in_line(consumer, raw.payload):
                items = read_submission(raw.payload, now)
                self._inbox.put(items)
            await self._guards.journaled(items, consumer)
        else:
            unread, reply = message(contract.UPDATE_SUBMIT, [raw.payload], now), Reply()
            unread.reply = reply
            async with self._guards.in_line(consumer, raw.payload):
                self._inbox.put([unread])
            items = await self._guards.read_and_journaled(unread, reply, consumer)
        return presenting.submitted(items, self._state.ledger)

    @submit.validator
    def _check_submit(self, raw: RawValue) -> None:
        self._check_capacity()
        try:
            self._consumer.custom_events.check_declared(check_submission(raw.payload))
        except Unreadable as error:
            refuse(contract.REFUSED_BAD_REQUEST, str(error))

    @waiting_update
    async def flush(self) -> FlushResult:
        """Answers when everything reported before is on disk, or is known not to be."""
        ticket = self._inbox.arrived
        await self._guards.wait(lambda: self._consumer.processed >= ticket)
        return presenting.durable(self._state)

    @flush.validator
    def _check_flush(self) -> None:
        self._check_start()
        self._guards.places(self._consumer)

    @quick_update
    async def close(self) -> contract.CloseAccepted:
        """Begin the end; repeating it changes nothing. The outcome is the workflow's result."""
        admitted_ms(self._state)
        self._state.close()
        return contract.CloseAccepted(session_id=workflow.info().workflow_id, generation=self._state.generation)

    @close.validator
    def _check_close(self) -> None:
        self._check_start()

    @waiting_update
    async def refresh_identity(self, raw: RawValue) -> contract.IdentityResult:
        """Renew the credential's lifetime; another identity is refused, and the refusal is an event (A3)."""
        self._heard_ms()
        agent = read_model(raw.payload, contract.Agent)
        if agent.triple() != self._state.ledger.agent.triple():
            self._report_refusal(IDENTITY)
            return contract.IdentityResult(agent=self._state.ledger.agent, refused=ANOTHER_IDENTITY)
        await self._told("identity_refreshed", {"ttl_remaining_s": agent.ttl_remaining_s})
        return contract.IdentityResult(agent=self._state.ledger.agent)

    @refresh_identity.validator
    def _check_refresh_identity(self, raw: RawValue) -> None:
        self._check_capacity()
        check_model(raw, contract.Agent)

    @waiting_update
    async def reset_breaker(self, raw: RawValue) -> FlushResult:
        """Close the breaker again; who and why is an event."""
        request = read_model(raw.payload, contract.BreakerReset)
        return await self._told("breaker_reset", {"by": request.by, "reason": request.reason})

    @reset_breaker.validator
    def _check_reset_breaker(self, raw: RawValue) -> None:
        self._check_capacity()
        check_model(raw, contract.BreakerReset)

    @waiting_update
    async def set_wait(self, raw: RawValue) -> FlushResult:
        """Say what the session waits for; an event, and answered once that is on disk (P14)."""
        request = read_model(raw.payload, api.WaitRequest)
        self._guards.live()
        return await self._told("waiting", self._process.set_wait(request, self._heard_ms()))

    @set_wait.validator
    def _check_set_wait(self, raw: RawValue) -> None:
        self._check_capacity()
        check_model(raw, api.WaitRequest)

    @waiting_update
    async def clear_wait(self) -> FlushResult:
        """Say that it goes on."""
        self._heard_ms()
        return await self._told("resumed", self._process.clear_wait())

    @clear_wait.validator
    def _check_clear_wait(self) -> None:
        self._check_capacity()

    @quick_update
    async def set_external_ref(self, raw: RawValue) -> api.ExternalRefResult:
        """Note once what the session is called elsewhere (P13)."""
        external_ref = read_model(raw.payload, api.ExternalRefRequest).external_ref
        self._process.external_ref = external_ref
        return api.ExternalRefResult(external_ref=external_ref)

    @set_external_ref.validator
    def _check_set_external_ref(self, raw: RawValue) -> None:
        self._check_start()
        self._guards.live()
        try:
            self._process.check_external_ref(check_model(raw, api.ExternalRefRequest).external_ref)
        except Refused as error:
            refuse(error.type, str(error))

    @quick_update
    async def request_cancel(self, raw: RawValue) -> api.CancelRequested:
        """Ask it to end as cancelled; answers with the first request, which stands (P11)."""
        self._cancel(read_model(raw.payload, api.CancelRequest).reason)
        return self._process.cancel or self._guards.ended()

    @request_cancel.validator
    def _check_request_cancel(self, raw: RawValue) -> None:
        self._check_start()
        check_model(raw, api.CancelRequest)
        if self._process.cancel is None and self._consumer.sealing:
            self._guards.ended()

    @quick_update
    async def request_abandon(self, raw: RawValue) -> api.AbandonRequested:
        """Say that its owner is gone; answers with the first request, which stands (P12)."""
        request = read_model(raw.payload, api.AbandonRequest)
        self._guards.unclosed()
        self._tell(
            "abandon_requested", self._process.request_abandon(request, admitted_ms(self._state), self._state.reports)
        )
        return self._process.abandon or self._guards.ended()

    @request_abandon.validator
    def _check_request_abandon(self, raw: RawValue) -> None:
        self._check_start()
        check_model(raw, api.AbandonRequest)
        self._guards.unclosed()

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query
    def view(self) -> contract.SessionView:
        """Everything an operator asks."""
        self._check_start()
        return presenting.view(self._registration, self._state, self._inbox, self._consumer)

    def page(self) -> str:
        """What the Web UI shows of it now, as Markdown; its worker asks when somebody looks (`workers.pages`)."""
        if self._bad_start is not None:
            return ""
        return presenting.page(self._registration, self._state, self._consumer.outcome)

    @workflow.query
    def terminal_state(self) -> contract.TerminalState:
        """The outcome, or nothing while the session lives."""
        self._check_start()
        return contract.TerminalState(outcome=self._consumer.outcome)

    @workflow.query
    def events_after(self, raw: RawValue) -> api.EventPage:
        """Events after a cursor, of those that the session remembers (P6, P7)."""
        return presenting.events_after(self._asked(raw, api.EventsAfter), self._state, self._consumer)

    @workflow.query
    def recent_events(self, raw: RawValue) -> api.EventPage:
        """The last events."""
        return presenting.recent_events(self._asked(raw, api.RecentEvents), self._state, self._consumer)

    @workflow.query
    def count_events(self, raw: RawValue) -> api.EventCount:
        """How many events of an action there are, up to a sequence."""
        return self._process.log.count(self._asked(raw, api.EventCountRequest), self._state.generation)

    @workflow.query
    def wakes_after(self, raw: RawValue) -> WakesResult:
        """Wakes that are not acknowledged, of events strictly after a sequence; -1 for all (P18)."""
        self._check_start()
        sequence = read_sequence([raw])
        return self._state.wakes.after(-1 if sequence is None else sequence)

    # -- what the handlers share -----------------------------------------------------------------------

    def _heard_ms(self) -> int:
        """The time to give out, and a sign of life of who reports."""
        return self._state.hear(admitted_ms(self._state))

    def _check_start(self) -> None:
        if self._bad_start is not None:
            refuse(self._bad_start.type, str(self._bad_start))

    def _check_capacity(self) -> None:
        self._check_start()
        self._guards.live()
        self._guards.queue()
        self._guards.places(self._consumer)

    def _own(self, action: str, **payload: object) -> Item:
        return Item(action, admitted_ms(self._state), payload={k: v for k, v in payload.items() if v is not None})

    def _asked(self, raw: RawValue, model: type[M]) -> M:
        self._check_start()
        return check_model(raw, model)

    def _cancel(self, reason: str | None = None) -> None:
        if self._process.cancel is not None or self._consumer.sealing:
            return
        self._state.cancelled = True
        self._tell("cancel_requested", self._process.request_cancel(reason, admitted_ms(self._state)))
        self._state.close()

    def _tell(self, action: str, payload: dict[str, Any] | None) -> None:
        """Enqueue an event of our own, if there is anything to tell and anybody left to write it down."""
        if payload is not None and self._state.poisoned is None:
            self._inbox.put([self._own(action, **payload)])

    async def _told(self, action: str, payload: dict[str, Any] | None) -> FlushResult:
        """The same, and wait until it is on disk."""
        if payload is not None:
            items = [self._own(action, **payload)]
            self._inbox.put(items)
            await self._guards.journaled(items, self._consumer)
        return presenting.durable(self._state)

    def _report_refusal(self, reason: str) -> None:
        metrics.refused(contract.REFUSED_IDENTITY if reason == IDENTITY else contract.REFUSED_LOOP)
        self._tell("refused", self._state.refusals.add(reason, admitted_ms(self._state)))
