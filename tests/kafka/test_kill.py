"""H1, H4 and H6 on Kafka: worker processes die, stop and go on in the middle of a publish, and nothing is lost.

AFFIDAVIT_TEST_KILLS sets how many kills have to land, over all stages (4 in the ordinary suite; 30 by hand).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

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

STEPS: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}]},
    {"kind": "model_response", "text": "I look into the haystack.", "finish_reason": "stop"},
    {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}},
    {"kind": "tool_result", "call_id": "c1", "content": {"found": 1}},
]
EVENTS = 1 + len(STEPS) + 2
"""opened, the steps, receipt, closed"""


async def arrived(kafka: Broker, session_id: str) -> None:
    """Wait until the steps of a session are on the topics."""

    async def look() -> int:
        return len(await rows(kafka.plain, [session_id], ["agent.tool_call"]))

    await eventually(look, lambda found: found == 1, within=LIMIT_S)


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
            await self._kill("on its way", uuid.uuid4().hex, counts=False)
            await self._kill(stage, self.sessions[-1].session_id)
        else:
            await self._kill(stage, uuid.uuid4().hex)

    async def _kill(self, stage: str, session_id: str, *, counts: bool = True) -> None:
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
                    await arrived(self.kafka, session_id)
                    assert (await session.view()).published_through == 0
                else:
                    assert await line(worker) == f"held {session_id}"
            assert worker.returncode is None
            worker.kill()
            await worker.wait()
        self.proxy.mute = False
        self.proxy.cut()
        self.landed[stage] += counts


@pytest.mark.timeout(120 + 40 * KILLS)
async def test_h1_a_kill_while_a_publish_is_open_loses_and_doubles_nothing(
    own_kafka: Broker, rig: Rig, server: DevServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(rig, server, own_kafka, tmp_path / "log")
    for number in range(KILLS):
        await killer.kill_at(STAGES[number % len(STAGES)])
    async with process(WORKERS, killer.environment(), tmp_path / "log"), asyncio.timeout(RECOVERY_S + KILLS):
        outcomes = await asyncio.gather(*(session.close() for session in killer.sessions))
    found = await rows(own_kafka.plain, [outcome.session_id for outcome in outcomes])
    with capsys.disabled():
        print("".join(f"\n    killed while {stage}: {killer.landed[stage]}" for stage in STAGES))
        print(f"    {len(outcomes)} sessions, {len(found)} records, {len({r.value for r in found})} different")
    assert sum(killer.landed.values()) == KILLS
    assert min(killer.landed[stage] for stage in STAGES) > 0
    for outcome in outcomes:
        ours = of(found, outcome.session_id)
        assert (outcome.status, outcome.steps, outcome.published) == ("closed", len(STEPS), True)
        assert len(ours) == EVENTS
        check_once(ours)
        check_receipt(rig, outcome, ours)


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


@pytest.mark.timeout(200)
async def test_h4_two_workers_on_one_queue_and_one_killed_under_load(
    kafka: Broker, rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    rounds = 25
    env = environment(rig, server.address, **kafka.variables())
    async with (
        process(WORKERS, env, tmp_path / "log") as first,
        process(WORKERS, env, tmp_path / "log"),
        asyncio.timeout(150),
    ):
        sessions = await asyncio.gather(*(rig.open() for _ in range(12)))
        endings = [asyncio.create_task(busy(session, rounds)) for session in sessions]
        await published(sessions, lambda through: through > 40)
        first.kill()
        assert not any(ending.done() for ending in endings)
        outcomes = await asyncio.gather(*endings)
    found = await rows(kafka.plain, [outcome.session_id for outcome in outcomes])
    for outcome in outcomes:
        ours = of(found, outcome.session_id)
        assert (outcome.status, outcome.steps, outcome.published) == ("closed", 2 * rounds, True)
        assert len(ours) == 1 + 2 * rounds + 2
        check_once(ours)
        check_receipt(rig, outcome, ours)


@pytest.mark.timeout(200)
async def test_h1_a_worker_stopped_past_its_timeouts_and_continued_doubles_at_most_what_was_in_flight(
    kafka: Broker, rig: Rig, server: DevServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one case that no time limit covers: another worker has looked, and then the first one wakes up.

    It stops, as by SIGSTOP, right before it sends the records of one session, with others under way; another worker
    takes over what it held; and it goes on.
    """
    rounds = 10
    sid = f"stopped-{uuid.uuid4()}"
    env = environment(rig, server.address, **kafka.variables())
    async with (
        process(HELD_WORKER, {**env, "HELD": json.dumps({sid: "sending"}), "STOPS": "1"}, tmp_path / "log") as first,
        asyncio.timeout(150),
    ):
        sessions = await asyncio.gather(
            *(rig.open(session_id=name) for name in (sid, *(f"{sid}-{n}" for n in range(5))))
        )
        endings = [asyncio.create_task(busy(session, rounds)) for session in sessions]
        assert await line(first) == f"held {sid}"
        before = await rows(kafka.plain, [session.session_id for session in sessions])
        async with process(WORKERS, env, tmp_path / "log"):
            outcomes = await asyncio.gather(*endings)
            first.send_signal(signal.SIGCONT)
            # It has gone on once it ends as it is told to.
            first.terminate()
            assert await asyncio.wait_for(first.wait(), LIMIT_S) == 0
    found = await rows(kafka.plain, [session.session_id for session in sessions])
    copies = Counter(row.headers["affidavit-event-uid"] for row in found)
    doubled = {uid: count for uid, count in copies.items() if count > 1}
    with capsys.disabled():
        print(f"\n    stopped with {len(before)} of {len(copies)} records on the topics; doubled: {len(doubled)}")
    assert 0 < len(before) < len(copies)
    assert all(count == 2 for count in doubled.values())
    known = {row.headers["affidavit-event-uid"] for row in before}
    assert not known & doubled.keys()
    for outcome in outcomes:
        ours = dropped_by_uid(of(found, outcome.session_id))
        assert (outcome.status, outcome.steps, outcome.published) == ("closed", 2 * rounds, True)
        check_once(ours)
        check_receipt(rig, outcome, ours)


def dropped_by_uid(found: Sequence[Row]) -> list[Row]:
    """What a consumer keeps that drops repeats by uid, as docs/kafka.md asks of it."""
    kept: dict[str, Row] = {}
    for row in sorted(found, key=lambda row: (row.topic, row.partition, row.offset)):
        kept.setdefault(row.headers["affidavit-event-uid"], row)
    return list(kept.values())
