"""Makes topics and compares them with the manifest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from affidavit.evidence.text import printable
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.errors import KafkaRefused, KafkaUnreachable
from affidavit.kafka.manifest import Manifest, Topic
from affidavit.kafka.reaching import why_not

LIMIT_S = 30.0
SEEN_LIMIT_S = 10.0
STOP_LIMIT_S = 2.0

_COMPARED = ("message.timestamp.type", "cleanup.policy", "retention.ms", "max.message.bytes", "min.insync.replicas")
_AT_LEAST = ("retention.ms", "max.message.bytes", "min.insync.replicas")
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as the cluster has it."""

    partitions: int
    replication: int
    configs: Mapping[str, str]


async def provision(connection: KafkaConnection, manifest: Manifest) -> list[str]:
    """Make the topics that are missing. Those that exist are left as they are: they may hold evidence.

    Returns:
        the names of the topics that were made.

    Raises:
        KafkaSettingsError, KafkaUnreachable, KafkaRefused: `KafkaRefused` also where the cluster does not make one.
    """
    async with _admin(connection) as admin:
        missing = [name for name, found in (await _describe(admin, manifest)).items() if found is None]
        if not missing:
            return []
        wanted = [
            NewTopic(name, topic.partitions, topic.replication, topic_configs=topic.configs)
            for name, topic in manifest.topics.items()
            if name in missing
        ]
        answer = await admin.create_topics(wanted)
        made = []
        for name, code, message in answer.topic_errors:
            error = for_code(code)
            if error is NoError:
                made.append(name)
            elif error is not TopicAlreadyExistsError:
                raise KafkaRefused(f"topic {name} is not made: {printable(message or error.__name__, 200)}")
        # A topic is there for others a moment after the answer.
        async with asyncio.timeout(SEEN_LIMIT_S):
            while None in (await _describe(admin, manifest)).values():  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.1)
        return made


async def check(connection: KafkaConnection, manifest: Manifest) -> list[str]:
    """Compare the cluster's topics with the manifest.

    Returns:
        a line for each difference; none where all is well.

    Raises:
        KafkaSettingsError, KafkaUnreachable, KafkaRefused.
    """
    async with _admin(connection) as admin:
        found = await _describe(admin, manifest)
    return [line for name, topic in manifest.topics.items() for line in differences(name, topic, found[name])]


def differences(name: str, wanted: Topic, found: Found | None) -> list[str]:
    """What is wrong with one topic, a line each; `found` is None where it is missing."""
    if found is None:
        return [f"topic {name} is missing; `affidavit topics provision` makes it"]
    lines = []
    if found.partitions != wanted.partitions:
        lines.append(f"topic {name} has {found.partitions} partitions, not {wanted.partitions}")
    if found.replication < wanted.replication:
        lines.append(f"topic {name} has {found.replication} replicas, not {wanted.replication}")
    for key, value in wanted.configs.items():
        actual = found.configs.get(key)
        if actual is None or actual == value or (key in _AT_LEAST and _enough(key, actual, value)):
            continue
        lines.append(f"topic {name} has {key}={printable(actual)}, not {value}")
    return lines


def _enough(key: str, actual: str, wanted: str) -> bool:
    try:
        number = int(actual)
    except ValueError:
        return False
    return number >= int(wanted) or (key == "retention.ms" and number == UNLIMITED)


async def _describe(admin: AIOKafkaAdminClient, manifest: Manifest) -> dict[str, Found | None]:
    """The topics of the manifest as they are. Asking never makes one, whatever the broker is set to."""
    names = list(manifest.topics)
    # Not `describe_topics`, which lets the broker make what it is asked for.
    answer = await admin._send_request(MetadataRequest(names, allow_auto_topic_creation=False))
    found: dict[str, Found | None] = dict.fromkeys(names)
    there = {}
    for topic in answer.to_object()["topics"]:
        error = for_code(topic["error_code"])
        if error is TopicAuthorizationFailedError:
            raise KafkaRefused(f"Kafka does not let this user see topic {topic['topic']}")
        if error is not UnknownTopicOrPartitionError and error is not NoError:
            raise KafkaUnreachable(f"topic {topic['topic']} cannot be described now: {error.__name__}")
        if error is NoError:
            there[topic["topic"]] = topic["partitions"]
    configs = await _configs(admin, list(there))
    for name, partitions in there.items():
        replication = min((len(partition["replicas"]) for partition in partitions), default=0)
        found[name] = Found(len(partitions), replication, configs[name])
    return found


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """Settings by topic; empty for one whose settings this user may not see, which a publisher need not."""
    if not names:
        return {}
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(_COMPARED, "")) for name in names]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for answer in await admin.describe_configs(wanted):
        for _code, _message, _kind, name, entries in answer.resources:
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


@asynccontextmanager
async def _admin(connection: KafkaConnection) -> AsyncIterator[AIOKafkaAdminClient]:
    options: dict[str, Any] = connection.client_options()
    admin = AIOKafkaAdminClient(**options)
    try:
        async with asyncio.timeout(LIMIT_S):
            try:
                await admin.start()
            except (KafkaError, OSError, TimeoutError):
                raise await why_not(options) from None
            yield admin
    except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
        raise KafkaRefused("Kafka does not let this user describe or make topics") from None
    except (KafkaError, TimeoutError, OSError) as error:
        raise KafkaUnreachable(f"Kafka did not answer a question about topics: {type(error).__name__}") from None
    finally:
        # Closing waits for brokers, and one may be gone.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_LIMIT_S):
                await admin.close()
