"""H1, H4 and H6 on Kafka: worker processes die, stop and go on in the middle of a publish, and nothing is lost.

AFFIDAVIT_TEST_KILLS sets how many kills have to land, over all stages (4 in the ordinary suite; 30 by hand).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from affidavit.client import SessionHandle
from affidavit.contract import SessionOutcome
from tests.support.kafka_broker import Broker
from tests.support.kafka_proof import check_once, check_receipt, of
from tests.support.kafka_topics import Row, rows
from tests.support.processes import WORKERS, environment, line, process
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from workers.devserver import DevServer

HELD_WORKER = (str(Path(__file__).parents[1] / "support" / "held_kafka_worker.py"),)
KILLS = int(os.environ.get("AFFIDAVIT_TEST_KILLS", "4"))
STAGES = ("sending", "on its way", "acknowledged", "looking up")
RECOVERY_S = 60.0
ARRIVAL_S = 8.0
TRIES = 4

STEPS: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}]},
    {"kind": "model_response", "text": "I look into the haystack.", "finish_reason": "stop"},
    {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}},
    {"kind": "tool_result", "call_id": "c1", "content": {"found": 1}},
]
ROUNDS = 8
"""Of two steps each, in the sessions that keep workers busy."""


@dataclass(frozen=True)
class Ended:
    """How the sessions of a scene ended, and what is on the topics then; and was before, where that matters."""

    rig: Rig
    outcomes: list[SessionOutcome]
    rows: list[Row]
    before: list[Row] = field(default_factory=list)
    landed: Counter[str] = field(default_factory=Counter)

    @classmethod
    async def of(cls, kafka: Broker, rig: Rig, outcomes: list[SessionOutcome], **more: Any) -> Ended:
        found = await rows(kafka.plain, [outcome.session_id for outcome in outcomes])
        return cls(rig, outcomes, found, **more)


async def arrived(kafka: Broker, session_id: str) -> bool:
    """Whether the steps of a session are on the topics, within the time that a first attempt to send them has."""
    latest = asyncio.get_running_loop().time() + ARRIVAL_S
    while not await rows(kafka.plain, [session_id], ["agent.tool_call"]):
        if asyncio.get_running_loop().time() > latest:
            return False
        await asyncio.sleep(0.05)
    return True


class Killer:
    """Kills one worker process after another, each with the publish of a session of its own open."""

    def __init__(self, rig: Rig, server: DevServer, kafka: Broker, log: Path) -> None:
        assert kafka.proxy is not None
        self.rig, self.server, self.kafka, self.proxy, self.log = rig, server, kafka, kafka.proxy, log
        # What a killed worker had just been given comes back after its time limits.
        rig.client.admit_timeout = 60
        self.landed: Counter[str] = Counter()
        self.sessions: list[SessionHandle] = []

    def environment(self, **variables: str) -> dict[str, str]:
        return environment(self.rig, self.server.address, **self.kafka.variables(self.kafka.proxied), **variables)

    async def kill_at(self, stage: str) -> None:
        if stage == "looking up":
            # Only an attempt after another one looks: the first dies with its records on the topic.
            await self._kill_on_its_way(counts=False)
            await self._kill(stage, self.sessions[-1].session_id)
        elif stage == "on its way":
            await self._kill_on_its_way()
        else:
            await self._kill(stage, uuid.uuid4().hex)

    async def _kill_on_its_way(self, *, counts: bool = True) -> None:
        """Nothing but the first attempt has a connection to a broker that answers nobody; where a slow machine gives
        that one up, another session has its turn."""
        for _ in range(TRIES):
            if await self._kill("on its way", uuid.uuid4().hex, counts=counts):
                return
        raise AssertionError("no records came to the broker")

    async def _kill(self, stage: str, session_id: str, *, counts: bool = True) -> bool:
        """Whether the worker was where it was to be."""
        is_there = True
        env = self.environment(HELD=json.dumps({session_id: stage}))
        async with process(HELD_WORKER, env, self.log) as worker:
            if stage == "looking up":
                assert await line(worker) == f"held {session_id}"
            else:
                session = await self.rig.open(session_id=session_id)
                self.sessions.append(session)
                await eventually(session.view, lambda view: view.published_through == 0, within=LIMIT_S)
                # The broker hears the worker from now on, and the worker hears nothing of the broker.
                self.proxy.mute = stage == "on its way"
                await session.record(*STEPS)
                if stage == "on its way":
                    is_there = await arrived(self.kafka, session_id)
                    assert (await session.view()).published_through == 0
                else:
                    assert await line(worker) == f"held {session_id}"
            assert worker.returncode is None
            worker.kill()
            await worker.wait()
        self.proxy.mute = False
        self.proxy.cut()
        self.landed[stage] += counts and is_there
        return is_there


async def many_kills(kafka: Broker, rig: Rig, server: DevServer, log: Path) -> Ended:
    killer = Killer(rig, server, kafka, log)
    for number in range(KILLS):
        await killer.kill_at(STAGES[number % len(STAGES)])
    async with process(WORKERS, killer.environment(), log), asyncio.timeout(RECOVERY_S + KILLS):
        outcomes = await asyncio.gather(*(session.close() for session in killer.sessions))
    return await Ended.of(kafka, rig, outcomes, landed=killer.landed)


async def busy(session: SessionHandle, rounds: int) -> SessionOutcome:
    """An agent that goes on when what it reported is journaled."""
    for number in range(rounds):
        call = {"kind": "tool_call", "call_id": f"c{number}", "tool": "search", "allowed": True}
        await session.submit(call, {"kind": "tool_result", "call_id": f"c{number}", "content": number})
    return await session.close()


async def published(sessions: Sequence[SessionHandle], enough: Callable[[int], bool]) -> None:
    async def look() -> int:
        return sum([(await session.view()).published_through for session in sessions])

    await eventually(look, enough, within=LIMIT_S)


MANY_ROUNDS = 2 * ROUNDS
"""Where no session may be done at the kill, however slow the views are that tell when that is due."""


async def one_of_two_killed(kafka: Broker, rig: Rig, server: DevServer, log: Path) -> Ended:
    env = environment(rig, server.address, **kafka.variables())
    async with process(WORKERS, env, log) as first, process(WORKERS, env, log):
        sessions = await asyncio.gather(*(rig.open() for _ in range(8)))
        endings = [asyncio.create_task(busy(session, MANY_ROUNDS)) for session in sessions]
        await published(sessions, lambda through: through > 20)
        first.kill()
        assert not any(ending.done() for ending in endings)
        outcomes = await asyncio.gather(*endings)
    return await Ended.of(kafka, rig, outcomes)


async def stopped_and_continued(kafka: Broker, rig: Rig, server: DevServer, log: Path) -> Ended:
    """A worker stops, as by SIGSTOP, right before it sends the records of one session, with others under way.

    Another one takes over what it held, and then it goes on.
    """
    sid = f"stopped-{uuid.uuid4()}"
    env = environment(rig, server.address, **kafka.variables())
    held = {**env, "HELD": json.dumps({sid: "sending"}), "STOPS": "1"}
    async with process(HELD_WORKER, held, log) as first:
        names = [sid, *(f"{sid}-{number}" for number in range(3))]
        sessions = await asyncio.gather(*(rig.open(session_id=name) for name in names))
        endings = [asyncio.create_task(busy(session, ROUNDS)) for session in sessions]
        assert await line(first) == f"held {sid}"
        before = await rows(kafka.plain, names)
        async with process(WORKERS, env, log):
            outcomes = await asyncio.gather(*endings)
            first.send_signal(signal.SIGCONT)
            # It has gone on once it ends as it is told to.
            first.terminate()
            assert await asyncio.wait_for(first.wait(), LIMIT_S) == 0
    return await Ended.of(kafka, rig, outcomes, before=before)


Scene = Callable[[Broker, Rig, DevServer, Path], Awaitable[Ended]]


@pytest_asyncio.fixture(scope="module")
async def scenes(
    some_kafka: Broker, server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[Scene, Ended | BaseException]:
    """All at once: most of the time they wait for time limits."""
    played: list[Scene] = [one_of_two_killed, stopped_and_continued]
    if some_kafka.ours:
        played.append(many_kills)

    async def play(scene: Scene) -> Ended:
        folder = tmp_path_factory.mktemp("scene")
        # What a killed worker had just been given comes back after its time limits.
        rig = await Rig.make(server.address, folder / "data")
        rig.client.admit_timeout = 60
        async with asyncio.timeout(120 + 30 * KILLS):
            return await scene(some_kafka, rig, server, folder / "log")

    found = await asyncio.gather(*map(play, played), return_exceptions=True)
    return dict(zip(played, found, strict=True))


def ended(scenes: dict[Scene, Ended | BaseException], scene: Scene) -> Ended:
    found = scenes[scene]
    if isinstance(found, BaseException):
        raise found
    return found


def check(found: Ended, steps: int) -> None:
    """Every session closed, with all its events on the topics once, in order, and the chain of its receipt."""
    for outcome in found.outcomes:
        ours = of(found.rows, outcome.session_id)
        assert (outcome.status, outcome.steps, outcome.published) == ("closed", steps, True)
        assert len(ours) == 1 + steps + 2  # opened, the steps, receipt, closed
        check_once(ours)
        check_receipt(found.rig, outcome, ours)


@pytest.mark.timeout(180 + 30 * KILLS)
def test_h1_a_kill_while_a_publish_is_open_loses_and_doubles_nothing(
    scenes: dict[Scene, Ended | BaseException], capsys: pytest.CaptureFixture[str], own_kafka: Broker
) -> None:
    found = ended(scenes, many_kills)
    with capsys.disabled():
        print("".join(f"\n    killed while {stage}: {found.landed[stage]}" for stage in STAGES))
        different = len({row.value for row in found.rows})
        print(f"    {len(found.outcomes)} sessions, {len(found.rows)} records, {different} different")
    assert sum(found.landed.values()) == KILLS
    assert min(found.landed[stage] for stage in STAGES) > 0
    check(found, len(STEPS))


@pytest.mark.timeout(180 + 30 * KILLS)
def test_h4_two_workers_on_one_queue_and_one_killed_under_load(scenes: dict[Scene, Ended | BaseException]) -> None:
    check(ended(scenes, one_of_two_killed), 2 * MANY_ROUNDS)


@pytest.mark.timeout(180 + 30 * KILLS)
def test_h1_a_worker_stopped_past_its_timeouts_and_continued_doubles_at_most_what_was_in_flight(
    scenes: dict[Scene, Ended | BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """The one case that no time limit covers: another worker has looked, and then the first one wakes up."""
    found = ended(scenes, stopped_and_continued)
    copies = Counter(row.headers["affidavit-event-uid"] for row in found.rows)
    doubled = {uid: count for uid, count in copies.items() if count > 1}
    with capsys.disabled():
        print(f"\n    stopped with {len(found.before)} of {len(copies)} records on the topics; doubled: {len(doubled)}")
    assert 0 < len(found.before) < len(copies)
    assert all(count == 2 for count in doubled.values())
    assert not doubled.keys() & {row.headers["affidavit-event-uid"] for row in found.before}
    check(dataclasses.replace(found, rows=dropped_by_uid(found.rows)), 2 * ROUNDS)


def dropped_by_uid(found: Sequence[Row]) -> list[Row]:
    """What a consumer keeps that drops repeats by uid, as docs/kafka.md asks of it."""
    kept: dict[str, Row] = {}
    for row in sorted(found, key=lambda row: (row.topic, row.partition, row.offset)):
        kept.setdefault(row.headers["affidavit-event-uid"], row)
    return list(kept.values())
