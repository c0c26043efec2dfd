"""Delivers a session's wakes beside its loop: first bound to a life of the target, then sent (process.md P18).

Two activities, because what a target's id means must be settled once: after the first one's answer is in history, no
retry and no later run can take another life of that id for the one that was meant. The second may run twice, or beside
an attempt of an earlier run; the target drops what it has had.
"""

from __future__ import annotations

import json

from temporalio import workflow
from temporalio.exceptions import ActivityError

from affidavit.activity_api import JournalRequest, OpenRequest
from affidavit.waking_api import (
    DELIVERED_AT_ONCE,
    OUTBOX_BYTES,
    WAKE_LAPSE_S,
    DeliverRequest,
    LocateRequest,
    WakeToDeliver,
)
from workflows import stages
from workflows.messages import record_texts
from workflows.state import SessionState
from workflows.turns import Turns
from workflows.wakes import Outbox, Outgoing

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class Waking:
    """Owns the outbox of a session."""

    def __init__(self, state: SessionState, waiting: list[Outgoing], drain_s: int, turns: Turns) -> None:
        """`waiting` comes from an earlier run; `drain_s`: how long the end of the session waits for the rest."""
        self._state = state
        self._turns = turns
        self._drain_s = drain_s
        self.outbox = Outbox(waiting)

    def journaled(self, request: OpenRequest | JournalRequest, steps: bytes) -> None:
        """Take up the wakes of a batch that is on disk: those that came are listed, the others go out."""
        if isinstance(request, OpenRequest) or all(entry.action != "wake" for entry in request.entries):
            return
        texts = record_texts(steps)
        for entry in request.entries:
            if entry.action != "wake" or entry.step is None:
                continue
            if "source" in entry.payload:
                self._state.wakes.came(entry.sequence, json.loads(texts[entry.step]))
            else:
                self.outbox.put(entry, texts[entry.step])

    async def deliver(self) -> None:
        """Deliver for as long as the run lasts."""
        pause = FIRST_PAUSE_S
        while True:
            await self._turns.wait(lambda: bool(self.outbox.wakes))
            await self._bind()
            if await self._send():
                self._turns.speak()
                pause = FIRST_PAUSE_S
                continue
            self._give_up()
            if not self.outbox.wakes:
                self._turns.speak()
            else:
                held = list(self.outbox.wakes)
                await workflow.sleep(pause)
                for wake in held:
                    wake.waited_s += pause
                pause = min(2 * pause, LONGEST_PAUSE_S)

    async def drained(self) -> None:
        """Wait for what is still to go out when the session ends; for as long as open attempts were given."""
        if self.outbox.wakes:
            try:
                await self._turns.wait(lambda: not self.outbox.wakes, timeout_s=self._drain_s)
            except TimeoutError:
                workflow.logger.warning("%d wakes are not delivered", len(self.outbox.wakes))

    async def _bind(self) -> None:
        """Settle which life each new wake is for. One without any is done: its event is all there is of it."""
        targets = list(dict.fromkeys(wake.target for wake in self.outbox.wakes if wake.generation is None))
        if not targets:
            return
        try:
            found = await stages.locate(LocateRequest(targets=targets))
        except ActivityError as error:
            workflow.logger.error("wakes: %s", stages.reason_of(error))
            self._lose({wake.wake_id for wake in self.outbox.wakes if wake.target in targets})
            return
        for target, why in found.absent.items():
            if why == "deleted":
                self._state.wakes.clear(target)
        absent = {w.wake_id for w in self.outbox.wakes if w.generation is None and w.target in found.absent}
        self.outbox.settle(absent)
        for wake in self.outbox.wakes:
            wake.generation = wake.generation or found.generations.get(wake.target)

    async def _send(self) -> bool:
        """Send what is bound. False if there is something that did not go out."""
        wakes, size = list[WakeToDeliver](), 0
        for wake in self.outbox.wakes:
            if wake.generation is None:  # it came while the others were bound
                continue
            size += len(wake.step)
            if len(wakes) == DELIVERED_AT_ONCE or (wakes and size > OUTBOX_BYTES // 2):
                break
            wakes.append(WakeToDeliver.model_validate(wake, from_attributes=True))
        if not wakes:
            return True
        try:
            result = await stages.deliver(DeliverRequest(generation=self._state.generation, wakes=wakes))
        except ActivityError as error:
            workflow.logger.error("wakes: %s", stages.reason_of(error))
            self._lose({wake.wake_id for wake in wakes})
            return True
        settled = {*result.delivered, *result.missing}
        self.outbox.settle(settled)
        return len(settled) == len(wakes)

    def _give_up(self) -> None:
        """Let go of what its target has not taken for too long: one bad session never delays another (E4)."""
        # By the pauses and not by the clock, which a replay may see otherwise.
        self._lose({wake.wake_id for wake in self.outbox.wakes if wake.waited_s >= WAKE_LAPSE_S})

    def _lose(self, wake_ids: set[str]) -> None:
        self._state.wakes.undelivered += len(wake_ids)
        self.outbox.settle(wake_ids)
