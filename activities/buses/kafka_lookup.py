"""Finds records by their uid: what an earlier attempt, of whatever worker, has put on a topic (formats.md 3.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from activities.buses.base import HEADER_UID, Ack, BusRecord
from activities.errors import IntegrityError

MARGIN_MS = 5 * 60 * 1000
"""The search begins so long before the first event's own time."""

POLL_MS = 500
RECORDS_A_POLL = 5_000
FETCH_BYTES = 4 * 1024 * 1024
STOP_LIMIT_S = 1.0


async def look_up(
    options: Mapping[str, Any],
    wanted: Mapping[TopicPartition, Sequence[BusRecord]],
    progress: Callable[[], None],
) -> dict[str, Ack]:
    """Read each partition from before the events' time to its end, and find their uids.

    Args:
        options: of `KafkaConnection.client_options`.
        wanted: records by the partition in which they must be if they are anywhere.
        progress: called while it goes on.

    Returns:
        acknowledgements by uid, of the records that are there; the first where one is there twice.

    Raises:
        IntegrityError: there is another record under one of the uids.
        KafkaError, OSError: of the client.
    """
    consumer = AIOKafkaConsumer(
        **options,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    try:
        await consumer.start()
        starts = {tp: min(record.time_ms for record in records) - MARGIN_MS for tp, records in wanted.items()}
        offsets = await consumer.offsets_for_times({tp: max(start, 0) for tp, start in starts.items()})
        # The ends are asked for once: whatever is written after this is not of an attempt that ended before.
        ends = await consumer.end_offsets(list(wanted))
        begun = {tp: found.offset for tp, found in offsets.items() if found is not None and found.offset < ends[tp]}
        if not begun:
            return {}
        consumer.assign(list(begun))
        for tp, offset in begun.items():
            consumer.seek(tp, offset)
        return await _read(consumer, {tp: ends[tp] for tp in begun}, wanted, progress)
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_LIMIT_S):
                await consumer.stop()


async def _read(
    consumer: AIOKafkaConsumer,
    ends: dict[TopicPartition, int],
    wanted: Mapping[TopicPartition, Sequence[BusRecord]],
    progress: Callable[[], None],
) -> dict[str, Ack]:
    by_uid = {record.uid.encode(): record for tp in ends for record in wanted[tp]}
    found: dict[str, Ack] = {}
    open_partitions = set(ends)
    while open_partitions:
        progress()
        polled = await consumer.getmany(*open_partitions, timeout_ms=POLL_MS, max_records=RECORDS_A_POLL)
        for tp, records in polled.items():
            for record in records:
                ours = _ours(record, by_uid) if record.offset < ends[tp] else None
                if ours is not None:
                    found.setdefault(ours.uid, Ack(tp.topic, tp.partition, record.offset))
        for tp in list(open_partitions):
            # By the position and not the last record: the end may be a marker that no consumer is shown.
            if await consumer.position(tp) >= ends[tp]:
                open_partitions.discard(tp)
                consumer.pause(tp)
    return found


def _ours(record: ConsumerRecord[bytes, bytes], wanted: Mapping[bytes, BusRecord]) -> BusRecord | None:
    for name, value in record.headers:
        if name == HEADER_UID:
            ours = wanted.get(value)
            if ours is None:
                return None
            if (record.topic, record.key, record.value) != (ours.topic, ours.key.encode(), ours.value):
                raise IntegrityError("the event bus holds another record under the uid of this one")
            return ours
    return None
