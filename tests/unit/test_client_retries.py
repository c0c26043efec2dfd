"""Which failures a call to Temporal sits out, for how long, and what its caller hears of the others.

The transport is a stand-in, the clock is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from affidavit.client import SessionClient
from affidavit.errors import AffidavitUnavailable, SessionFailed, SessionNotFound, SessionRefused, SessionStalled
from affidavit.rpc import persist, translated
from affidavit.sending import Sender
from tests.support.transport import Transport, steps
from tests.support.virtual_time import run

UNAVAILABLE = RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")
NOT_FOUND = RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")
SIGNAL_LIMIT = RPCError(
    "exceeded workflow execution limit for signal events", RPCStatusCode.INVALID_ARGUMENT, b""
)  # as server 1.32 has it
UPDATE_LIMIT = RPCError(
    "The limit on the total number of distinct updates in this workflow has been reached (2000). Make sure",
    RPCStatusCode.FAILED_PRECONDITION,
    b"",
)
TASK_FAILED = RPCError(
    "Unable to perform workflow execution update due to unexpected workflow task failure.",
    RPCStatusCode.FAILED_PRECONDITION,
    b"",
)  # as server 1.32 has it while a run is handed on
DENIED = RPCError("no such permission", RPCStatusCode.PERMISSION_DENIED, b"")


def refused(type_: str) -> WorkflowUpdateFailedError:
    return WorkflowUpdateFailedError(ApplicationError(f"no: {type_}", type=type_))


async def never() -> bool:
    return False


async def always() -> bool:
    return True


def persistently(
    transport: Callable[[bytes], Awaitable[Any]], within: float = 60, goes_on: Callable[[], Awaitable[bool]] = never
) -> Callable[[bytes], Awaitable[Any]]:
    """The transport as a handle uses it: with retries, its errors in the client's words."""

    async def send(message: bytes) -> Any:
        with translated("s"):
            return await persist(lambda: transport(message), within=within, goes_on=goes_on)

    return send


PASSING = [
    TASK_FAILED,
    UNAVAILABLE,
    SIGNAL_LIMIT,
    UPDATE_LIMIT,
    TimeoutError(),
    WorkflowUpdateRPCTimeoutOrCancelledError(),
    refused("RollingOver"),
    refused("Busy"),
    refused("UnprocessedUpdate"),
    *(
        RPCError("x", status, b"")
        for status in (
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.RESOURCE_EXHAUSTED,
            RPCStatusCode.ABORTED,
            RPCStatusCode.CANCELLED,
            RPCStatusCode.UNKNOWN,
            RPCStatusCode.INTERNAL,
        )
    ),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_may_pass_is_tried_again_with_the_same_bytes(error: Exception) -> None:
    async def main() -> None:
        transport = Transport(script=[error] * 4)
        sender = Sender(persistently(transport))
        await sender.put(steps("a", "b"))
        await sender.drain()
        assert len(transport.messages) == 5
        assert len(set(transport.messages)) == 1
        pauses = [later - sooner for sooner, later in zip(transport.times, transport.times[1:], strict=False)]
        assert all(0.05 * 2**n <= pause <= 0.1 * 2**n for n, pause in enumerate(pauses))

    run(main())


def test_pauses_grow_to_five_seconds_and_the_caller_is_told_after_a_minute() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport = Transport(script=[UNAVAILABLE] * 1000)
        sender = Sender(persistently(transport))
        await sender.put(steps("a"))
        with pytest.raises(AffidavitUnavailable, match="the Temporal server does not answer: connection refused"):
            await sender.drain()
        assert 60 <= loop.time() < 61
        assert max(b - a for a, b in zip(transport.times, transport.times[1:], strict=False)) <= 5

    run(main())


def test_a_server_that_answers_in_between_starts_the_minute_anew() -> None:
    async def main() -> None:
        transport = Transport(takes=50, script=[UNAVAILABLE] * 10)
        sender = Sender(persistently(transport))
        await sender.put(steps("a"))
        await sender.drain()
        assert len(transport.messages) == 11

    run(main())


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (SIGNAL_LIMIT, SessionStalled, "session s takes nothing more for now, its run has reached a limit: exceeded"),
        (UPDATE_LIMIT, SessionStalled, "session s takes nothing more for now, its run has reached a limit: The limit"),
        (TimeoutError(), AffidavitUnavailable, "the session did not answer in time"),
        (refused("Busy"), SessionRefused, "no: Busy"),
    ],
    ids=["signals", "updates", "silence", "busy"],
)
def test_what_does_not_pass_has_a_name(error: Exception, expected: type[Exception], text: str) -> None:
    async def main() -> None:
        with pytest.raises(expected, match=text):
            await persistently(Transport(script=[error] * 1000))(b"message")
        assert 60 <= asyncio.get_running_loop().time() < 61

    run(main())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DENIED, SessionFailed),
        (NOT_FOUND, SessionNotFound),
        (refused("QueueFull"), SessionRefused),
        (refused("LoopDetected"), SessionRefused),
        (refused("AcceptedUpdateCompletedWorkflow"), SessionNotFound),
    ],
    ids=["denied", "ended", "queue full", "loop", "ended in the middle"],
)
def test_what_is_final_is_told_at_once(error: Exception, expected: type[Exception]) -> None:
    async def main() -> None:
        transport = Transport(script=[error])
        with pytest.raises(expected) as told:
            await persistently(transport)(b"message")
        assert len(transport.messages) == 1
        # The SDK's trace stands behind what nobody foresaw, and nothing else.
        assert (told.value.__cause__ is error, told.value.__suppress_context__) == (error is DENIED, True)

    run(main())


@pytest.mark.parametrize("error", [NOT_FOUND, refused("AcceptedUpdateCompletedWorkflow")], ids=["signal", "update"])
def test_a_run_that_has_ended_is_followed_by_the_next_one(error: Exception) -> None:
    async def main() -> None:
        transport = Transport(script=[error, error])
        await persistently(transport, goes_on=always)(b"message")
        assert transport.messages == [b"message"] * 3

    run(main())


def test_after_a_lost_answer_a_full_queue_proves_nothing() -> None:
    """The first try may have been taken by the run before: refused now, the steps would be reported once more."""

    async def main() -> None:
        passing = Transport(script=[UNAVAILABLE, refused("QueueFull"), refused("ResponseSlotsFull")])
        await persistently(passing)(b"message")
        assert len(passing.messages) == 4
        sender = Sender(Transport())
        staying = Transport(script=[UNAVAILABLE, *[refused("QueueFull")] * 1000])
        with pytest.raises(AffidavitUnavailable, match="an answer was lost, and now the session refuses: QueueFull"):
            await sender.alone(steps("a"), persistently(staying))
        await sender.alone(steps("b"), staying_open := Transport())
        assert staying_open.numbers == [2]

    run(main())


def test_a_cancel_of_the_caller_is_no_failure_to_sit_out() -> None:
    async def main() -> None:
        cancelled = WorkflowUpdateRPCTimeoutOrCancelledError()
        cancelled.__cause__ = asyncio.CancelledError()
        transport = Transport(script=[cancelled])
        with pytest.raises(asyncio.CancelledError):
            await persistently(transport)(b"message")
        assert len(transport.messages) == 1

    run(main())


class Promotions:
    """A Temporal client whose server goes away twice: at the start, and while the result is waited for."""

    def __init__(self) -> None:
        self.starts = 0
        self.script: list[BaseException | None] = [UNAVAILABLE, None, UNAVAILABLE, None, None]

    async def start_workflow(self, *_: object, **__: object) -> Promotions:
        self.starts += 1
        await self.result()
        return self

    async def result(self) -> str:
        if (error := self.script.pop(0)) is not None:
            raise error
        return "promoted"


def test_f8_a_promotion_sits_out_a_server_that_is_away() -> None:
    temporal = Promotions()
    client = SessionClient(temporal)  # type: ignore[arg-type]
    assert run(client.promote("s", "01a22ed7-4581-7070-9935-76e2303e6095")) == "promoted"
    assert temporal.starts == 3


def test_f8_a_promotion_gives_up_in_time() -> None:
    temporal = Promotions()
    temporal.script = [UNAVAILABLE] * 1000
    client = SessionClient(temporal, retry_timeout=30)  # type: ignore[arg-type]
    with pytest.raises(AffidavitUnavailable):
        run(client.promote("s", "01a22ed7-4581-7070-9935-76e2303e6095"))
    assert temporal.starts < 30
