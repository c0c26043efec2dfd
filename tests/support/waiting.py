"""Waiting for what must come, without sleeping for what might."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool], *, within: float = 15.0) -> T:
    """Ask until the answer fits and return it; fail with the last answer after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not holds(answer := await ask()):
        assert loop.time() < deadline, f"not within {within} s; last seen: {answer!r}"
        await asyncio.sleep(0.02)
    return answer
