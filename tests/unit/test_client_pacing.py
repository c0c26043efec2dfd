"""How a handle slows down when its session is behind. The session is a stand-in, the clock is virtual."""

from __future__ import annotations

import asyncio

import pytest

from affidavit.pacing import Pace
from affidavit.sending import Sender
from tests.support.transport import Transport, steps
from tests.support.virtual_time import run


class Session:
    """Full for so many looks; `looks` are the times at which it was asked."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.looks: list[float] = []

    async def crowded(self) -> bool:
        self.looks.append(asyncio.get_running_loop().time())
        return len(self.looks) <= self.full


def calm() -> bool:
    return False


def test_a_session_with_room_is_asked_once_in_256_steps() -> None:
    async def main() -> None:
        session = Session(full=0)
        pace = Pace(session.crowded, patience=60)
        for _ in range(12):
            await pace.wait(64, calm)
        assert len(session.looks) == 3
        assert asyncio.get_running_loop().time() == session.looks[0]

    run(main())


def test_a_full_session_is_waited_for_with_growing_pauses() -> None:
    async def main() -> None:
        session = Session(full=8)
        await Pace(session.crowded, patience=60).wait(256, calm)
        pauses = [later - earlier for earlier, later in zip(session.looks, session.looks[1:], strict=False)]
        assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])

    run(main())


def test_patience_ends() -> None:
    async def main() -> None:
        session = Session(full=10_000)
        start = asyncio.get_running_loop().time()
        await Pace(session.crowded, patience=7).wait(256, calm)
        assert asyncio.get_running_loop().time() - start == pytest.approx(7)

    run(main())


def test_what_somebody_waits_for_is_not_held_back() -> None:
    async def main() -> None:
        session, transport = Session(full=10_000), Transport()
        sender = Sender(transport, Pace(session.crowded, patience=3600).wait)
        await sender.put(steps(*range(256)))
        await asyncio.sleep(30)
        assert len(transport.numbers) == 192  # the fourth message waits
        start = asyncio.get_running_loop().time()
        await sender.drain()
        assert transport.numbers == list(range(1, 257))
        assert asyncio.get_running_loop().time() - start <= 2.0

    run(main())
