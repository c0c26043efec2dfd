"""The two tasks behind a session: the loop that journals, and the publisher beside it.

Both can be handed on to the next run at any moment: what was decided stands in the state before it is tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ActivityError

from affidavit.activity_api import Entry, EventRange, JournalRequest, OpenRequest
from affidavit.assessment import BUILT_IN, Assessment, EmbedResult, encode_request, make_request
from affidavit.contract import SessionOutcome
from affidavit.publishing_api import PublishRequest
from workflows import embedding, stages
from workflows.budget import RunBudget
from workflows.clock import admitted_ms, new_id, seconds_until
from workflows.custom_events import CustomEvents
from workflows.decide import Decision, assessable, decide
from workflows.ending import Ender
from workflows.inbox import Inbox, Item
from workflows.messages import record_texts
from workflows.metrics import SessionMetrics
from workflows.registration import Registration
from workflows.state import Pending, SessionState
from workflows.turns import Turns
from workflows.waking import Waking

PUBLISH_EVENTS = 256
PUBLISH_BATCHES = 4
"""How much is published together while more is being journaled: so many events, or so many batches."""


class Consumer:
    """Owns the ledger: nothing else numbers, journals or ends a session.

    `processed` counts tickets that are journaled or given up, -1 until it is known whether the session opens;
    `sealing` is set once the chain is complete; `working` names the stages under way and since when (epoch
    milliseconds), for the view; `publishing` is the last event of a publish in flight, -1 if there is none;
    `unpublishable`: the bus has refused an event for good.

    While `rolling`, no batch is begun that nobody waits for, and the loop is `parked` once it stands still. While
    `deciding`, a batch stands neither in the inbox nor in the state: the run cannot be handed on.
    """

    def __init__(
        self,
        registration: Registration,
        state: SessionState,
        inbox: Inbox,
        awaited: Callable[[], bool],
        waking: Waking,
        budget: RunBudget,
        turns: Turns,
        pending_steps: bytes = b"",
    ) -> None:
        """`awaited`: whether an update waits for something to be processed. `pending_steps`: of `state.pending`."""
        self._waking = waking
        self._budget = budget
        self._turns = turns
        self._registration = registration
        self._spec = registration.spec
        self._state = state
        self._inbox = inbox
        self._awaited = awaited
        self.pending_steps = pending_steps
        self._metrics = SessionMetrics(self._spec.mode, self._spec.breaker.action, state.repeated)
        self.custom_events = CustomEvents(self._spec.event_types)
        self._ender = Ender(registration, state, self._stage, self._publish_range)
        self.processed = 0 if state.opened else -1
        self.sealing = state.ending is not None
        self.outcome: SessionOutcome | None = None
        self.working: dict[str, int] = {}
        self.publishing = -1
        self.unpublishable = False
        self.rolling = False
        self.parked = False
        self.deciding = False
        self.gaps_are_due = False
        self._unpublished_batches = 0
        self._has_heard = False
        self._drain_timer: asyncio.Task[None] | None = None

    async def consume(self) -> SessionOutcome:
        """Open, take batches until the session closes, seal. Returns how it ended."""
        state = self._state
        if state.pending is None and not state.opened:
            self._prepare_opening()
        if state.pending is not None and not await self._write_pending():
            self._turns.speak()
        if not state.opened:
            self.sealing = True
            self._give_up_all()
            self.outcome = self._ender.unopened()
            self._metrics.ended(self.outcome)
            self.processed = self._inbox.arrived
            return self.outcome
        self.processed = self._inbox.first_ticket
        while not self.sealing:
            await self._until_ready()
            self._tell_gaps()
            if state.poisoned is not None:
                self._give_up_all()
            elif batch := self._cut():
                await self._process(batch)
            self.processed = self._inbox.first_ticket
            if state.closing and self._inbox.empty and await self._drained():
                self.sealing = True
        state.process.waiting = None  # whatever it was, nobody comes back for it (P14)
        outcome = await self._ender.end()
        await self._waking.drained()
        self.outcome = outcome
        self._metrics.ended(outcome)
        self.processed = self._inbox.arrived
        return self.outcome

    async def publish(self) -> None:
        """Publish journaled events in order and by reference, beside the loop, until the chain is out."""
        state = self._state
        while True:
            await self._turns.wait(self._publish_is_due)
            if state.published >= state.ledger.count:
                return
            self._unpublished_batches = 0
            try:
                last = await self._publish_range(state.published, state.ledger.count - 1)
            except ActivityError as error:
                state.poison(f"publishing: {stages.reason_of(error)}")
                state.in_doubt_through = max(state.in_doubt_through, self.publishing)
                self.publishing = -1
                self.unpublishable = True
                self._turns.speak()
                return
            state.published = last + 1

    def _publish_is_due(self) -> bool:
        """Whether there is something to publish, or nothing any more.

        While one batch is journaled after the other, several go together: a publish of each would cost about as much
        as the batch itself, in the worker and in history. What a batch waits for before it is journaled holds up no
        publish.
        """
        if self.rolling:
            return False
        waiting = self._state.ledger.count - self._state.published
        if not waiting or self._state.pending is None:
            return self.sealing or waiting > 0
        # By counts and not by time: where tasks without commands follow each other, a replay sees the later one's time.
        return waiting >= PUBLISH_EVENTS or self._unpublished_batches >= PUBLISH_BATCHES

    # -- opening ---------------------------------------------------------------------------------------

    def _prepare_opening(self) -> None:
        registration, state = self._registration, self._state
        payload = {
            "mode": self._spec.mode,
            "content": self._spec.content,
            "generation": state.generation,
            "registration_sha256": registration.sha256,
        }
        decision = self._decide([Item("opened", admitted_ms(self._state), payload=payload)], {})
        request = OpenRequest(
            generation=state.generation,
            reopen=self._spec.reopen,
            mode=self._spec.mode,
            content=self._spec.content,
            agent=self._spec.agent,
            product_version=state.product_version,
            trajectory_id=state.trajectory_id,
            registration=registration.form,
            registration_sha256=registration.sha256,
            entry=decision.entries[0],
        )
        state.pending = Pending(request=request, ledger=decision.ledger)

    # -- batches ---------------------------------------------------------------------------------------

    async def _until_ready(self) -> None:
        """Wait for something to do; while the run is handed on, only for what an update waits for."""

        def ready() -> bool:
            if self.rolling and not self._awaited():
                return False
            waits = not self._inbox.empty or self.gaps_are_due
            return (waits and self._waking.outbox.has_room) or self._state.closing

        # For its turn also where it could go on: which batch takes what an update brings must not hang on whether the
        # update or the end of the last batch was heard of first.
        if self._has_heard and (not ready() or self._inbox.empty):
            self._has_heard = False
            if self.publishing >= 0 or self.rolling or self.unpublishable:
                self._turns.speak()  # else a publish follows the batch
        self.parked = True
        await self._turns.wait(ready)
        self.parked = False

    def _tell_gaps(self) -> None:
        """Put in what the timer has found due. Not the timer itself: it may fire before an update and be heard of after
        it, and what both bring must come in one order."""
        if not self.gaps_are_due:
            return
        self.gaps_are_due, now = False, admitted_ms(self._state)
        overdue = self._state.producers.overdue()
        if self._state.poisoned is None:
            self._inbox.put(gap_item(name, gap.first, gap.last, now) for name, gap in overdue)

    def _cut(self) -> list[Item]:
        depth = self._inbox.depth
        batch = self._inbox.cut()
        self._metrics.cut(depth, self._state.repeated)
        return batch

    async def _process(self, batch: list[Item]) -> None:
        self.deciding = True
        batch = await self.custom_events.sifted(batch)
        assessments = await self._assess(batch)
        decision = self._decide(batch, assessments)
        self.deciding = False
        if decision.fault is not None:
            # Before the write is awaited: a run that is handed on meanwhile must not forget it.
            self._state.poison(decision.fault)
            self._give_up(decision.left)
        if decision.entries:
            request = JournalRequest(
                generation=self._state.generation,
                store_id=self._state.store_id,
                content=self._spec.content,
                product_version=self._state.product_version,
                agent=self._spec.agent,
                head=self._state.ledger.head,
                entries=decision.entries,
            )
            self._state.pending = Pending(request=request, ledger=decision.ledger)
            # In the client's own form: a big step that came alone is then one payload of the store, not two (B9).
            self.pending_steps = ('{"steps":[' + ",".join(decision.steps) + "]}").encode("utf-8")
            if not await self._write_pending():
                for item in batch:
                    item.sequence = -1
                self._turns.speak()
        else:
            self._turns.speak()  # it may have been looked at in an activity

    async def _write_pending(self) -> bool:
        """Journal the batch that was decided. True if it became the ledger; else the session is poisoned."""
        state, pending = self._state, self._state.pending
        assert pending is not None
        opening = isinstance(pending.request, OpenRequest)
        with self._stage("open" if opening else "journal"):
            try:
                if isinstance(pending.request, OpenRequest):
                    opened = await stages.open_session(pending.request)
                    state.store_id, state.attributes, head = opened.store_id, opened.attributes, opened.head
                    state.embedding = opened.embedding
                else:
                    head = (await stages.journal(pending.request, self.pending_steps)).head
            except ActivityError as error:
                state.poison(f"{'opening' if opening else 'journaling'}: {stages.reason_of(error)}")
                self._give_up_pending(pending)
                return False
        self._waking.journaled(pending.request, self.pending_steps)
        state.pending, self.pending_steps = None, b""
        state.ledger = pending.ledger
        state.ledger.head = head
        self._unpublished_batches += 1
        self._has_heard = True
        state.process.log.append(_entries(pending.request))
        state.opened = True
        if isinstance(pending.request, OpenRequest):
            self._metrics.opened()
        else:
            self._metrics.journaled(pending.request.entries)
        if state.ledger.aborted:
            state.close()
        return True

    async def _assess(self, batch: list[Item]) -> dict[int, Assessment]:
        places = [place for place, item in enumerate(batch) if assessable(item)]
        if not places:
            return {}
        items = [batch[place] for place in places]
        window, responses = self._state.ledger.breaker.vectors, [item.value for item in items]
        result: EmbedResult | None
        if self._state.embedding == BUILT_IN and embedding.at_once(items):
            result = embedding.assess(make_request(window, responses, BUILT_IN))  # no stage: no workflow time passes
        else:
            request = encode_request(window, responses, self._state.embedding)
            with self._stage("embed"):
                count = self._state.ledger.count
                events = EventRange(generation=self._state.generation, first=count, last=count + len(batch) - 1)
                result = await stages.embed(request, events)
        if result is None:
            return {}
        return dict(zip(places, result.assessments, strict=True))

    def _decide(self, items: list[Item], assessments: dict[int, Assessment]) -> Decision:
        state = self._state
        return decide(state.ledger, self._spec, items, assessments, state.attempts, new_id)

    # -- giving up -------------------------------------------------------------------------------------

    def _give_up(self, items: Sequence[Item]) -> None:
        for item in items:
            item.sequence = -1
            self._state.give_up(int(item.step is not None), item.text.encode("utf-8"))

    def _give_up_pending(self, pending: Pending) -> None:
        # By its texts: the items may have gone with an earlier run.
        if isinstance(pending.request, JournalRequest):
            texts = record_texts(self.pending_steps)
            for entry in pending.request.entries:
                text = "" if entry.step is None else texts[entry.step]
                self._state.give_up(int(entry.step is not None), text.encode("utf-8"))
        self._state.pending, self.pending_steps = None, b""

    def _give_up_all(self) -> None:
        """Count what waits without reading it: there may be much of it, and no time."""
        for steps, data, item in self._inbox.discard():
            if item is not None:
                item.sequence = -1
            self._state.give_up(steps, data)

    # -- draining --------------------------------------------------------------------------------------

    async def _drained(self) -> bool:
        """Whether the chain is complete: nothing waits, no attempt is open, gaps are told, everything is out.

        False if something came or is to be done first; then the loop goes round once more.
        """
        state = self._state
        if state.poisoned is not None:
            # What is journaled goes out before the last word on it, unless the bus has refused it for good.
            await self._turns.wait(
                lambda: not self._inbox.empty or self.unpublishable or state.published == state.ledger.count
            )
            return self._inbox.empty
        if state.attempts.open and state.process.abandoned_ms is None:
            await self._wait_for_attempts()
            return False
        if last_words := self._last_words():
            self._inbox.put(last_words)
            return False
        await self._turns.wait(
            lambda: not self._inbox.empty or state.poisoned is not None or state.published == state.ledger.count
        )
        return self._inbox.empty

    async def _wait_for_attempts(self) -> None:
        """Let open attempts end within the drain timeout; one that does not makes the capture incomplete (C4)."""
        state = self._state
        if self._drain_timer is None:
            deadline = state.closing_since_ms + self._spec.limits.drain_timeout_s * 1000
            self._drain_timer = asyncio.create_task(workflow.sleep(seconds_until(deadline)))
        over = self._drain_timer.done
        await self._turns.wait(lambda: not self._inbox.empty or state.poisoned is not None or over())
        if over():
            self._turns.speak()
        if over() and state.poisoned is None and self._inbox.empty:
            state.poison(f"{len(state.attempts.open)} attempts were open when the drain timeout ended")

    def _last_words(self) -> list[Item]:
        """What is only known at the end: gaps that stayed open, and refusals that were not told yet."""
        state, now = self._state, admitted_ms(self._state)
        items = [gap_item(name, gap.first, gap.last, now) for name, gap in state.producers.unreported()]
        return items + [Item("refused", now, payload=payload) for payload in state.refusals.rest()]

    # -- small things ----------------------------------------------------------------------------------

    async def _publish_range(self, first: int, last: int, *, lifecycle: bool = False) -> int:
        request = PublishRequest(
            session_id=workflow.info().workflow_id,
            generation=self._state.generation,
            first=first,
            last=last,
            lifecycle=lifecycle,
            look_up_through=self._state.in_doubt_through,
            store_id=self._state.store_id,
        )
        self.publishing = last
        with self._stage("publish"):
            result = await stages.publish(request)
        self.publishing = -1
        return result.last

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = self.working[name] = admitted_ms(self._state)
        self._budget.look()
        try:
            yield
        finally:
            # The publisher may be stuck in a stage that the end of a quarantined session goes through as well.
            self.working.pop(name, None)
        self._metrics.stage(name, admitted_ms(self._state) - began)


def _entries(request: OpenRequest | JournalRequest) -> list[Entry]:
    return [request.entry] if isinstance(request, OpenRequest) else request.entries


def gap_item(producer: str, first: int, last: int, now_ms: int) -> Item:
    """The item of an open gap (formats.md 3.2, ``producer_gap``)."""
    payload = {"producer": producer, "first_missing": first, "last_missing": last}
    return Item("producer_gap", now_ms, payload=payload)
