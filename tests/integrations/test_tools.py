"""Tools as people write them: results that come later, results that nobody can describe, and failures of reporting."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from affidavit.errors import NotReported, SessionNotFound, ToolBlocked
from affidavit.sync import SyncSession
from tests.support.agents import recorded
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions


def results(rig: Rig, session_id: str) -> list[tuple[bool, Any]]:
    return [(each["ok"], each["content"]) for each in recorded(rig, session_id, "tool_result")]


class Odd:
    """Describes itself in no way."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("repr")

    def model_dump(self, **_: Any) -> Any:
        raise ZeroDivisionError("dump")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("str")


class Promise:
    def __await__(self) -> Any:
        return later(7).__await__()


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.filterwarnings("ignore:coroutine '_awaited' was never awaited")
async def test_a_result_that_comes_later_is_reported_when_it_is_there(running: Rig) -> None:
    async with running.client.session({"agent": AGENT}) as session:
        tool = session.tool(lambda value: value, name="later")
        coroutine = tool(later("came"))
        await session.flush()
        assert recorded(running, session.session_id, "tool_result") == []  # it has not run yet
        assert await asyncio.create_task(coroutine) == "came"
        with pytest.raises(RuntimeError, match="failed in fact"):
            await tool(later(RuntimeError("failed in fact")))
        assert await tool(Promise()) == 7
        assert await tool(asyncio.ensure_future(later(8))) == 8
        nested = await tool(later(later(9)))
        await asyncio.sleep(0)
        assert await nested == 9
        dropped = later("x")
        tool(dropped)
        gc.collect()
        await asyncio.sleep(0)
        dropped.close()
        cut = tool(asyncio.get_running_loop().create_future())
        cut.cancel()
        await asyncio.sleep(0)
    attested(running, session.outcome)
    drop = {"error": "DroppedResult", "message": "nobody has waited for the end of this result"}
    assert results(running, session.session_id) == [
        (True, "came"),
        (False, {"error": "RuntimeError", "message": "failed in fact"}),
        (True, 7),
        (True, 8),
        (True, 9),
        (False, drop),
        (False, {"error": "CancelledError", "message": ""}),
    ]


async def test_what_a_tool_yields_is_reported_at_its_end(running: Rig) -> None:
    async with running.client.session({"agent": AGENT}) as session:

        @session.tool
        def count(up_to: int) -> Iterator[int]:
            yield from range(up_to)

        @session.tool
        async def stream(breaks: bool) -> AsyncIterator[str]:
            await asyncio.sleep(0.01)
            yield "one"
            if breaks:
                raise RuntimeError("in stream")
            yield "two"

        @session.tool
        async def made() -> Any:
            return stream(False)

        assert list(count(3)) == [0, 1, 2]
        assert [each async for each in stream(False)] == ["one", "two"]
        with pytest.raises(RuntimeError, match="in stream"):
            async for _ in stream(True):
                pass
        assert list(session.tool(lambda: map(str, [1, 2]), name="map")()) == ["1", "2"]
        closed = count(3)
        assert next(closed) == 0
        closed.close()
        assert len(list(count(1002))) == 1002
        assert [each async for each in await made()] == ["one", "two"]
        left = count(2)
        assert next(left) == 0
    attested(running, session.outcome)
    drop = {"error": "DroppedResult", "message": "nobody has waited for the end of this result", "items": [0]}
    found = results(running, session.session_id)
    assert found[:5] == [
        (True, [0, 1, 2]),
        (True, ["one", "two"]),
        (False, {"error": "RuntimeError", "message": "in stream", "items": ["one"]}),
        (True, ["1", "2"]),
        (False, drop),
    ]
    assert (found[5][1][:2], found[5][1][999:]) == ([0, 1], [999, "not reported: 2 more items"])
    # A stream within a call that has returned it: that call ends with the stream.
    assert sorted(found[6:], key=lambda each: each[0]) == [
        (False, drop),
        (True, ["one", "two"]),
        (True, ["one", "two"]),
    ]


async def test_a_result_that_nobody_can_describe_is_the_agents_all_the_same(running: Rig) -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    odd = Odd()
    async with running.client.session({"agent": AGENT}) as session:
        tool = session.tool(lambda value: value, name="odd")
        assert tool(odd) is odd
        assert tool(deep) is deep

        @session.tool
        def fails() -> None:
            raise Unspeakable

        with pytest.raises(Unspeakable):
            fails()
    attested(running, session.outcome)
    first, second, third = results(running, session.session_id)
    assert first == (True, "not reported: ZeroDivisionError")
    assert (second[0], second[1].startswith("not reported: ")) == (True, True)
    assert third == (False, {"error": "Unspeakable", "message": "not reported: ZeroDivisionError"})


async def test_reporting_uses_up_nothing_that_the_agent_reads(running: Rig, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("line\n")
    async with running.client.session({"agent": AGENT}) as session:
        tool = session.tool(lambda value: value, name="lazy")
        found = tool({"rows": [(number for number in (1, 2))], "total": 2})
        assert list(found["rows"][0]) == [1, 2]
        with tool((tmp_path / "text").open()) as file:
            assert file.read() == "line\n"
    attested(running, session.outcome)
    first, second = results(running, session.session_id)
    assert first == (True, {"rows": ["not reported: generator"], "total": 2})
    assert second[1].startswith("<_io.TextIOWrapper")


async def test_a_policy_that_fails_and_arguments_that_nobody_can_parse_block(running: Rig) -> None:
    ran: list[Any] = []
    async with running.client.session({"agent": AGENT}) as session:
        guarded = session.tool(ran.append, name="guarded", policy=lambda arguments: 1 // 0)
        plain = session.tool(ran.append, name="plain")
        with pytest.raises(ToolBlocked, match="the policy failed: ZeroDivisionError") as blocked:
            guarded(1)
        assert blocked.value.stage == "policy"
        with pytest.raises(ToolBlocked) as blocked:
            plain.call("c1", '{"x":' + "[" * 100_000)
        assert blocked.value.stage == "parse"
    attested(running, session.outcome)
    calls = recorded(running, session.session_id, "tool_call")
    assert [(each["allowed"], each["stage"]) for each in calls] == [(False, "policy"), (False, "parse")]
    assert calls[0]["reason"].startswith("the policy failed: ZeroDivisionError")
    assert ran == []


async def test_a_failure_to_report_is_told_next_and_never_in_the_tools_place(running: Rig) -> None:
    def redact(step: dict[str, Any]) -> dict[str, Any]:
        if step["kind"] == "tool_result":
            raise LookupError("secret card 1")
        return step

    session = await running.client.open({"agent": AGENT}, redact=redact)
    tool = session.tool(lambda value: 8 // value, name="divide")
    for ask in (session.flush, session.admit):
        assert tool(4) == 2
        with pytest.raises(NotReported, match="LookupError") as told:
            await ask()
        assert "secret" not in str(told.value)
        await session.flush()  # told once
    with pytest.raises(ZeroDivisionError):
        tool(0)
    with pytest.raises(NotReported):
        await session.close()
    assert session.outcome is not None
    assert session.outcome.status == "closed"
    assert actions(attested(running, session.outcome)) == ["opened", "tool_call", "tool_call", "tool_call"]


async def test_after_the_close_no_tool_is_run(running: Rig, sync_session: SyncSession) -> None:
    ran: list[Any] = []
    session = await running.client.open({"agent": AGENT})
    tool = session.tool(ran.append, name="tool")
    await session.close()
    for use in (lambda: tool(1), lambda: tool.call("c1", '{"object": 1}')):
        with pytest.raises(SessionNotFound, match="tool was not called"):
            use()
    in_a_thread = sync_session.tool(ran.append, name="tool")
    await asyncio.to_thread(sync_session.close)
    with pytest.raises(SessionNotFound, match="tool was not called"):
        await asyncio.to_thread(in_a_thread, 1)
    assert ran == []
