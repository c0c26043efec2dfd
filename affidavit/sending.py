"""A handle's steps on their way: batched, numbered, one message in flight, kept until the server has them.

Knows nothing of Temporal: it is given a function that delivers one message or raises.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from affidavit.contract import (
    BATCH_BYTES,
    BATCH_STEPS,
    REFUSED_BUSY,
    REFUSED_CLOSING,
    REFUSED_EVENT,
    REFUSED_QUEUE_FULL,
    REFUSED_ROLLING_OVER,
)
from affidavit.errors import AffidavitUnavailable, SessionNotFound, SessionRefused
from affidavit.outgoing import ENVELOPE_BYTES, PRODUCER_CHARS, Encoded, record

T = TypeVar("T")

LINGER_S: Final = 0.05
"""How long a step waits for others to go with it."""
BACKLOG_STEPS: Final = 4 * BATCH_STEPS
BACKLOG_BYTES: Final = 4 * BATCH_BYTES
"""With so much unsent, whoever reports more waits; this bounds a handle's memory."""
_AT_THE_DOOR: Final = (REFUSED_QUEUE_FULL, REFUSED_BUSY, REFUSED_ROLLING_OVER, REFUSED_CLOSING, REFUSED_EVENT)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    step: Encoded
    since: float


@dataclass(slots=True)
class _Flight:
    """A message that the server may have: it is sent again as it is, never cut or numbered anew."""

    message: bytes
    steps: int
    size: int


class Sender:
    """Takes steps from any number of tasks of one event loop, and sends them in the order in which they came.

    A step gets its number when its message is made, and keeps it: numbers start at 1, without gaps, and one whose
    fate is unknown is never given to another step. A send that fails for good is told to the next caller; its steps
    are kept and tried again, but for those of a session that has ended.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        before: Callable[[int, Callable[[], bool]], Awaitable[None]] | None = None,
    ) -> None:
        """Takes how messages are delivered.

        Args:
            send: delivers a message; what can be retried it has retried itself when it raises.
            before: awaited before each new message, with the number of its steps; it may take its time, but not when
                its second argument says that somebody waits.
        """
        self.producer = secrets.token_hex(PRODUCER_CHARS // 2)
        self._send = send
        self._before = before
        self._next = 1
        self._waiting: deque[_Waiting] = deque()
        self._posted: list[Encoded] = []
        self._waiting_size = 0
        self._flight: _Flight | None = None
        # Steps taken so far, those of them that are done with, and those that nobody may hold back.
        self._taken = self._done = self._urgent = 0
        self._failure: BaseException | None = None
        self._told = False
        self._pump: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._absorbing: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Steps that the server does not have for certain."""
        return self._taken - self._done

    async def put(self, steps: Sequence[Encoded]) -> None:
        """Take steps, all of them or, where this raises or is cancelled, none; waits while the backlog is full.

        Raises:
            Exception: what an earlier send failed with, if nobody has been told yet.
        """
        async with self._turn:
            self._absorb()
            self._resume()
            await self._until(self._has_room)
            self._take(steps)
            self._start()

    def post(self, steps: Sequence[Encoded]) -> None:
        """Take steps from code that cannot wait, however full the backlog is; a failed send is told to others.

        Steps posted while another caller has the turn stand behind what that one reports.
        """
        self._posted.extend(steps)
        if self._turn.locked():
            self._absorbing = asyncio.ensure_future(self._absorb_in_turn())
        else:
            self._absorb()

    async def take_over(self) -> list[bytes]:
        """Stop sending for good; returns the messages that the server does not have for certain, in order.

        Each is what would have been sent, its steps numbered; whoever delivers them makes further ones by `message`.
        """
        if (pump := self._pump) is not None:
            pump.cancel()
            await asyncio.wait([pump])
        self._absorb()
        messages = [self._flight.message] if self._flight else []
        while self._waiting:
            messages.append(self._cut().message)
        self._flight, self._done = None, self._taken
        return messages

    async def drain(self) -> None:
        """Send everything that was taken before, now, and return when the server has it.

        Raises:
            Exception: what a send failed with.
        """
        if self._posted:
            await self._absorb_in_turn()
        await self._drain()

    async def _drain(self) -> None:
        if not self.backlog:
            self._resume()
            return
        target = self._hurry()
        self._start()
        await self._until(lambda: self._done >= target)

    async def settle(self, within: float | None = None) -> BaseException | None:
        """Like `drain`, for at most `within` seconds, but returns what went wrong instead of raising it."""
        try:
            async with asyncio.timeout(within):
                if self._posted:
                    await self._absorb_in_turn()
                target = self._hurry()
                if self._failure is None:
                    self._start()
                await self._changed(lambda: self._done >= target)
        except TimeoutError:
            return AffidavitUnavailable(f"{self.backlog} steps could not be sent in time")
        return None if self._told and not self.backlog else self._failure

    async def alone(self, steps: Sequence[Encoded], send: Callable[[bytes], Awaitable[T]]) -> T:
        """Send steps in a message of their own, behind everything before; later steps wait for its answer.

        Args:
            send: if it raises one of the refusals for want of room or time, nothing was taken for certain.
        """
        async with self._turn:
            self._absorb()
            await self._drain()
            first = self._next
            message = self.message(steps)
            try:
                return await send(message)
            except SessionRefused as refused:
                # Refused at the door, so the numbers are free again; any other refusal may come from behind it.
                if refused.type in _AT_THE_DOOR:
                    self._next = first
                raise

    # -- what callers share ----------------------------------------------------------------------------

    def _take(self, steps: Sequence[Encoded]) -> None:
        since = asyncio.get_running_loop().time()
        for step in steps:
            self._waiting.append(_Waiting(step, since))
            self._waiting_size += step.size
        self._taken += len(steps)
        if self._is_full():
            self._news.set()

    def _absorb(self) -> None:
        """Put what was posted behind what was taken; for whoever has the turn."""
        if self._posted:
            posted, self._posted = self._posted, []
            self._take(posted)
            if self._failure is None:  # else whoever is told of it has it tried again
                self._start()

    async def _absorb_in_turn(self) -> None:
        async with self._turn:
            self._absorb()

    def _has_room(self) -> bool:
        in_flight = self._flight.size if self._flight else 0
        return self.backlog < BACKLOG_STEPS and self._waiting_size + in_flight < BACKLOG_BYTES

    def _hurry(self) -> int:
        self._urgent = self._taken
        self._news.set()
        return self._taken

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._changed(condition)
        if self._failure is not None:
            self._told = True
            raise self._failure

    async def _changed(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds or sending has failed."""
        while self._failure is None and not condition():
            self._progress.clear()
            await self._progress.wait()

    def _resume(self) -> None:
        """Try again what had failed; raise why it had, once."""
        failure, told = self._failure, self._told
        self._start()
        if failure is not None and not told:
            raise failure

    # -- the pump ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._failure, self._told = None, False
        if self._pump is None and self.backlog:
            # A task of its own: whoever reported a step may be cancelled, the step is still sent.
            self._pump = asyncio.create_task(self._run())
            self._pump.add_done_callback(self._stopped)

    async def _run(self) -> None:
        while self.backlog:
            if self._flight is None:
                await self._linger()
                self._flight = self._cut()
                if self._before is not None:
                    await self._before(self._flight.steps, self._is_urgent)
            await self._send(self._flight.message)
            self._done += self._flight.steps
            self._flight = None
            self._progress.set()

    def _stopped(self, pump: asyncio.Task[None]) -> None:
        self._pump = None
        unsent = self.backlog
        if pump.cancelled():
            self._failure = AffidavitUnavailable(f"sending was cancelled; {unsent} steps are not sent yet")
        elif (error := pump.exception()) is None:
            self._start()  # for what was taken since the pump had looked
            return
        elif isinstance(error, SessionNotFound):
            # A later life of the id must not get the steps of this one.
            self._failure = SessionNotFound(f"{error}; {unsent} steps were not taken")
            self._waiting.clear()
            self._waiting_size, self._flight, self._done = 0, None, self._taken
        else:
            self._failure = error
        _log.warning("%d steps are not sent: %s", unsent, self._failure)
        self._progress.set()

    async def _linger(self) -> None:
        """Wait until a batch is full, its time is up, or somebody waits for it."""
        loop = asyncio.get_running_loop()
        due = self._waiting[0].since + LINGER_S
        while not self._is_full() and not self._is_urgent() and (left := due - loop.time()) > 0:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    def _is_urgent(self) -> bool:
        return self._urgent > self._done

    def _is_full(self) -> bool:
        return len(self._waiting) >= BATCH_STEPS or self._waiting_size + ENVELOPE_BYTES >= BATCH_BYTES

    def _cut(self) -> _Flight:
        steps: list[Encoded] = []
        size = ENVELOPE_BYTES
        while self._waiting and len(steps) < BATCH_STEPS:
            step = self._waiting[0].step
            if steps and size + step.size > BATCH_BYTES:
                break
            steps.append(step)
            size += step.size
            self._waiting.popleft()
        self._waiting_size -= size - ENVELOPE_BYTES
        return _Flight(self.message(steps), len(steps), size)

    def message(self, steps: Sequence[Encoded]) -> bytes:
        """The message that carries steps, each with its number; the numbers are given away."""
        parts = []
        for step in steps:
            if step.numbered:
                parts.append(step.text)
            else:
                parts.append(step.with_number(self.producer, self._next))
                self._next += 1
        return record(parts)
