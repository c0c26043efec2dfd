"""What is on a broker's topics, read as any consumer reads it: nothing here uses the product's code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

TOPICS = (
    "agent.tool_call",
    "agent.stop_reason",
    "agent.receipt",
    "agent.compression",
    "agent.identity",
    "agent.session",
)


@dataclass(frozen=True)
class Row:
    """A record as it lies on a topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes
    value: bytes
    headers: dict[str, str]

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.value)
        return event

    @property
    def sequence(self) -> int:
        number: int = self.event["metadata"]["sequence"]
        return number


async def rows(address: str, session_ids: Iterable[str] | None = None, topics: Iterable[str] = TOPICS) -> list[Row]:
    """Every record of some topics, from the beginning to the end they have now, of some sessions or of all."""
    wanted = None if session_ids is None else set(session_ids)
    consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        # Of all topics, because asking for one by name would make it.
        cluster = await consumer._client.fetch_all_metadata()
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(cluster.partitions_for_topic(topic) or ())
        ]
        if not partitions:
            return []
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning(*partitions)
        found: list[Row] = []
        left = {tp for tp in partitions if ends[tp] > 0}
        while left:
            for tp, records in (await consumer.getmany(*left, timeout_ms=200)).items():
                found += [_row(record) for record in records if record.offset < ends[tp]]
            for tp in list(left):
                if await consumer.position(tp) >= ends[tp]:
                    left.discard(tp)
                    consumer.pause(tp)
        return [row for row in found if wanted is None or row.headers.get("affidavit-session") in wanted]
    finally:
        await consumer.stop()


def _row(record: Any) -> Row:
    headers = {name: value.decode() for name, value in record.headers}
    return Row(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        headers,
    )


def in_topic_order(found: Iterable[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset))


def events(found: Iterable[Row]) -> list[dict[str, Any]]:
    """One session's events by sequence, repeats and all."""
    return sorted((row.event for row in found), key=lambda event: event["metadata"]["sequence"])
