"""The clocks of a session: idle close, abandon, open gaps. One timer each, re-armed when it fires.

What a timer was armed for is due when it fires and nothing has come since. Times only say how long it runs: a replay
may see others (`workflows.clock`), and must come to the same end.
"""

from __future__ import annotations

from affidavit.contract import Limits
from workflows.clock import admitted_ms, seconds_until
from workflows.consumer import Consumer
from workflows.state import SessionState
from workflows.turns import Turns


class Timers:
    """Closes a session that nobody reports to, and tells of numbers that did not come."""

    def __init__(self, limits: Limits, state: SessionState, consumer: Consumer, turns: Turns) -> None:
        self._limits = limits
        self._state = state
        self._consumer = consumer
        self._turns = turns

    async def idle(self) -> None:
        """Close once nothing was reported for `idle_close`; an open attempt holds that off for its lapse (F6)."""
        state = self._state
        while not state.closing:
            if self._owner_is_silent():
                # Its owner was said to be gone, and by default that clock is the slower one: it is to be heard out.
                await self._turns.wait(lambda: state.closing or not self._owner_is_silent())
                continue
            lapse = self._limits.attempt_lapse_s * 1000
            held = max((attempt.since + lapse for attempt in state.attempts.open.values()), default=0)
            armed = self._life()
            await self._turns.sleep(seconds_until(max(state.last_report_ms + self._limits.idle_close_s * 1000, held)))
            if not state.closing and armed == self._life():
                admitted_ms(state)
                state.idle = True
                state.close()

    async def abandon(self) -> None:
        """End it as abandoned once somebody has asked for that and nothing was reported for `owner_lapse` (P12)."""
        state = self._state
        await self._turns.wait(lambda: state.closing or state.process.abandon is not None)
        while not state.closing:
            due = state.process.abandon_due(state.last_report_ms, self._limits.owner_lapse_s * 1000)
            assert due is not None
            armed = state.reports
            await self._turns.sleep(seconds_until(due))
            if not state.closing and armed == state.reports:
                state.process.abandoned_ms = admitted_ms(state)
                state.close()

    async def gaps(self) -> None:
        """Turn a gap that stays open for `gap_grace` into an event (B7)."""
        state, grace = self._state, self._limits.gap_grace_s * 1000
        while True:
            await self._turns.wait(lambda: state.closing or state.producers.has_open_gaps())
            if state.closing:
                return  # what is open at close is told by the loop
            # All that are open now wait for the last of them: no time tells them apart in the same way for ever.
            await self._turns.sleep(seconds_until(state.producers.watch_gaps() + grace))
            if state.closing:
                return
            self._consumer.gaps_are_due = True
            await self._turns.wait(lambda: state.closing or not self._consumer.gaps_are_due)

    def _owner_is_silent(self) -> bool:
        return self._state.process.owner_is_silent(self._state.reports)

    def _life(self) -> tuple[int, bool, int]:
        """What holds off the idle close: that somebody was heard of, is said to be gone, or has an attempt open."""
        return self._state.reports, self._owner_is_silent(), self._state.attempts.changes
