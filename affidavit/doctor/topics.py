"""The check of the Kafka cluster that events go to: that it lets us in, and has the topics of the manifest."""

from __future__ import annotations

import logging

from affidavit.doctor.places import KAFKA
from affidavit.doctor.report import Verdict


async def topics() -> Verdict:
    """What `affidavit topics check` compares, as a verdict. Publishes nothing and makes no topic."""
    # Its client reports to the log what is told here in one line.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        from affidavit.kafka import admin
        from affidavit.kafka.connection import KafkaConnection
        from affidavit.kafka.errors import KafkaRefused, KafkaSettingsError, KafkaUnreachable
        from affidavit.kafka.manifest import Manifest
    except ModuleNotFoundError as error:
        return Verdict("failed", f"{KAFKA} is set, but {error.name} is not installed", "install affidavit[kafka]")
    try:
        connection = KafkaConnection.from_environment()
        manifest = Manifest.read(connection.topics)
        differences = await admin.check(connection, manifest)
    except KafkaSettingsError as error:
        return Verdict("failed", str(error), "see the settings in docs/kafka.md")
    except KafkaRefused as error:
        return Verdict("failed", str(error), "no worker publishes with these settings; see docs/kafka.md")
    except KafkaUnreachable as error:
        return Verdict("failed", str(error), f"see {KAFKA} and the brokers; sessions go on, and wait to publish")
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        return Verdict("failed", f"{differences[0]}{more}", "`affidavit topics check` lists all; no worker starts so")
    number = len(manifest.topics)
    return Verdict("ok", f"Kafka, {number} topics as the manifest says; whether this user may write was not tried")
