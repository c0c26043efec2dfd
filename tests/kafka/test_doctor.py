"""`affidavit doctor` on a Kafka cluster: reached, compared with the manifest, and no secret told."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from affidavit.doctor.places import Places
from affidavit.doctor.report import Finding, Verdict, always, examine
from affidavit.doctor.topics import topics
from tests.kafka.conftest import manifest_text
from tests.kafka.test_security import secured
from tests.support.kafka_broker import Broker


async def checked(limit_s: float = 40, **variables: str) -> Finding:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(f"AFFIDAVIT_KAFKA_{name}", value)
        (finding,) = await examine({"event bus": topics}, limit_s=limit_s)
    return finding


async def test_topics_in_order_are_ok(kafka: Broker) -> None:
    finding = await checked(BOOTSTRAP=kafka.plain, TOPICS=str(kafka.manifest))
    assert (finding.status, finding.what) == (
        "ok",
        "Kafka, 6 topics as the manifest says; whether this user may write was not tried",
    )


async def test_topics_that_differ_fail_and_none_is_made(kafka: Broker, tmp_path: Path) -> None:
    file = tmp_path / "topics.yaml"
    new = f"agent.test-{uuid.uuid4()}"
    file.write_text(manifest_text(new))
    for _ in range(2):
        finding = await checked(BOOTSTRAP=kafka.plain, TOPICS=str(file))
        assert finding.status == "failed"
        assert finding.what == f"topic {new} is missing; `affidavit topics provision` makes it"
    file.write_text(manifest_text(partitions=4))
    finding = await checked(BOOTSTRAP=kafka.plain, TOPICS=str(file))
    assert finding.what == "topic agent.tool_call has 8 partitions, not 4 (and 5 more)"


async def test_i1_credentials_that_are_refused_fail_and_are_not_told(own_kafka: Broker, tmp_path: Path) -> None:
    wrong = secured(own_kafka, tmp_path, password="planted-secret")
    finding = await checked(
        BOOTSTRAP=own_kafka.secure,
        TLS="true",
        TLS_CA_FILE=str(wrong["tls_ca_file"]),
        USERNAME=wrong["username"],
        PASSWORD_FILE=str(wrong["password_file"]),
    )
    assert finding.status == "failed"
    assert finding.what.startswith("Kafka refuses the credentials")
    assert "planted" not in repr(finding)


async def test_no_broker_and_bad_settings_fail() -> None:
    finding = await checked(BOOTSTRAP="127.0.0.1:1")
    assert (finding.status, finding.what) == ("failed", "no Kafka broker answers")
    finding = await checked(BOOTSTRAP="127.0.0.1:1", USERNAME="user", PASSWORD="planted-secret")
    assert finding.status == "failed"
    assert "credentials are sent over TLS only" in finding.what
    assert "planted" not in repr(finding)


async def test_a_broker_that_says_nothing_is_given_up() -> None:
    async with asyncio.timeout(60), await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as silent:
        host, port = silent.sockets[0].getsockname()
        finding = await checked(limit_s=1, BOOTSTRAP=f"{host}:{port}")
        assert (finding.status, finding.what) == ("failed", "no answer within 1 s")


def test_the_environment_says_whether_events_go_to_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from affidavit.cli import doctor

    asked = always(Verdict("ok", "asked"))
    monkeypatch.setattr(doctor, "topics", asked)
    at = {"AFFIDAVIT_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    assert doctor._of_machine(Places.told(at, tmp_path))["event bus"] is asked
    assert doctor._of_machine(Places.told({}, tmp_path))["event bus"] is not asked
