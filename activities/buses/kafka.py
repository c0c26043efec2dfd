"""The event bus on Apache Kafka: every uid once on its topic, through retries, kills and outages (docs/kafka.md).

How: an idempotent producer makes each send happen once; what it cannot know, whether an attempt before this one has
sent, is looked up on the topic. The limits below see to it that no attempt still writes when the next one looks: a
call ends, and its producer with it, before its heartbeat has been missed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from activities.buses.base import Ack, BusRecord
from activities.buses.kafka_errors import missing, translated
from activities.buses.kafka_lookup import look_up as find
from activities.buses.kafka_producer import Producer, ProducerPool
from activities.errors import PermanentPublishError, TransientError
from affidavit.evidence.text import printable
from affidavit.kafka.connection import KafkaConnection

RECORDS_PER_CALL: Final = 1000

LOOK_UP_LIMIT_S: Final = 8.0
"""Reading topics may take so long, with a heartbeat at every step; nothing is sent meanwhile."""
DELIVERY_LIMIT_S: Final = 4.5
"""From the heartbeat before the first send to the last acknowledgement. Together with the request timeout (3 s) and
the 2 s for which a heartbeat may be held back it is under the heartbeat timeout (10 s)."""

BATCH_BYTES: Final = 512 * 1024
"""Records share a batch up to so many bytes, below any topic's limit; a larger one is alone in its own."""
RECORD_OVERHEAD: Final = 512
"""Headers and framing."""
RECORD_LIMIT: Final = 96 * 1024 * 1024
"""A larger record does not fit into any request that a broker reads (socket.request.max.bytes)."""

LOOK_UPS_AT_ONCE: Final = 4

Phase = Literal["connecting", "looking up", "sending"]


def _nobody(_: Phase) -> None:
    """Nobody wants to know."""


class KafkaBus:
    """An `EventBus` on Kafka. Belongs to the event loop it is made in; no topic is ever made by it."""

    def __init__(self, connection: KafkaConnection, *, progress: Callable[[Phase], None] = _nobody) -> None:
        """Nothing is connected yet.

        Args:
            connection: the cluster.
            progress: called as a call goes on, to heartbeat for it; at the latest right before it sends.
        """
        self._connection = connection
        self._progress = progress
        self._producers = ProducerPool(connection)
        self._partitioner = DefaultPartitioner()
        # One batch of a partition at a time: the client keeps its order, but wakes everybody for each one.
        self._turns: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._look_ups = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        """See `EventBus.publish`; at most 1 000 records.

        Cancelled, or out of time, it aborts the producer before it returns: nothing it was given is sent later.
        """
        if len(records) > RECORDS_PER_CALL:
            raise ValueError(f"at most {RECORDS_PER_CALL} records a call")
        if not records:
            return []
        for record in records:
            if len(record.value) > RECORD_LIMIT:
                raise PermanentPublishError("a record is too large for any broker")
        self._progress("connecting")
        async with self._producers.producer() as producer:
            placed = await self._placed(producer, records)
            known = await self._known(placed) if look_up else {}
            await self._deliver(producer, placed, known)
            return [known[record.uid] for record in records]

    async def close(self) -> None:
        """See `EventBus.close`; does not wait for a broker."""
        await self._producers.close()

    async def _placed(self, producer: Producer, records: Sequence[BusRecord]) -> dict[TopicPartition, list[BusRecord]]:
        """The records by the partition that their key names, in order."""
        placed: dict[TopicPartition, list[BusRecord]] = defaultdict(list)
        for record in records:
            partitions = await self._partitions(producer, record.topic)
            # Every event of a session has its key, so a session's events of a class are in one partition, in order.
            partition = self._partitioner(record.key.encode(), partitions, partitions)
            placed[TopicPartition(record.topic, partition)].append(record)
        return placed

    async def _partitions(self, producer: Producer, topic: str) -> list[int]:
        # Of the client's picture of all topics: asked about one by name, it would let the broker make it.
        cluster = producer.inner.client.cluster
        found = cluster.partitions_for_topic(topic)
        if found is None:
            try:
                async with asyncio.timeout(self._connection.request_timeout_s):
                    await producer.inner.client.force_metadata_update()
            except TimeoutError:
                raise TransientError("Kafka does not answer") from None
            found = cluster.partitions_for_topic(topic)
        if not found:
            raise missing(topic)
        return sorted(found)

    async def _known(self, placed: dict[TopicPartition, list[BusRecord]]) -> dict[str, Ack]:
        self._progress("looking up")
        try:
            options = self._connection.client_options()
            async with asyncio.timeout(LOOK_UP_LIMIT_S), self._look_ups:
                return await find(options, placed, lambda: self._progress("looking up"))
        except TimeoutError:
            raise TransientError("what is on the topics could not be read in time") from None
        except Exception as error:  # noqa: BLE001 - each is given its meaning
            raise translated(error, next(iter(placed)).topic) from None

    async def _deliver(
        self, producer: Producer, placed: dict[TopicPartition, list[BusRecord]], known: dict[str, Ack]
    ) -> None:
        """Send what is not known, and add its acknowledgements to `known`."""
        # Counted from before the heartbeat: a process that is stopped here, and goes on too late, sends nothing.
        deadline = asyncio.get_running_loop().time() + DELIVERY_LIMIT_S
        self._progress("sending")
        unanswered: set[TopicPartition] = set()
        try:
            async with asyncio.timeout_at(deadline):
                # All are waited for, also when one has failed: nothing may be under way when this returns.
                failures = await asyncio.gather(
                    *(self._send(producer, tp, records, known, unanswered) for tp, records in placed.items()),
                    return_exceptions=True,
                )
        except TimeoutError:
            raise TransientError("Kafka has not acknowledged in time") from None
        finally:
            if unanswered:
                # Others on this producer get an error, look their records up and send again.
                producer.abort()
        _raise_worst(failures)

    async def _send(
        self,
        producer: Producer,
        tp: TopicPartition,
        records: Sequence[BusRecord],
        known: dict[str, Ack],
        unanswered: set[TopicPartition],
    ) -> None:
        """Send a partition's records, batch after batch; `unanswered` holds the partition while one is under way."""
        for batch in _batches([record for record in records if record.uid not in known]):
            async with self._turns[tp]:
                if not producer.usable:
                    raise _given_up()
                if producer.inner.client.cluster.leader_for_partition(tp) in (None, -1):
                    producer.inner.client.force_metadata_update()
                    raise TransientError(f"{printable(tp.topic)}: a partition has no leader now")
                builder = producer.inner.create_batch()
                for record in batch:
                    headers = [(name, value.encode()) for name, value in record.headers.items()]
                    builder.append(
                        timestamp=record.time_ms, key=record.key.encode(), value=record.value, headers=headers
                    )
                builder.close()
                unanswered.add(tp)
                try:
                    answer = await (await producer.inner.send_batch(builder, tp.topic, partition=tp.partition))
                except (KafkaError, OSError, TimeoutError) as error:
                    # What the broker has not taken leaves a hole in the producer's numbers.
                    producer.usable = False
                    unanswered.discard(tp)
                    raise _given_up() if producer.aborted else translated(error, tp.topic) from None
                unanswered.discard(tp)
            if answer is None or answer.offset < 0:
                raise TransientError(f"{printable(tp.topic)}: acknowledged without an offset; it is looked up")
            for number, record in enumerate(batch):
                known[record.uid] = Ack(tp.topic, tp.partition, answer.offset + number)


def _given_up() -> TransientError:
    return TransientError("the connection to Kafka was given up; it is made anew")


def _batches(records: Sequence[BusRecord]) -> Iterator[list[BusRecord]]:
    """Cut records, in order, into what goes into one batch."""
    batch: list[BusRecord] = []
    size = 0
    for record in records:
        more = len(record.value) + len(record.key) + RECORD_OVERHEAD
        if batch and size + more > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch


def _raise_worst(failures: Sequence[BaseException | None]) -> None:
    """Raise the failure that no retry mends, else any."""
    raised = [failure for failure in failures if failure is not None]
    for failure in sorted(raised, key=lambda each: not isinstance(each, PermanentPublishError)):
        raise failure
