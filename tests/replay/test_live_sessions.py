"""H3: sessions that lived through queries, updates, wakes, rollovers and new workers replay, and make the same events.

The saved histories hold each path once and in order. What goes wrong in a replay goes wrong where things meet: a query
that is answered between two tasks, an update that is the first thing a new worker hears, a run that is handed on while
signals come. So here they meet as they like, and afterwards every run is replayed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import (
    Interceptor,
    Replayer,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from affidavit import contract
from affidavit.client import SessionHandle
from affidavit.contract import Limits
from affidavit.converter import data_converter
from affidavit.errors import AffidavitError
from affidavit.stores.local import DirectoryStore
from tests.support.bare import Bare, call, failed, said
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from workers.worker import workflow_runner
from workflows.session import AgentSession

SESSIONS = 8
WORKERS = 3
MESSAGES = 8


async def kept(answer: Awaitable[Any]) -> None:
    """What is refused under load, by a full queue or while a run is handed on, is no fault here."""
    with suppress(AffidavitError):
        await answer


async def attempt(bare: Bare) -> None:
    """A model attempt that fails."""
    admitted = await bare.admit()
    if admitted["accepted"]:
        await bare.step(failed(attempt_id=admitted["attempt_id"]))


def something(rig: Rig, session: SessionHandle, peer: SessionHandle, chance: random.Random) -> Awaitable[Any]:
    """One message, of any kind."""
    bare, step = Bare(rig, session.session_id), call(f"c{chance.random()}")
    response = said(" ".join(chance.choices(["look", "again", "search", "find", "nothing"], k=30)))
    match chance.randrange(9):
        case 0:
            return bare.step(step)
        case 1:
            return bare.step(response)
        case 2:
            return bare.record(response, step)
        case 3:
            return session.submit(response, step)
        case 4:
            return session.flush()
        case 5:  # as a producer that leaves numbers out
            return bare.step({**step, "producer": "p", "producer_seq": chance.randrange(30)})
        case 6:
            return session.submit({"kind": "event", "type": "note", "payload": {"text": "a note"}}, step)
        case 7:
            return session.wake({"from": session.session_id}, peer.session_id)
        case _:
            return attempt(bare)


async def report(rig: Rig, session: SessionHandle, peer: SessionHandle, chance: random.Random) -> None:
    """Say a few things, some of them before others are answered, and look at the session meanwhile."""
    waiting = list[asyncio.Task[None]]()
    for _ in range(MESSAGES):
        waiting.append(asyncio.create_task(kept(something(rig, session, peer, chance))))
        if chance.random() < 0.4:
            waiting.append(asyncio.create_task(kept(session.view())))
        if chance.random() < 0.3:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)


Batch = tuple[list[tuple[int, str, str]], bytes]
"""Sequence, uid and action of each event of a batch, and the text of its steps."""


class Journaled(Interceptor):
    """Collects the batches that a session has journaled."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        batches = self.batches

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
                if input.activity == contract.ACTIVITY_JOURNAL:
                    request, steps = input.args
                    events = [(entry.sequence, entry.uid, entry.action) for entry in request.entries]
                    batches.append((events, steps.payload.data))
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


def recorded(history: WorkflowHistory) -> list[Batch]:
    """The batches that a run has journaled, as its history has them."""
    found = []
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == "journal":
            request, steps = scheduled.input.payloads
            events = [
                (entry["sequence"], entry["uid"], entry["action"]) for entry in json.loads(request.data)["entries"]
            ]
            found.append((events, steps.data))
    return found


async def runs_of(rig: Rig, session: SessionHandle) -> list[WorkflowHistory]:
    """The histories of a life, first run first."""
    temporal, run_id, found = rig.client.temporal, session.generation, list[WorkflowHistory]()
    while run_id:
        history = await temporal.get_workflow_handle(session.session_id, run_id=run_id).fetch_history()
        found.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


@pytest.mark.timeout(300)
@pytest.mark.failed_tasks  # a run is handed on while signals come: Temporal fails that task, and it is done again
async def test_h3_what_lived_through_everything_replays_to_the_same_events(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 6)
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 0.3)
    chance = random.Random(11)
    async with rig.worker():
        spec = {"limits": Limits(drain_timeout_s=5, gap_grace_s=1), "event_types": {"note": {"type": "object"}}}
        sessions = [await rig.open(**spec) for _ in range(SESSIONS)]
    for _ in range(WORKERS):
        async with rig.worker():
            chances = [random.Random(chance.random()) for _ in sessions]
            peers = sessions[1:] + sessions[:1]
            async with asyncio.timeout(2 * LIMIT_S):
                await asyncio.gather(
                    *(
                        report(rig, session, peer, own)
                        for session, peer, own in zip(sessions, peers, chances, strict=True)
                    )
                )
    async with rig.worker():
        outcomes = await asyncio.gather(*(session.close() for session in sessions))
    assert [outcome.status for outcome in outcomes] == ["closed"] * SESSIONS
    runs = 0
    for session in sessions:
        for history in await runs_of(rig, session):
            seen = Journaled()
            replayer = Replayer(
                workflows=[AgentSession],
                workflow_runner=workflow_runner(),
                data_converter=data_converter(DirectoryStore(rig.data.evidence)),
                interceptors=[seen],
            )
            assert (await replayer.replay_workflow(history)).replay_failure is None
            assert seen.batches == recorded(history)
            runs += 1
    assert runs > 2 * SESSIONS
