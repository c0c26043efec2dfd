"""The worker's producer: one for all sessions, replaced when it can no longer be trusted, and ended for certain.

aiokafka's idempotent producer numbers the batches of each partition, and the broker takes them in that order only.
A batch that was refused leaves a hole in the numbers that nothing fills; it also repeats an unanswered batch for ever,
and its `stop` waits for that. So a producer that failed is put aside for those who still wait on it, and one that
could still write after its time is aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError

from activities.errors import PermanentPublishError, TransientError
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.errors import KafkaSettingsError
from affidavit.kafka.reaching import why_not

logger = logging.getLogger(__name__)

START_LIMIT_S = 4.0
STOP_LIMIT_S = 1.0
TICK_S = 0.5
SLEEP_LIMIT_S = 3.0
"""Less than what a heartbeat timeout leaves, far more than a busy event loop takes."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: what the kernel has not sent yet is dropped."""


class Producer:
    """A started producer and those who use it."""

    def __init__(self, inner: AIOKafkaProducer) -> None:
        self.inner = inner
        self.usable = True
        self.users = 0
        self.aborted = False
        self._requests: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._ticked = self._loop.time()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._ask: Callable[..., Awaitable[Any]] = inner.client.send
        # Every request goes this way, so that `abort` can reach those that still wait for their connection.
        inner.client.send = self._send

    async def _send(self, *arguments: Any, **options: Any) -> Any:
        if self._has_slept():
            self.abort()
        if self.aborted:
            raise KafkaError("the producer is aborted")
        request = asyncio.ensure_future(self._ask(*arguments, **options))
        self._requests.add(request)
        try:
            return await request
        finally:
            self._requests.discard(request)

    def _tick(self) -> None:
        if self._has_slept():
            self.abort()
        else:
            self._ticked = self._loop.time()
            self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _has_slept(self) -> bool:
        """Whether the process was stopped for so long that others may have begun to do its work.

        What was about to be sent when it stopped would be the first thing it does, before any time limit is noticed.
        """
        return self._loop.time() - self._ticked > SLEEP_LIMIT_S

    def abort(self) -> None:
        """See that nothing more is sent: what was handed to the producer and is not on the network never will be.

        Returns at once. Whoever waits for an acknowledgement gets an error.
        """
        if self.aborted:
            return
        self.aborted, self.usable = True, False
        self._ticker.cancel()
        sender = self.inner._sender.sender_task
        if sender is not None:
            # Its own last words expect a transaction, and are an error in the log without one.
            sender.remove_done_callback(self.inner._sender._fail_all)
            sender.cancel()
        for request in self._requests:
            request.cancel()
        for connection in self.inner.client._conns.values():
            writer = connection._writer
            if writer is not None:
                with contextlib.suppress(OSError, AttributeError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                writer.transport.abort()
        waiting = self.inner._message_accumulator
        batches = [*chain.from_iterable(waiting._batches.values()), *waiting._pending_batches]
        waiting.fail_all(KafkaError("the producer was aborted"))
        for batch in batches:  # some have nobody left who waits for them
            _seen(batch.future)
            _seen(batch._drain_waiter)

    async def close(self) -> None:
        """Abort it and let go of what it holds; takes a bounded time."""
        self.abort()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            async with asyncio.timeout(STOP_LIMIT_S):
                sender = self.inner._sender.sender_task
                if sender is not None:
                    await asyncio.wait([sender])
                    _seen(sender)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_LIMIT_S):
                await self.inner.client.close()
        self.inner._closed = True


class ProducerPool:
    """Holds the one producer of a worker process, which belongs to the running event loop."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._current: Producer | None = None
        self._all: set[Producer] = set()
        self._starting: asyncio.Task[Producer] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        """The producer, started or replaced if need be, for the length of a block.

        Who finds that it can no longer be trusted sets `usable` to False: it is closed when the last has left it, and
        the next one gets another. Who leaves it with a batch under way has to `abort` it.

        Raises:
            TransientError: there is none to be had now.
            PermanentPublishError: this user may not publish at all.
        """
        producer = await self._usable()
        producer.users += 1
        try:
            yield producer
        finally:
            producer.users -= 1
            if not producer.usable:
                self._put_aside(producer)

    async def close(self) -> None:
        """End all producers, whoever uses them."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        for producer in list(self._all):
            producer.abort()
            self._put_aside(producer, now=True)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _usable(self) -> Producer:
        if self._closed:
            raise TransientError("the event bus is closed")
        current = self._current
        if current is not None and current.usable and not _is_broken(current):
            return current
        if current is not None:
            current.usable = False
            self._put_aside(current)
            self._current = None
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._started())
            # Nobody may be left who asks for its error.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        # One start for all who wait: one after the other would wait for each other's time limits.
        return await asyncio.shield(self._starting)

    async def _started(self) -> Producer:
        try:
            options = self._connection.client_options()
        except KafkaSettingsError as error:
            raise TransientError(str(error)) from None
        # Batches are built by us, and no record is cut or refused by the client: the topic's own limit is the limit.
        inner = AIOKafkaProducer(**options, acks="all", enable_idempotence=True, max_batch_size=1 << 30)
        producer = Producer(inner)
        self._all.add(producer)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await inner.start()
        except BaseException as error:
            producer.usable = False
            self._put_aside(producer)
            if isinstance(error, ClusterAuthorizationFailedError):
                raise PermanentPublishError("Kafka does not let this user write to the cluster") from None
            if not isinstance(error, KafkaError | OSError | TimeoutError):
                raise
            raise TransientError(str(await why_not(options))) from None
        logger.info("connected to Kafka")
        self._current = producer
        return producer

    def _put_aside(self, producer: Producer, *, now: bool = False) -> None:
        """Close a producer that is not to be used, once nobody waits on it any more."""
        if producer not in self._all or (producer.users and not now):
            return
        self._all.discard(producer)
        if self._current is producer:
            self._current = None
        # In a task of its own: whoever put it aside may be cancelled, and must not wait.
        closing = asyncio.create_task(producer.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _seen(future: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for, which would be told to the log otherwise."""
    if future.done() and not future.cancelled():
        future.exception()


def _is_broken(producer: Producer) -> bool:
    """Whether its sender has ended, after which nothing is ever sent."""
    sender = producer.inner._sender.sender_task
    return sender is None or sender.done()
