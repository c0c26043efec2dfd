"""P15, P16: the grant book on a real server; what clients check, and what the book survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError

from affidavit import contract, granting
from affidavit.cli import run as command
from affidavit.client import Cursor, SessionClient, SessionProcess
from affidavit.converter import data_converter
from affidavit.errors import AffidavitUnavailable, SessionRefused
from affidavit.granting import Grants
from tests.support.bare import call
from tests.support.foreign import json_payload, payload
from tests.support.grants import book as book
from tests.support.grants import client_of
from tests.support.halves import store_of
from tests.support.rig import AGENT, Rig, actions
from tests.support.waiting import eventually
from workflows.grant_table import GrantTable


def pairs(grants: list[Any]) -> list[tuple[str, str]]:
    return [(grant.session_id, grant.descriptor) for grant in grants]


async def runs(handle: WorkflowHandle[Any, Any], client: Client) -> list[str]:
    """Ids of all runs of the book, the newest first."""
    found = [(await handle.describe()).run_id]
    while True:
        run = client.get_workflow_handle(handle.id, run_id=found[-1])
        first = await anext(aiter(run.fetch_history_events()))
        former = first.workflow_execution_started_event_attributes.continued_execution_run_id
        if not former:
            return found
        found.append(former)


async def refusal(handle: WorkflowHandle[Any, Any], name: str, *args: Any) -> tuple[str | None, str]:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update(name, args=list(args))
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.type, refused.value.cause.message


async def test_p15_grants_are_given_listed_moved_and_taken(running: Rig, book: str) -> None:
    grants = running.client.grants
    assert await grants.list("ann") == []  # there is no book yet
    assert await grants.grant("ann", "s1", "s2", descriptor="on call") == 2
    assert await grants.grant("ann", "s1", descriptor="on call") == 0
    assert await grants.grant("bob", "s2") == 1
    assert pairs(await grants.list("ann")) == [("s1", "on call"), ("s2", "on call")]
    assert sorted(grant.holder for grant in await grants.holders("s2")) == ["ann", "bob"]
    assert (await grants.holds("bob", "s2"), await grants.holds("bob", "s1")) == (True, False)
    assert await grants.transfer("ann", "eve", "s1", "s2") == 2
    assert pairs(await grants.list("eve")) == [("s1", "on call"), ("s2", "on call")]
    with pytest.raises(SessionRefused, match="ann holds no grant of s1") as refused:
        await grants.transfer("ann", "bob", "s1")
    assert refused.value.type == "GrantMissing"
    assert (await grants.revoke("eve", "s1"), await grants.revoke("eve", "s1")) == (1, 0)
    assert await grants.holders("s1") == []


async def test_p15_bad_requests_are_refused_and_leave_no_history(running: Rig, book: str) -> None:
    grants = running.client.grants
    await grants.grant("ann", "s1")
    handle = running.client.temporal.get_workflow_handle(book)
    before = (await handle.describe()).history_length
    for name in ("grant", "revoke", "transfer", "delete_holder"):
        assert (await refusal(handle, name, json_payload(["no", "object"])))[0] == "BadRequest"
    bad = {"holder": "a#b", "sessions": ["s"]}
    assert (await refusal(handle, "grant", json_payload(bad)))[0] == "BadRequest"
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("grant", args=[])
    with pytest.raises(SessionRefused) as refused:
        await grants.grant("ann", "not a session id")
    assert refused.value.type == "BadRequest"
    assert (await handle.describe()).history_length == before
    assert pairs(await grants.list("ann")) == [("s1", "")]


@pytest.mark.timeout(200)
async def test_p15_5000_grants_across_a_rollover(running: Rig, book: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates from several tasks while the book hands itself on every few of them: each is done once."""
    monkeypatch.setattr(contract, "ROLLOVER_UPDATES", 12)
    grants = running.client.grants
    given = await asyncio.gather(
        *(
            grants.grant("ann", *(f"session-{number:04d}" for number in range(first, first + 100)), descriptor="d" * 40)
            for first in range(0, 5_000, 100)
        )
    )
    assert sum(given) >= 4_000  # those whose answers were lost by a rollover find it done when they ask again
    # The book is full now. Updates that change nothing, until it has handed itself on with all of them.
    handle = running.client.temporal.get_workflow_handle(book)
    full = (await handle.describe()).run_id
    while (await handle.describe()).run_id == full:
        assert await grants.revoke("nobody", "nothing") == 0
    with pytest.raises(SessionRefused, match="grants full: 5000 of 5000") as refused:
        await grants.grant("bob", "one-more")
    assert refused.value.type == "GrantsFull"
    listed = await grants.list("ann")
    assert sorted(grant.session_id for grant in listed) == [f"session-{number:04d}" for number in range(5_000)]
    assert {grant.descriptor for grant in listed} == {"d" * 40}
    moved = [f"session-{number:04d}" for number in range(5_000)]
    assert await grants.transfer("ann", "bob", *moved) == 5_000
    assert (await grants.list("ann"), len(await grants.list("bob"))) == ([], 5_000)
    # A client that shares no store with the workers reads the same: answers stay in Temporal.
    stranger = await Client.connect(
        running.client.temporal.service_client.config.target_host, data_converter=data_converter()
    )
    assert len(await Grants(stranger, running.settings.task_queue, 10).list("bob")) == 5_000
    assert len(await runs(handle, running.client.temporal)) >= 5
    deleted = await grants.delete_holder("bob")
    assert (len(deleted.revoked), deleted.orphaned, deleted.preserved) == (5_000, [], [])


@pytest.mark.failed_tasks
async def test_p15_a_transfer_of_ten_that_is_killed_half_way_is_all_or_nothing(
    rig: Rig, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies each time it has moved five of ten; then one that does not."""
    sessions, moved = [f"s{number}" for number in range(10)], list[str]()
    grants = rig.client.grants
    put = GrantTable._put

    def dies_after_five(table: GrantTable, session: str, holder: str, descriptor: str) -> None:
        if holder == "bob":
            moved.append(session)
            if len(moved) % 5 == 0:
                raise RuntimeError("the worker died")
        put(table, session, holder, descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(GrantTable, "_put", dies_after_five)
        async with rig.worker():
            await grants.grant("ann", *sessions, descriptor="kept")
            moving = asyncio.create_task(grants.transfer("ann", "bob", *sessions))

            async def died() -> int:
                return len(moved)

            await eventually(died, lambda count: count >= 5)
    async with rig.worker():
        # Whether the update was still to be done or is asked for again: it is done whole.
        assert await moving == 10
        assert await grants.list("ann") == []
        assert sorted(pairs(await grants.list("bob"))) == [(session, "kept") for session in sorted(sessions)]
        # One of ten that is not held: nothing moves.
        await grants.revoke("bob", sessions[5])
        with pytest.raises(SessionRefused, match="bob holds no grant of s5"):
            await grants.transfer("bob", "ann", *sessions)
        assert (len(await grants.list("bob")), await grants.list("ann")) == (9, [])


async def test_p15_visibility_lag_never_grants(running: Rig, book: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives is asked of the executions: the list that lags is never looked at, and an answer is of its moment."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the visibility store was asked")

    monkeypatch.setattr(Client, "list_workflows", never)
    monkeypatch.setattr(Client, "count_workflows", never)
    grants = running.client.grants
    names = [f"lag-{book[7:]}-{number}" for number in range(6)]
    await grants.grant("ann", *names, "never-opened")
    assert await grants.list("ann", live_only=True) == []
    bob = client_of(running, "bob")
    for name in names:
        session = await running.open(session_id=name)
        assert [grant.session_id for grant in await grants.list("ann", live_only=True)] == [name]
        await grants.grant("bob", name)
        assert (await bob.handle(name).view()).state == "open"
        await grants.revoke("bob", name)
        with pytest.raises(SessionRefused, match=f"bob holds no grant of session {name}"):
            await bob.handle(name).view()
        await session.close()
        assert await grants.list("ann", live_only=True) == []


async def test_p15_a_client_with_a_holder_addresses_only_what_it_was_granted(running: Rig, book: str) -> None:
    session = await running.open(session_id=f"addressed-{book[7:]}")
    other = await running.open(session_id=f"target-{book[7:]}")
    ann = client_of(running, "ann")
    addressed = ann.handle(session.session_id)
    for attempt in (
        addressed.result,
        addressed.view,
        addressed.terminal_state,
        addressed.cancel,
        addressed.close,
        addressed.wakes_after,
        lambda: addressed.ack_wake(0),
    ):
        with pytest.raises(SessionRefused) as refused:
            await attempt()
        assert refused.value.type == "NotGranted"
    # What a client has opened itself is its own; whom that wakes is not.
    mine = await ann.open({"agent": AGENT})
    await mine.submit(call("c1"))
    with pytest.raises(SessionRefused, match=f"ann holds no grant of session {other.session_id}"):
        await mine.wake("come", target=other.session_id)
    assert (await other.view()).event_count == 1
    await ann.grants.grant("ann", session.session_id, other.session_id)
    await mine.wake("come", target=other.session_id)
    await eventually(other.view, lambda view: view.event_count == 2)
    assert (await addressed.view()).state == "open"
    await addressed.cancel()
    assert (await addressed.result()).status == "cancelled"
    assert (await session.result()).status == "cancelled"
    assert (await mine.close()).status == "closed"
    await other.close()


def followings(process: SessionProcess, generation: str) -> list[Callable[[], Awaitable[Any]]]:
    """Ways to follow a session and to ask it to end, each of which is answered at once where it is allowed."""
    return [
        lambda: anext(process.events()),
        process.recent_events,
        lambda: process.count_events("opened"),
        lambda: process.await_event("opened"),
        lambda: anext(process.watch(Cursor(generation, -1))),
        lambda: process.request_cancel("no friend of ann"),
        lambda: process.request_abandon(by="ann", reason="no friend of ann"),
        lambda: process.set_external_ref("ann-1"),
    ]


async def test_p15_checks_events_and_requests_too_whoever_has_the_store(running: Rig, book: str) -> None:
    session = await running.open(session_id=f"followed-{book[7:]}")
    await session.submit(call("c1"))
    name, generation = session.session_id, session.generation or ""
    ann = SessionClient(
        running.client.temporal, task_queue=running.settings.task_queue, holder="ann", store=store_of(running)
    )

    async def none_is_allowed() -> None:
        for addressed in (ann.process(name), ann.process(name, generation), ann.handle(name)):
            for place, attempt in enumerate(followings(addressed, generation)):
                with pytest.raises(SessionRefused, match=f"ann holds no grant of session {name}") as refused:
                    await attempt()
                assert refused.value.type == "NotGranted", place

    await none_is_allowed()
    view = await session.view()
    assert (view.event_count, view.cancel_requested, view.abandon_requested) == (2, None, None)
    assert view.external_ref is None
    await ann.grants.grant("ann", name)
    allowed = ann.process(name)
    assert [event.action async for event in allowed.events()] == ["opened", "tool_call"]
    assert [event.action for event in await allowed.recent_events(1)] == ["tool_call"]
    assert await allowed.count_events("tool_call") == 1
    awaited = await allowed.await_event("tool_call")
    assert awaited == await anext(allowed.watch(Cursor(generation, 0)))
    assert awaited is not None
    assert awaited.sequence == 1
    assert await allowed.set_external_ref("ann-1") == "ann-1"
    assert (await allowed.request_abandon(by="ann", reason="its host is gone")).by == "ann"
    assert (await allowed.request_cancel("enough")).reason == "enough"
    assert (await allowed.result()).status == "cancelled"
    assert actions(running.journal(name)) == ["opened", "tool_call", "abandon_requested", "cancel_requested"]
    # The store would tell all of it; but the grant is taken back.
    await ann.grants.revoke("ann", name)
    await none_is_allowed()


async def test_p16_a_grant_is_not_ownership(running: Rig, book: str) -> None:
    grants = running.client.grants
    alone = await running.open(session_id=f"alone-{book[7:]}")
    shared = await running.open(session_id=f"shared-{book[7:]}")
    over = await running.open(session_id=f"over-{book[7:]}")
    await over.close()
    ids = [alone.session_id, shared.session_id, over.session_id]
    await grants.grant("ann", *ids)
    await grants.grant("bob", shared.session_id)
    deleted = await grants.delete_holder("ann")
    assert sorted(deleted.revoked) == sorted(ids)
    assert (deleted.orphaned, deleted.preserved) == ([alone.session_id], [shared.session_id])
    assert await grants.holders(alone.session_id) == []
    for session in (alone, shared):
        assert (await session.view()).state == "open"
    again = await grants.delete_holder("ann")
    assert (again.revoked, again.orphaned, again.preserved) == ([], [], [])
    assert (await alone.close()).status == "closed"
    assert (await shared.close()).status == "closed"


async def test_p15_the_book_survives_a_cancel_and_a_bad_start_ends(running: Rig, book: str) -> None:
    grants = running.client.grants
    await grants.grant("ann", "s1")
    handle = running.client.temporal.get_workflow_handle(book)
    await handle.cancel()
    await grants.grant("ann", "s2")
    assert len(await grants.list("ann")) == 2
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    foreign = await running.client.temporal.start_workflow(
        "GrantBook", args=[{"grants": 5}], id=f"{book}-foreign", task_queue=running.settings.task_queue
    )

    async def status() -> WorkflowExecutionStatus | None:
        return (await foreign.describe()).status

    await eventually(status, lambda found: found is WorkflowExecutionStatus.FAILED)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([1, 2], "a grant book takes no arguments; 2 were given"),
        ([{}, {}, {}], "a grant book takes no arguments; 3 were given"),
        ([None], "invalid state of a grant book: 1 errors"),
        ([payload("{}", "json/unheard-of")], "arguments cannot be decoded; their encodings: json/unheard-of"),
        ([payload("{"), payload("{")], "arguments cannot be decoded; their encodings: json/plain, json/plain"),
    ],
)
async def test_p15_a_book_that_was_started_wrongly_ends_and_says_why_and_the_next_grant_is_taken(
    running: Rig, book: str, args: list[Any], why: str
) -> None:
    wrong = await running.client.temporal.start_workflow(
        "GrantBook", args=args, id=book, task_queue=running.settings.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        async with asyncio.timeout(30):
            await wrong.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.message == why
    assert await running.client.grants.grant("ann", "s1") == 1
    assert pairs(await running.client.grants.list("ann")) == [("s1", "")]


async def test_p15_the_command_line_grants_lists_moves_and_deletes(
    running: Rig, book: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", running.client.temporal.service_client.config.target_host)
    monkeypatch.setenv("AFFIDAVIT_TASK_QUEUE", running.settings.task_queue)

    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(command, ["grant", *arguments])
        return code, "".join(capsys.readouterr())

    session = await running.open(session_id=f"cli-{book[7:]}")
    name = session.session_id
    assert await run("grant", "ann", name, "s2", "--descriptor", "on call") == (0, "granted: 2\n")
    code, out = await run("list", "ann", "--live-only", "--json")
    assert (code, json.loads(out)) == (0, [{"session_id": name, "holder": "ann", "descriptor": "on call"}])
    assert await run("transfer", "ann", "bob", "s2", "s3") == (1, "error: ann holds no grant of s3\n")
    assert await run("transfer", "ann", "bob", "s2", name) == (0, "moved: 2\n")
    code, out = await run("holders", name)
    assert (code, out.split()) == (0, ["bob", "on", "call", "1", "grants"])
    assert await run("revoke", "bob", "s2") == (0, "revoked: 1\n")
    code, out = await run("delete-holder", "bob", "--json")
    assert (code, json.loads(out)) == (
        0,
        {"holder": "bob", "revoked": [name], "orphaned": [name], "preserved": []},
    )
    assert (await run("grant", "ann", "no id"))[0] == 2
    await session.close()


async def test_p15_without_a_worker_the_answer_is_unavailable_not_allowed(
    rig: Rig, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.worker():
        await rig.client.grants.grant("ann", "s1")
    monkeypatch.setattr(granting, "SHORT_CALL", timedelta(seconds=1))
    grants = Grants(rig.client.temporal, rig.settings.task_queue, 0.5)
    with pytest.raises(AffidavitUnavailable):
        await grants.check("ann", "s1")
