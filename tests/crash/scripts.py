"""What agents do in the campaign: each script gives the same events whenever it runs, but for times and generated ids.

Steps are numbered here, because a handle numbers under a name of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from affidavit.client import SessionHandle
from affidavit.contract import SessionOutcome
from affidavit.errors import SessionRefused
from tests.support.rig import AGENT

Steps = list[dict[str, Any]]
Script = Callable[[SessionHandle], Awaitable[SessionOutcome]]

TEXTS: Final = (
    "I will look into the haystack, beginning at its foot.",
    "Nothing at the foot; the barn door may hide it.",
    "A splinter of wood, no needle. The loft is next.",
    "Here it is: the needle was in the loft all along.",
)


class Numbered:
    """Gives steps the numbers of one producer, in order."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, steps: Steps) -> Steps:
        numbered = [{**step, "producer": "agent", "producer_seq": self._last + n} for n, step in enumerate(steps, 1)]
        self._last += len(steps)
        return numbered


def turn(number: int) -> Steps:
    """A request, its answer with a call, the verdicts on two calls, and the result."""
    attempt, call = f"attempt-{number}", f"call-{number}"
    usage = {"prompt_tokens": 90 + number, "completion_tokens": 10, "cached_tokens": number, "cost_usd_micros": 11}
    return [
        {
            "kind": "model_request",
            "messages": [{"role": "user", "content": f"find the needle, {number}"}],
            "attempt_id": attempt,
        },
        {
            "kind": "model_response",
            "text": TEXTS[number % len(TEXTS)],
            "tool_calls": [{"call_id": call, "name": "search", "arguments": {"q": "needle", "page": number}}],
            "finish_reason": "tool_calls",
            "usage": usage,
            "attempt_id": attempt,
        },
        {"kind": "tool_call", "call_id": call, "tool": "search", "allowed": True, "arguments": {"page": number}},
        {"kind": "tool_call", "call_id": f"{call}b", "tool": "rm", "allowed": False, "stage": "policy", "reason": "no"},
        {"kind": "tool_result", "call_id": call, "content": {"found": number % 2, "text": "straw " * 50}},
    ]


async def recorded(session: SessionHandle) -> SessionOutcome:
    """Signals, an admission before each request, and a failed attempt at the end."""
    number = Numbered()
    for which in range(4):
        await session.admit(f"attempt-{which}")
        await session.record(*number(turn(which)))
        await session.flush()
    await session.record(*number([{"kind": "model_failure", "reason": "timeout", "status": 504}]))
    return await session.close()


async def submitted(session: SessionHandle) -> SessionOutcome:
    """Updates, each step on its own, one of them sent twice; at the end an identity that is renewed."""
    number = Numbered()
    for which in range(2):
        for step in number(turn(which)):
            await session.submit(step)
        await session.submit(step)
    assert session.attached is not None
    await session.refresh_identity(AGENT.model_copy(update={"ttl_remaining_s": 300}))
    return await session.close()


async def looping(session: SessionHandle) -> SessionOutcome:
    """The breaker trips, refuses, and is reset."""
    number = Numbered()
    same = {"kind": "model_response", "text": "Let me try that again.", "usage": {"prompt_tokens": 600}}
    for step in number([same] * 6):
        await session.record(step)
    await session.flush()
    with suppress(SessionRefused):
        await session.admit("refused")
    await session.reset_breaker(by="operator", reason="it was no loop")
    await session.admit("attempt-0")
    await session.record(*number(turn(0)))
    return await session.close()


async def cancelled(session: SessionHandle) -> SessionOutcome:
    """Cancelled once its steps are journaled."""
    number = Numbered()
    for which in range(2):
        await session.record(*number(turn(which)))
        await session.flush()
    await session.cancel()
    return await session.result()


async def promoted(session: SessionHandle) -> SessionOutcome:
    """Unsigned, with a receipt afterwards."""
    number = Numbered()
    for which in range(2):
        await session.record(*number(turn(which)))
    outcome = await session.close()
    await session.promote()
    return outcome


SCRIPTS: Final[dict[str, tuple[Script, dict[str, Any]]]] = {
    "recorded": (recorded, {}),
    "submitted": (submitted, {"content": "full"}),
    "promoted": (promoted, {"mode": "unsigned"}),
    "looping": (looping, {}),
    "cancelled": (cancelled, {}),
}
"""By name: what the agent does, and what its session's spec has beyond the agent."""
