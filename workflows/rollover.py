"""Handing a session on to its next run (design.md 4): never from a handler, and never waiting for bus or store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from temporalio import workflow
from temporalio.common import RawValue

from affidavit import contract
from workflows import handover
from workflows.clock import MOMENT_S
from workflows.consumer import Consumer
from workflows.inbox import Inbox
from workflows.state import SessionState
from workflows.turns import Turns
from workflows.wakes import Outgoing


class Rollover:
    """Continues as new before a limit of the server is met."""

    def __init__(
        self,
        spec: RawValue,
        state: SessionState,
        inbox: Inbox,
        consumer: Consumer,
        turns: Turns,
        wakes: Callable[[], Sequence[Outgoing]] = tuple,
    ) -> None:
        """`wakes`: what is still to be delivered."""
        self._wakes = wakes
        self._turns = turns
        self._spec = spec
        self._state = state
        self._inbox = inbox
        self._consumer = consumer

    async def hand_on(self, ended: Callable[[], bool]) -> None:
        """Continue as new: let what is under way end for a moment, look at the inbox once more, and go.

        Returns if the session ended meanwhile, or if more waits than can be handed on.
        """
        self._consumer.rolling = True
        try:
            await self._turns.wait(
                lambda: ended() or (self._stands_still() and workflow.all_handlers_finished()),
                timeout_s=contract.ROLLOVER_WAIT_S,
            )
        except TimeoutError:
            self._turns.speak()
        # A cancel is heard behind the messages of its task. One that came with the message that has spent the run would
        # be lost; with a timer it is heard.
        await workflow.sleep(MOMENT_S)
        if self._consumer.deciding:
            self._turns.speak()
        while self._consumer.deciding and not ended():
            # Embedding gives up after its attempts, so this ends without bus or store.
            await self._turns.wait(lambda: ended() or not self._consumer.deciding)
        if ended():
            return
        try:
            arguments = handover.pack(
                self._spec, self._handed_on(), self._consumer.pending_steps, self._inbox, self._wakes()
            )
        except handover.TooMuchWaits:
            # The run goes on until enough of it is worked off: to try again after each batch would hold up the next.
            self._consumer.rolling = False
            self._turns.speak()
            enough, standing = min(self._inbox.bytes, contract.HANDED_ON_BYTES // 2), self._worked_off()

            def is_less() -> bool:
                # What it takes to hand them on is more than the bytes of messages: their names, and wakes.
                return self._inbox.bytes < enough or (not self._inbox.bytes and self._worked_off() != standing)

            await self._turns.wait(lambda: ended() or is_less())
            return
        # By itself only the memo of the start goes on, without what was added since.
        memo = {name: RawValue(payload) for name, payload in workflow.info().raw_memo.items()}
        # The next run goes to the build that sessions start on now. Without worker versioning this means nothing.
        behavior = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
        workflow.continue_as_new(args=arguments, memo=memo, initial_versioning_behavior=behavior)

    def _worked_off(self) -> tuple[int, int]:
        return self._consumer.processed, len(self._wakes())

    def _stands_still(self) -> bool:
        return self._consumer.parked and self._consumer.publishing < 0

    def _handed_on(self) -> SessionState:
        in_doubt = max(self._state.in_doubt_through, self._consumer.publishing)
        return self._state.model_copy(update={"runs": self._state.runs + 1, "in_doubt_through": in_doubt})
