"""Who goes on when several things that wait could: one after the other, in a fixed order.

The SDK wakes what waits in the order in which it began to wait. A replay may begin in another one: a new worker is told
of an update before the activity results of a task that gave no command, and a replay after them. So all that waits in
a session waits here. Who goes on depends on what the session knows and on nothing else, and one at a time: the next is
chosen by what the one before has left.

Nor may it count which of two things came first, where a new worker is told of them together. So what is heard from
elsewhere (an activity's answer, a timer, a cancel) is followed by a command, in the same task: a task that gave one is
not played together with the next. `Turns.speak` gives one where nothing else would. A publish that went well may be
silent: nobody decides by it but the publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from temporalio import workflow

_ASIDE_S: Final = 86_400


class Turn(IntEnum):
    """The order of those that could go on; updates among themselves as they came.

    What a silent activity result may hold up stands behind what it may not: then it changes nothing whether a session
    hears of the result before an update or after it.
    """

    ATTRIBUTES = 0
    GAPS = 1
    ABANDON = 2
    IDLE = 3
    UPDATE = 4
    LOOP = 5
    PUBLISH = 6
    WAKES = 7
    RUN = 8


_own_turn: ContextVar[tuple[Turn, int]] = ContextVar("_own_turn", default=(Turn.RUN, 0))


def take_turn(turn: Turn, number: int = 0) -> None:
    """Say whose turn it is when the current task, or one that it starts, may go on."""
    _own_turn.set((turn, number))


async def taking(turn: Turn, task: Coroutine[Any, Any, object]) -> None:
    """Do something whose turn this is whenever it waits."""
    take_turn(turn)
    await task


@dataclass(slots=True, eq=False)
class _Waiter:
    ready: Callable[[], bool]
    turn: tuple[Turn, int] = field(default_factory=_own_turn.get)
    woken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def may_go_on(self) -> bool:
        if self.woken.done():
            return False
        try:
            return self.ready()
        except Exception as error:  # noqa: BLE001 - a bug ends the task that waits, and with it the workflow task
            self.woken.set_exception(error)
            return False


class Turns:
    """What waits in one run of a session."""

    def __init__(self) -> None:
        self._waiting: list[_Waiter] = []
        self._aside: asyncio.Task[None] | None = None

    def speak(self) -> None:
        """Give a command that changes nothing: begin a timer of a day, and end the one before."""
        before, self._aside = self._aside, asyncio.create_task(workflow.sleep(_ASIDE_S, summary="keeps tasks apart"))
        if before is not None:
            before.cancel()  # behind the new one: two in one task must not come to nothing

    async def sleep(self, seconds: float) -> None:
        """Let a timer run, and follow it by a command when it fires."""
        await workflow.sleep(seconds)
        self.speak()

    async def wait(self, ready: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """Wait until something holds and it is this task's turn.

        Raises:
            TimeoutError: it did not within so many seconds.
        """
        waiter = _Waiter(ready)
        self._waiting.append(waiter)
        try:
            await asyncio.wait_for(waiter.woken, timeout_s)
        finally:
            self._waiting.remove(waiter)

    async def after_cancel(self) -> None:
        """Go on after a cancel; where it was an eviction, the SDK ends the task here."""
        await workflow.wait_condition(lambda: True)

    async def serve(self) -> None:
        """Wake one after the other, for as long as the run lasts."""
        while True:
            await workflow.wait_condition(lambda: any(waiter.may_go_on() for waiter in self._waiting))
            # Whoever is woken runs, and all that follows from it, before the next is looked for.
            able = [waiter for waiter in self._waiting if waiter.may_go_on()]
            if able:
                min(able, key=lambda waiter: waiter.turn).woken.set_result(None)
