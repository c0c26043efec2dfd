"""The bus itself, on a real broker: what a record looks like, what happens once, and what each error means."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence

import pytest

from activities.buses.base import Ack, BusRecord
from activities.errors import IntegrityError, PermanentPublishError, TransientError
from tests.kafka.conftest import MakeBus
from tests.support.kafka_broker import Broker
from tests.support.kafka_topics import Row, in_topic_order, rows

NOW = int(time.time() * 1000)


def record(sequence: int, session: str, **changes: object) -> BusRecord:
    text = str(changes.pop("text", ""))
    uid = f"{session}-{sequence}"
    fields: dict[str, object] = {
        "topic": "agent.session",
        "key": "foobar",
        "value": json.dumps({"metadata": {"sequence": sequence, "uid": uid}, "text": text}).encode(),
        "uid": uid,
        "session_id": session,
        "generation": "generation-1",
        "time_ms": NOW + sequence,
        **changes,
    }
    return BusRecord(**fields)  # type: ignore[arg-type]


def session() -> str:
    return f"bus-{uuid.uuid4()}"


def uids(found: Sequence[Row]) -> list[str]:
    return [row.headers["affidavit-event-uid"] for row in in_topic_order(found)]


async def test_a_record_is_what_formats_3_3_says(kafka: Broker, make_bus: MakeBus) -> None:
    sid = session()
    [ack] = await make_bus().publish([record(3, sid)], look_up=False)
    [row] = await rows(kafka.plain, [sid])
    assert row == Row(
        topic="agent.session",
        # Kafka's own tests give murmur2("foobar") = -790332482; without its sign 1357151166, which is 6 modulo 8.
        partition=6,
        offset=ack.offset,
        timestamp=NOW + 3,
        timestamp_type=0,
        key=b"foobar",
        value=record(3, sid).value,
        headers={
            "affidavit-event-uid": f"{sid}-3",
            "affidavit-session": sid,
            "affidavit-generation": "generation-1",
            "content-type": "application/json",
        },
    )
    assert ack == Ack("agent.session", 6, row.offset)


async def test_every_record_is_acknowledged_once_and_in_order(kafka: Broker, make_bus: MakeBus) -> None:
    """1 000 of two topics, with a batch more than once: over a megabyte goes to each."""
    sid = session()
    records = [record(n, sid, topic=("agent.session", "agent.tool_call")[n % 2], text="x" * 2000) for n in range(1000)]
    acks = await make_bus().publish(records, look_up=False)
    found = await rows(kafka.plain, [sid])
    at = {(row.topic, row.partition, row.offset): row.sequence for row in found}
    assert [at[ack.topic, ack.partition, ack.offset] for ack in acks] == list(range(1000))
    assert len(found) == 1000
    for topic in ("agent.session", "agent.tool_call"):
        sequences = [row.sequence for row in in_topic_order(found) if row.topic == topic]
        assert sequences == sorted(sequences)
    with pytest.raises(ValueError, match="at most 1000 records"):
        await make_bus().publish([*records, record(1000, sid)], look_up=False)
    assert await make_bus().publish([], look_up=True) == []


async def test_what_another_worker_has_published_is_found(kafka: Broker, make_bus: MakeBus) -> None:
    sid = session()
    records = [record(n, sid, topic=("agent.session", "agent.tool_call")[n % 2]) for n in range(6)]
    first = await make_bus().publish(records[:4], look_up=False)
    again = await make_bus().publish(records, look_up=True)
    assert again[:4] == first
    assert uids(await rows(kafka.plain, [sid])) == [f"{sid}-{n}" for n in (0, 2, 4, 1, 3, 5)]
    assert await make_bus().publish(records, look_up=True) == again
    assert len(await rows(kafka.plain, [sid])) == 6
    # Not asked to look up, it does not.
    await make_bus().publish(records[:1], look_up=False)
    assert len(await rows(kafka.plain, [sid])) == 7


async def test_another_record_under_the_uid_is_an_integrity_error(make_bus: MakeBus) -> None:
    sid = session()
    bus = make_bus()
    await bus.publish([record(0, sid)], look_up=False)
    with pytest.raises(IntegrityError, match="another record under the uid"):
        await bus.publish([record(0, sid, text="changed")], look_up=True)


async def test_e4_a_record_too_large_is_permanent_and_harms_nobody_else(kafka: Broker, make_bus: MakeBus) -> None:
    bad, good = session(), session()
    bus = make_bus()
    await bus.publish([record(0, good)], look_up=False)

    async def publish_good(number: int) -> None:
        for attempt in range(20):
            try:
                await bus.publish([record(number, good)], look_up=attempt > 0)
            except TransientError:
                continue
            return

    tasks = [asyncio.create_task(publish_good(number)) for number in range(1, 4)]
    with pytest.raises(PermanentPublishError, match=r"\Aagent\.session: a record is too large for the topic\Z"):
        await bus.publish([record(0, bad, text="x" * 4_100_000)], look_up=False)
    await asyncio.gather(*tasks)
    await publish_good(4)
    found = await rows(kafka.plain, [bad, good])
    assert sorted(row.headers["affidavit-event-uid"] for row in found) == [f"{good}-{n}" for n in range(5)]


async def test_a_missing_topic_is_said_and_never_made(kafka: Broker, make_bus: MakeBus) -> None:
    """The broker would make it for any client that asks."""
    topic = f"agent.missing-{uuid.uuid4()}"
    bus = make_bus()
    for look_up in (False, True):
        with pytest.raises(TransientError, match=rf"\Atopic {topic} is missing; `affidavit topics provision` makes it"):
            await bus.publish([record(0, session(), topic=topic)], look_up=look_up)
    await bus.publish([record(0, session())], look_up=False)
    assert await rows(kafka.plain, topics=[topic]) == []
    with pytest.raises(TransientError, match="is missing"):
        await bus.publish([record(0, session(), topic=topic)], look_up=False)


async def test_a_producer_whose_numbering_is_lost_is_replaced(kafka: Broker, make_bus: MakeBus) -> None:
    """As after a broker has forgotten it: OutOfOrderSequenceNumber for every batch, for ever."""
    from aiokafka import TopicPartition

    sid = session()
    bus = make_bus()
    await bus.publish([record(0, sid)], look_up=False)
    current = bus._producers._current
    assert current is not None
    current.inner._txn_manager.increment_sequence_number(TopicPartition("agent.session", 6), 5)
    with pytest.raises(TransientError, match="OutOfOrderSequenceNumber"):
        await bus.publish([record(1, sid)], look_up=False)
    await bus.publish([record(1, sid)], look_up=True)
    assert uids(await rows(kafka.plain, [sid])) == [f"{sid}-0", f"{sid}-1"]


async def test_a_process_that_was_stopped_too_long_sends_nothing_of_before(kafka: Broker, make_bus: MakeBus) -> None:
    """Others may have its work by now: what it was about to send is dropped, and everything is looked up."""
    sid = session()
    bus = make_bus()
    await bus.publish([record(0, sid)], look_up=False)
    current = bus._producers._current
    assert current is not None
    current._ticked -= 3.1
    with pytest.raises(TransientError, match="given up"):
        await bus.publish([record(1, sid)], look_up=False)
    assert uids(await rows(kafka.plain, [sid])) == [f"{sid}-0"]
    await bus.publish([record(1, sid)], look_up=True)
    assert uids(await rows(kafka.plain, [sid])) == [f"{sid}-0", f"{sid}-1"]


async def test_many_sessions_share_one_connection_and_keep_their_order(kafka: Broker, make_bus: MakeBus) -> None:
    sids = [session() for _ in range(40)]
    bus = make_bus()

    async def publish(sid: str) -> None:
        for start in range(0, 15, 3):
            await bus.publish([record(n, sid) for n in range(start, start + 3)], look_up=False)

    await asyncio.gather(*(publish(sid) for sid in sids))
    found = in_topic_order(await rows(kafka.plain, sids))
    for sid in sids:
        assert [row.sequence for row in found if row.headers["affidavit-session"] == sid] == list(range(15))


async def test_nobody_is_there(make_bus: MakeBus) -> None:
    bus = make_bus("127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(TransientError, match=r"\Ano Kafka broker answers\Z"):
        await bus.publish([record(0, session())], look_up=False)
    assert time.monotonic() - started < 20
    await bus.close()
    with pytest.raises(TransientError, match="closed"):
        await bus.publish([record(0, session())], look_up=False)
