"""Whether a worker's sessions may set search attributes: asked rarely, never failing, and not before servers know."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from affidavit import registering
from affidavit.registering import Registered
from workers.asking import SearchAttributesThere

ALL = Registered(right=("AffidavitMode",), missing=(), wrong={})
NONE = Registered(right=(), missing=("AffidavitMode",), wrong={})
WRONG = Registered(right=(), missing=(), wrong={"AffidavitMode": "Int, not Keyword"})


class Server:
    """Answers in order, the last one for ever; an answer that is an error is raised."""

    def __init__(self, *answers: Registered | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.now = 0.0

    async def registered(self, _: object) -> Registered:
        self.asked += 1
        await asyncio.sleep(0)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], SearchAttributesThere]:
    def make(server: Server) -> SearchAttributesThere:
        monkeypatch.setattr(registering, "registered", server.registered)
        client: Any = object()
        return SearchAttributesThere(client, asyncio.get_running_loop(), clock=lambda: server.now)

    return make


async def test_what_is_there_at_the_first_look_holds(there: Callable[[Server], SearchAttributesThere]) -> None:
    server = Server(ALL, NONE)
    ask = there(server)
    assert await asyncio.to_thread(ask)
    server.now = 1e6
    assert await asyncio.to_thread(ask)
    assert server.asked == 1


@pytest.mark.parametrize("answer", [NONE, WRONG])
async def test_what_is_not_there_is_asked_again_only_after_a_while(
    there: Callable[[Server], SearchAttributesThere], answer: Registered
) -> None:
    server = Server(answer)
    ask = there(server)
    for _ in range(50):
        assert not await asyncio.to_thread(ask)
    assert server.asked == 1
    server.now = 16
    assert not await asyncio.to_thread(ask)
    assert server.asked == 2


async def test_what_comes_later_is_used_once_every_part_of_the_server_knows(
    there: Callable[[Server], SearchAttributesThere],
) -> None:
    server = Server(NONE, ALL)
    ask = there(server)
    answers = []
    for now in (0, 20, 40, 60, 80, 100):
        server.now = now
        answers.append(await asyncio.to_thread(ask))
    assert answers == [False, False, False, False, False, True]


@pytest.mark.parametrize(
    "error", [RPCError("no", RPCStatusCode.PERMISSION_DENIED, b""), ConnectionError(), TimeoutError(), KeyError("x")]
)
async def test_a_question_that_fails_counts_as_no_for_a_moment(
    there: Callable[[Server], SearchAttributesThere], error: Exception
) -> None:
    server = Server(error, ALL)
    ask = there(server)
    assert not await asyncio.to_thread(ask)
    assert not await asyncio.to_thread(ask)
    server.now = 16
    assert await asyncio.to_thread(ask)


async def test_a_server_that_does_not_answer_is_not_waited_for(
    there: Callable[[Server], SearchAttributesThere], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.asking.ANSWER_LIMIT_S", 0.05)
    server = Server(ALL)
    ask = there(server)
    gate = asyncio.Event()

    async def silent(_: object) -> Registered:
        await gate.wait()
        return ALL

    monkeypatch.setattr(registering, "registered", silent)
    assert not await asyncio.to_thread(ask)
    gate.set()


async def test_sessions_that_open_at_once_get_the_same_answer(
    there: Callable[[Server], SearchAttributesThere],
) -> None:
    server = Server(ALL)
    ask = there(server)
    together = threading.Barrier(4)

    def opening() -> bool:
        together.wait(10)
        return ask()

    assert await asyncio.gather(*(asyncio.to_thread(opening) for _ in range(4))) == [True] * 4
    assert server.asked == 1
