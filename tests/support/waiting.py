"""Waiting for what must come, without sleeping for what might."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio.client import WorkflowHandle

T = TypeVar("T")


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool], *, within: float = 30.0) -> T:
    """Ask until the answer fits and return it; fail with the last answer after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not holds(answer := await ask()):
        assert loop.time() < deadline, f"not within {within} s; last seen: {answer!r}"
        await asyncio.sleep(0.02)
    return answer


async def signalled(handle: WorkflowHandle[Any, Any], times: int) -> None:
    """Wait until the server has so many signals of a workflow's run, whether or not a worker is there."""

    async def signals() -> int:
        history = await handle.fetch_history()
        return sum(event.HasField("workflow_execution_signaled_event_attributes") for event in history.events)

    await eventually(signals, lambda found: found >= times)
