"""The arithmetic on which exactly-once rests: no attempt still writes when the next one looks up."""

from __future__ import annotations

import aiokafka.errors as kafka
import pytest

from activities.buses import base, kafka_lookup, kafka_producer
from activities.buses import kafka as bus
from activities.buses.kafka_errors import translated
from activities.errors import IntegrityError, PermanentPublishError, TransientError
from activities.publishing import RECORDS_PER_CALL
from affidavit.kafka import reaching
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.errors import KafkaRefused

REQUEST_S = 3
HEARTBEAT_S, THROTTLE_S, START_TO_CLOSE_S = 10, 2, 30
"""workflows/stages.py (publish) and workers/worker.py."""


def test_a_send_is_over_before_its_heartbeat_is_missed() -> None:
    assert KafkaConnection().request_timeout_s == REQUEST_S
    assert bus.DELIVERY_LIMIT_S + REQUEST_S + THROTTLE_S < HEARTBEAT_S
    assert bus.LOOK_UP_LIMIT_S < HEARTBEAT_S


def test_a_call_is_over_before_its_attempt_is() -> None:
    start = kafka_producer.START_LIMIT_S + reaching.PROBES * reaching.PROBE_LIMIT_S
    look_up = bus.LOOK_UP_LIMIT_S + kafka_lookup.STOP_LIMIT_S
    assert start + REQUEST_S + look_up + bus.DELIVERY_LIMIT_S <= base.CALL_LIMIT_S
    assert base.CALL_LIMIT_S < START_TO_CLOSE_S
    assert RECORDS_PER_CALL == bus.RECORDS_PER_CALL == 1000


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (kafka.MessageSizeTooLargeError(), PermanentPublishError, "agent.session: a record is too large for the topic"),
        (
            kafka.TopicAuthorizationFailedError("agent.session"),
            PermanentPublishError,
            "agent.session: Kafka does not let this user write to the topic",
        ),
        (kafka.InvalidTopicError(), PermanentPublishError, "agent.session: the topic's name is not one Kafka takes"),
        (
            kafka.UnknownTopicOrPartitionError(),
            TransientError,
            "topic agent.session is missing; `affidavit topics provision` makes it",
        ),
        (kafka.OutOfOrderSequenceNumber(), TransientError, "agent.session: OutOfOrderSequenceNumber"),
        (kafka.NotEnoughReplicasError(), TransientError, "agent.session: NotEnoughReplicasError"),
        (kafka.KafkaConnectionError("to kafka-1.internal:9092"), TransientError, "agent.session: KafkaConnectionError"),
        (OSError(111, "refused"), TransientError, "agent.session: ConnectionRefusedError"),
        (TimeoutError(), TransientError, "agent.session: Kafka has not acknowledged in time"),
        (KafkaRefused("Kafka refuses the credentials"), TransientError, "Kafka refuses the credentials"),
        (IntegrityError("as it is"), IntegrityError, "as it is"),
    ],
)
def test_what_each_error_means(error: Exception, kind: type[Exception], message: str) -> None:
    found = translated(error, "agent.session")
    assert (type(found), str(found)) == (kind, message)
