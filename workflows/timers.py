"""The clocks of a session: idle close, abandon, open gaps. One timer each, re-armed when it fires."""

from __future__ import annotations

from temporalio import workflow

from affidavit.contract import Limits
from workflows.clock import admitted_ms
from workflows.consumer import Consumer, gap_item
from workflows.inbox import Inbox
from workflows.state import SessionState


class Timers:
    """Closes a session that nobody reports to, and tells of numbers that did not come."""

    def __init__(self, limits: Limits, state: SessionState, inbox: Inbox, consumer: Consumer) -> None:
        self._limits = limits
        self._state = state
        self._inbox = inbox
        self._consumer = consumer

    async def idle(self) -> None:
        """Close once nothing was reported for `idle_close`; an open attempt holds that off for its lapse (F6)."""
        state = self._state
        while not state.closing:
            if self._owner_is_silent():
                # Its owner was said to be gone, and by default that clock is the slower one: it is to be heard out.
                await workflow.wait_condition(lambda: state.closing or not self._owner_is_silent())
                continue
            lapse = self._limits.attempt_lapse_s * 1000
            held = max((attempt.since + lapse for attempt in state.attempts.open.values()), default=0)
            due = max(state.last_report_ms + self._limits.idle_close_s * 1000, held)
            now = admitted_ms(self._state)
            if now >= due:
                state.idle = True
                state.close()
                return
            await workflow.sleep((due - now) / 1000)

    async def abandon(self) -> None:
        """End it as abandoned once somebody has asked for that and nothing was reported for `owner_lapse` (P12)."""
        state = self._state
        await workflow.wait_condition(lambda: state.closing or state.process.abandon is not None)
        while not state.closing:
            due = state.process.abandon_due(state.last_report_ms, self._limits.owner_lapse_s * 1000)
            assert due is not None
            now = admitted_ms(self._state)
            if now >= due:
                state.process.abandoned_ms = now
                state.close()
                return
            await workflow.sleep((due - now) / 1000)

    async def gaps(self) -> None:
        """Turn a gap that stays open for `gap_grace` into an event (B7)."""
        state, grace = self._state, self._limits.gap_grace_s * 1000
        while True:
            await workflow.wait_condition(lambda: state.closing or state.producers.next_due() is not None)
            since = state.producers.next_due()
            if state.closing or since is None:
                return  # what is open at close is told by the loop
            now = admitted_ms(self._state)
            if since + grace > now:
                await workflow.sleep((since + grace - now) / 1000)
                continue
            if state.poisoned is None:
                self._inbox.put(
                    gap_item(name, gap.first, gap.last, now) for name, gap in state.producers.overdue(now - grace)
                )
            else:
                state.producers.overdue(now - grace)

    def _owner_is_silent(self) -> bool:
        return self._state.process.owner_is_silent(self._state.last_report_ms)
