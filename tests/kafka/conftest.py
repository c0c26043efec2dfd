"""A real broker for all of these tests; they are skipped, with the reason, where there is none and none can be started.

AFFIDAVIT_TEST_KAFKA names one to use instead (`host:port`, no TLS, at least one broker): what has to stop, cut or
secure a broker is skipped with it. With CI=true, on a machine with Maven, a broker that cannot be started is a failure.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import yaml

from activities.buses.kafka import KafkaBus
from affidavit.kafka.admin import provision
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.manifest import Manifest
from tests.support.kafka_broker import Broker, NoBroker, broker, can_start
from tests.support.kafka_topics import TOPICS

GIVEN = "AFFIDAVIT_TEST_KAFKA"
DEFAULTS = {"partitions": 8, "replication": 1, "min_insync_replicas": 1, "max_message_bytes": 4_000_000}


def manifest_text(*more: str, **changes: int) -> str:
    """A manifest for one broker, with further topics and other defaults."""
    topics: dict[str, dict[str, int]] = {name: {} for name in (*TOPICS, *more)}
    return yaml.safe_dump({"defaults": {**DEFAULTS, **changes}, "topics": topics}, sort_keys=False)


MANIFEST = Manifest.parse(manifest_text().encode(), "topics.yaml")


def missing(reason: str) -> None:
    """Skip, or fail where a skip would hide that nothing is tested."""
    if os.environ.get("CI") == "true" and can_start():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest_asyncio.fixture(scope="session")
async def some_kafka(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that has the topics."""
    async with AsyncExitStack() as stack:
        if given := os.environ.get(GIVEN):
            found = Broker(plain=given)
        else:
            try:
                found = await stack.enter_async_context(broker(tmp_path_factory.mktemp("kafka") / "broker"))
            except NoBroker as error:
                missing(str(error))
        found.manifest = tmp_path_factory.mktemp("topics") / "topics.yaml"
        found.manifest.write_text(manifest_text())
        await provision(KafkaConnection(bootstrap=found.plain), MANIFEST)
        yield found


@pytest.fixture
def kafka(some_kafka: Broker) -> Broker:
    """The broker, which a test may use and leaves as it was."""
    return some_kafka


@pytest_asyncio.fixture
async def own_kafka(some_kafka: Broker) -> AsyncIterator[Broker]:
    """The broker, which a test may stop or cut off; it is there again for the next test."""
    if not some_kafka.ours:
        pytest.skip(f"the broker of {GIVEN} is not ours to stop, cut or secure")
    assert some_kafka.proxy is not None
    yield some_kafka
    some_kafka.proxy.mute = some_kafka.proxy.closed = False
    await some_kafka.start()


MakeBus = Callable[..., KafkaBus]


@pytest_asyncio.fixture
async def make_bus(kafka: Broker) -> AsyncIterator[MakeBus]:
    """Makes buses as workers have them; all are closed in the end."""
    made: list[Callable[[], Awaitable[None]]] = []

    def make(address: str | None = None, **settings: object) -> KafkaBus:
        bus = KafkaBus(KafkaConnection(bootstrap=address or kafka.plain, **settings))
        made.append(bus.close)
        return bus

    yield make
    for close in made:
        await close()
