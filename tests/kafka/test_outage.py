"""A broker that goes away under living sessions: nothing is poisoned, nothing is lost, nothing is doubled.

AFFIDAVIT_TEST_OUTAGE_S sets how long it is away (3 s in the ordinary suite; 60 by hand).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from activities.buses.base import Ack, BusRecord, EventBus
from affidavit.kafka.admin import provision
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.manifest import Manifest
from tests.kafka.conftest import MakeBus, manifest_text
from tests.kafka.test_security import secured
from tests.support.kafka_broker import PASSWORD, Broker
from tests.support.kafka_proof import check_once, check_receipt
from tests.support.kafka_topics import rows
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S, TapBus
from tests.support.waiting import eventually

OUTAGE_S = float(os.environ.get("AFFIDAVIT_TEST_OUTAGE_S", "3"))
PLANTED = "planted-secret-9c1e"
BACK_S = 60.0
"""A broker that was killed recovers its log first, and a publish waits up to 5 s between attempts."""


def call(number: int) -> dict[str, Any]:
    return {"kind": "tool_call", "call_id": f"c{number}", "tool": "search", "allowed": True}


@pytest.mark.timeout(200 + 2 * OUTAGE_S)
async def test_e1_f4_a_broker_that_is_down_stalls_sessions_and_their_close(
    own_kafka: Broker, rig: Rig, make_bus: MakeBus
) -> None:
    """It goes down at the worst moment of one session: its receipt is made, and about to be published."""

    async def at_a_receipt(records: Sequence[BusRecord]) -> None:
        if any(each.topic == "agent.receipt" for each in records) and own_kafka.runs and not went_down.done():
            await own_kafka.kill()
            went_down.set_result(time.monotonic())

    went_down: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    async with rig.worker(bus=TapBus(make_bus(), before=at_a_receipt)):
        ending, reporting, opening = [await rig.open() for _ in range(3)]
        await reporting.submit(call(0))
        await eventually(reporting.view, lambda view: view.published_through == 1, within=LIMIT_S)
        closing = asyncio.create_task(ending.close())
        down = await went_down
        receipt = (rig.folder(ending.session_id) / "receipt.json").read_bytes()
        # E1: reporting goes on, and the view says what stands still.
        for one in (reporting, opening):
            await one.submit(call(1), call(2))
        view = await eventually(reporting.view, lambda view: view.stalled is not None, within=LIMIT_S)
        assert view.stalled is not None
        assert (view.stalled.stage, view.state, view.poisoned, view.event_count) == ("publish", "open", None, 4)
        await asyncio.sleep(max(0.0, down + OUTAGE_S - time.monotonic()))
        assert not closing.done()
        await own_kafka.start()
        async with asyncio.timeout(BACK_S):
            outcomes = [await closing, await reporting.close(), await opening.close()]
    assert (rig.folder(ending.session_id) / "receipt.json").read_bytes() == receipt
    for outcome in outcomes:
        assert (outcome.status, outcome.published, outcome.reason) == ("closed", True, None)
        ours = await rows(own_kafka.plain, [outcome.session_id])
        assert len(ours) == outcome.event_count + 2
        check_once(ours)
        check_receipt(rig, outcome, ours)


async def test_e1_i1_a_wrong_password_stalls_a_session_until_it_is_mended(
    own_kafka: Broker, rig: Rig, make_bus: MakeBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(own_kafka.secure, **secured(own_kafka, tmp_path, password=PLANTED))
    async with rig.worker(bus=bus):
        session = await rig.open()
        await session.submit(call(0))
        view = await eventually(session.view, lambda view: view.stalled is not None, within=LIMIT_S)
        assert (view.stalled.stage if view.stalled else "", view.poisoned) == ("publish", None)
        (tmp_path / "kafka.password").write_text(PASSWORD)
        outcome = await session.close()
    assert (outcome.status, outcome.published) == ("closed", True)
    check_once(await rows(own_kafka.plain, [session.session_id]))
    history = await rig.client.temporal.get_workflow_handle(session.session_id).fetch_history()
    assert "Kafka refuses the credentials" in history.to_json()
    # I1: neither the wrong one nor the right one is written anywhere.
    for secret in (PLANTED, PASSWORD):
        assert secret not in history.to_json()
        assert secret not in caplog.text


class Elsewhere:
    """The bus, with the records of some topics put on others."""

    def __init__(self, inner: EventBus, topics: Mapping[str, str]) -> None:
        self._inner = inner
        self._topics = topics

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        moved = [dataclasses.replace(each, topic=self._topics.get(each.topic, each.topic)) for each in records]
        return await self._inner.publish(moved, look_up=look_up)

    async def close(self) -> None:
        await self._inner.close()


async def test_a_topic_that_is_missing_stalls_a_session_until_it_is_made(
    kafka: Broker, rig: Rig, make_bus: MakeBus
) -> None:
    late = f"agent.test-{uuid.uuid4()}"
    async with rig.worker(bus=Elsewhere(make_bus(), {"agent.tool_call": late})):
        session = await rig.open()
        await session.submit(call(0))
        view = await eventually(session.view, lambda view: view.stalled is not None, within=LIMIT_S)
        assert (view.stalled.stage if view.stalled else "", view.poisoned) == ("publish", None)
        made = await provision(KafkaConnection(bootstrap=kafka.plain), Manifest.parse(manifest_text(late).encode(), ""))
        assert made == [late]
        outcome = await session.close()
    assert (outcome.status, outcome.published) == ("closed", True)
    assert [row.sequence for row in await rows(kafka.plain, [session.session_id], [late])] == [1]


async def make_topic(kafka: Broker, topic: NewTopic) -> None:
    """Make a topic that no manifest would ask for."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.plain)
    await admin.start()
    try:
        await admin.create_topics([topic])
    finally:
        await admin.close()


async def test_e1_e4_a_record_too_large_ends_its_session_alone(kafka: Broker, rig: Rig, make_bus: MakeBus) -> None:
    """Before the seal it poisons: what was reported cannot all be published. After it the receipt stands."""
    small = f"agent.test-{uuid.uuid4()}"
    await make_topic(kafka, NewTopic(small, 1, 1, topic_configs={"max.message.bytes": "1024"}))
    topics = {"agent.compression": small, "agent.receipt": small}
    async with rig.worker(bus=Elsewhere(make_bus(), topics)):
        bad, sealed = await rig.open(content="full"), await rig.open()
        request = {"kind": "model_request", "messages": [{"role": "user", "content": "x" * 5000}]}
        await bad.submit(request)
        view = await eventually(bad.view, lambda view: view.poisoned is not None, within=LIMIT_S)
        assert view.poisoned is not None
        assert view.poisoned.endswith(f"PermanentPublishError: {small}: a record is too large for the topic")
        await sealed.submit(call(0))
        ended = await bad.close()
        outcome = await sealed.close()
    assert (ended.status, ended.receipt) == ("quarantined", None)
    # Its receipt is over 1 024 bytes as an event, and valid all the same.
    assert (outcome.status, outcome.published, outcome.receipt is not None) == ("closed", False, True)
    published = await rows(kafka.plain, [sealed.session_id])
    assert sorted(row.sequence for row in published)[:2] == [0, 1]
    assert not any(row.topic == "agent.receipt" for row in published)
