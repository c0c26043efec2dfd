"""TLS and SASL on a real listener: who gets in, and what everybody else is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.errors import PermanentPublishError, TransientError
from affidavit.kafka.admin import check
from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.errors import KafkaRefused, KafkaUnreachable
from tests.kafka.conftest import MANIFEST, MakeBus
from tests.kafka.test_bus import record, session
from tests.support.kafka_broker import BARRED, PASSWORD, USER, Broker
from tests.support.kafka_topics import rows


def secured(kafka: Broker, tmp_path: Path, *, password: str = PASSWORD, **changes: Any) -> dict[str, Any]:
    """Settings for the secure listener, the password in a file."""
    file = tmp_path / "kafka.password"
    file.write_text(password + "\n")
    file.chmod(0o600)
    return {"tls": True, "tls_ca_file": kafka.ca, "username": USER, "password_file": file, **changes}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_records_go_over_tls_with_each_mechanism(
    own_kafka: Broker, make_bus: MakeBus, tmp_path: Path, mechanism: str
) -> None:
    sid = session()
    bus = make_bus(own_kafka.secure, **secured(own_kafka, tmp_path, sasl_mechanism=mechanism))
    acks = await bus.publish([record(0, sid)], look_up=False)
    assert await bus.publish([record(0, sid)], look_up=True) == acks
    assert len(await rows(own_kafka.plain, [sid])) == 1


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_e1_a_wrong_password_is_retried_and_named(
    own_kafka: Broker, make_bus: MakeBus, tmp_path: Path, mechanism: str
) -> None:
    """An operator's to mend: the file is read again for every attempt, so no worker has to be restarted."""
    settings = secured(own_kafka, tmp_path, password="wrong", sasl_mechanism=mechanism)
    bus = make_bus(own_kafka.secure, **settings)
    with pytest.raises(TransientError, match=r"\AKafka refuses the credentials") as told:
        await bus.publish([record(0, session())], look_up=False)
    assert "wrong" not in str(told.value)
    with pytest.raises(KafkaRefused, match="refuses the credentials"):
        await check(KafkaConnection(bootstrap=own_kafka.secure, **settings), MANIFEST)
    (tmp_path / "kafka.password").write_text(PASSWORD)
    await bus.publish([record(0, session())], look_up=False)


async def test_a_user_without_the_right_to_write_is_a_permanent_failure(
    own_kafka: Broker, make_bus: MakeBus, tmp_path: Path
) -> None:
    bus = make_bus(own_kafka.secure, **secured(own_kafka, tmp_path, username=BARRED))
    with pytest.raises(PermanentPublishError, match="does not let this user write"):
        await bus.publish([record(0, session())], look_up=False)


async def test_a_certificate_that_is_not_trusted_is_refused(
    own_kafka: Broker, make_bus: MakeBus, tmp_path: Path
) -> None:
    bus = make_bus(own_kafka.secure, **secured(own_kafka, tmp_path, tls_ca_file=None))
    with pytest.raises(TransientError, match=r"\Athe Kafka broker's certificate is not trusted"):
        await bus.publish([record(0, session())], look_up=False)


async def test_tls_and_plain_text_do_not_meet(own_kafka: Broker, tmp_path: Path) -> None:
    with pytest.raises(KafkaUnreachable, match="ends our connection at once; does its listener want TLS"):
        await check(KafkaConnection(bootstrap=own_kafka.secure), MANIFEST)
    with pytest.raises(KafkaUnreachable, match="ends our connection at once; does its listener speak TLS"):
        await check(KafkaConnection(bootstrap=own_kafka.plain, **secured(own_kafka, tmp_path)), MANIFEST)
