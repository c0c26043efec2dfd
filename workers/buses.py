"""Which event bus a worker publishes to, and whether it is in order before the worker starts."""

from __future__ import annotations

import logging

from temporalio import activity

from activities.buses.base import EventBus
from activities.buses.sqlite import SqliteBus
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.errors import KafkaUnreachable, TopicsWrong
from workers.settings import SettingsError, WorkerSettings

logger = logging.getLogger(__name__)


def make_bus(settings: WorkerSettings) -> EventBus:
    """The bus that the settings name; nothing is connected yet.

    Raises:
        BusLogError: the embedded event log cannot be used.
        SettingsError, KafkaSettingsError: Kafka's client is not installed, or its settings do not fit.
    """
    if settings.kafka is None:
        return SqliteBus(settings.bus)
    try:
        from activities.buses.kafka import KafkaBus
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    settings.kafka.client_options()  # for its errors: a secret that is not there is found now
    return KafkaBus(settings.kafka, progress=activity.heartbeat)


async def check_bus(settings: WorkerSettings) -> None:
    """Compare the topics with the manifest, once, before any session is served.

    A cluster that does not answer is no reason to stay away: sessions are journaled, and published when it is back.

    Raises:
        KafkaSettingsError, KafkaRefused, TopicsWrong: what has to be mended first, in one line.
        SettingsError: Kafka's client is not installed.
    """
    if settings.kafka is None or "session" not in settings.roles:
        return
    try:
        await _check(settings.kafka)
    except KafkaUnreachable as error:
        logger.warning("%s; events wait in the journal until it is there", error)


async def _check(connection: KafkaConnection) -> None:
    try:
        from affidavit.kafka.admin import check
        from affidavit.kafka.manifest import Manifest
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    if found := await check(connection, Manifest.read(connection.topics)):
        raise TopicsWrong(found)


def _not_installed(error: ModuleNotFoundError) -> SettingsError:
    return SettingsError(f"AFFIDAVIT_KAFKA_BOOTSTRAP is set, but {error.name} is not installed (extra `kafka`)")
