"""Case 15: with the broker gone, a client's `send_and_wait` and `stop` never return; ours do."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from activities.errors import TransientError
from tests.kafka.conftest import MakeBus
from tests.kafka.test_bus import record, session, uids
from tests.support.kafka_broker import Broker
from tests.support.kafka_proof import check_once, check_receipt
from tests.support.kafka_topics import rows
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workers.running import HAND_BACK_S

GRACE_S = 4.0


@pytest.mark.timeout(150)
async def test_case_15_with_the_port_closed_the_worker_ends_in_its_grace_and_the_event_appears_once(
    own_kafka: Broker, rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    assert own_kafka.proxy is not None
    variables = own_kafka.variables(own_kafka.proxied)
    env = environment(rig, server.address, **variables, AFFIDAVIT_GRACE_S=str(GRACE_S))
    async with process(WORKERS, env, tmp_path / "log") as worker:
        reported = await rig.open()
        await eventually(reported.view, lambda view: view.published_through == 0, within=LIMIT_S)
        own_kafka.proxy.closed = True
        own_kafka.proxy.cut()
        await reported.submit({"kind": "tool_result", "content": 1})
        view = await eventually(reported.view, lambda view: view.stalled is not None, within=LIMIT_S)
        assert (view.stalled.stage if view.stalled else "", view.poisoned) == ("publish", None)
        worker.terminate()
        asked = time.monotonic()
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
        assert time.monotonic() - asked < GRACE_S + HAND_BACK_S + 3  # the interpreter has to end, too
    own_kafka.proxy.closed = False
    async with process(WORKERS, env, tmp_path / "log"), asyncio.timeout(60):
        outcome = await reported.close()
    ours = await rows(own_kafka.plain, [outcome.session_id])
    assert (outcome.status, outcome.published, len(ours)) == ("closed", True, 4)
    check_once(ours)
    check_receipt(rig, outcome, ours)


async def test_case_15_an_answer_that_is_lost_ends_the_call_and_the_record_is_found(
    own_kafka: Broker, make_bus: MakeBus
) -> None:
    """The broker has written it, and its answer never comes. What the call began is over when it returns."""
    assert own_kafka.proxy is not None
    sid = session()
    bus = make_bus(own_kafka.proxied)
    await bus.publish([record(0, sid)], look_up=False)
    own_kafka.proxy.mute = True
    started = time.monotonic()
    with pytest.raises(TransientError, match="not acknowledged in time"):
        await bus.publish([record(1, sid)], look_up=False)
    assert time.monotonic() - started < 8
    own_kafka.proxy.mute = False
    await bus.publish([record(1, sid), record(2, sid)], look_up=True)
    assert uids(await rows(own_kafka.plain, [sid])) == [f"{sid}-0", f"{sid}-1", f"{sid}-2"]


async def test_case_15_what_is_cancelled_is_never_sent_later(own_kafka: Broker, make_bus: MakeBus) -> None:
    """As at the end of the grace: the next attempt may look up at once, and nothing may come after it."""
    assert own_kafka.proxy is not None
    sid = session()
    bus = make_bus(own_kafka.proxied)
    await bus.publish([record(0, sid)], look_up=False)
    own_kafka.proxy.closed = True
    own_kafka.proxy.cut()
    calls = [asyncio.create_task(bus.publish([record(n, sid)], look_up=False)) for n in range(1, 6)]
    await asyncio.sleep(0.5)  # the client has found its connection broken, and tries to make another one
    for each in calls:
        each.cancel()
    await asyncio.wait(calls)
    own_kafka.proxy.closed = False
    await make_bus(own_kafka.proxied).publish([record(9, sid)], look_up=True)
    await bus.publish([record(10, sid)], look_up=False)
    assert uids(await rows(own_kafka.plain, [sid])) == [f"{sid}-0", f"{sid}-9", f"{sid}-10"]
