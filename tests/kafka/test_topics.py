"""`affidavit topics`, and a worker that is started on topics which are not in order."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from affidavit import cli
from tests.kafka.conftest import manifest_text
from tests.kafka.test_security import secured
from tests.support.kafka_broker import Broker
from tests.support.kafka_topics import TOPICS
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from workers.devserver import DevServer


def manifest(tmp_path: Path, *more: str, **changes: int) -> str:
    """A file like the one that the broker's topics were made from, with further topics and other defaults."""
    file = tmp_path / "topics.yaml"
    file.write_text(manifest_text(*more, **changes))
    return str(file)


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Affidavit = Callable[..., Awaitable[Said]]


@pytest.fixture
def affidavit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Affidavit:
    """Runs `affidavit topics` with `AFFIDAVIT_KAFKA_*` variables."""

    async def run(*arguments: str, **variables: str) -> Said:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"AFFIDAVIT_KAFKA_{name}", value)
            code = await asyncio.to_thread(cli.run, ["topics", *arguments])
        return Said(code, *capsys.readouterr())

    return run


async def test_topics_are_made_once_and_checked(kafka: Broker, affidavit: Affidavit, tmp_path: Path) -> None:
    new = f"agent.test-{uuid.uuid4()}"
    file = manifest(tmp_path, new)
    at = {"BOOTSTRAP": kafka.plain, "TOPICS": file}
    checked = await affidavit("check", **at)
    assert (checked.code, checked.out) == (
        1,
        f"topic {new} is missing; `affidavit topics provision` makes it\n",
    )
    made = await affidavit("provision", "--json", **at)
    assert (made.code, json.loads(made.out)) == (
        0,
        {"topics": [*TOPICS, new], "made": [new], "differences": []},
    )
    again = await affidavit("provision", **at)
    assert (again.code, again.out) == (0, "7 topics are as the manifest says\n")
    # Made as the manifest says, and not as the broker's defaults are: one partition, a week, a megabyte.
    other = manifest(tmp_path, new, partitions=4, retention_hours=721, max_message_bytes=4_000_001)
    differs = await affidavit("check", "--manifest", other, BOOTSTRAP=kafka.plain)
    assert differs.code == 1
    assert f"topic {new} has 8 partitions, not 4\n" in differs.out
    assert f"topic {new} has retention.ms=2592000000, not 2595600000\n" in differs.out
    assert f"topic {new} has max.message.bytes=4000000, not 4000001\n" in differs.out


async def test_what_cannot_be_done_is_one_line(own_kafka: Broker, affidavit: Affidavit, tmp_path: Path) -> None:
    too_many = manifest(tmp_path, f"agent.test-{uuid.uuid4()}", replication=3)
    refused = await affidavit("provision", "--manifest", too_many, BOOTSTRAP=own_kafka.plain)
    assert refused.code == 1
    assert "is not made: " in refused.err
    assert "replication" in refused.err.lower()
    nobody = await affidavit("check", BOOTSTRAP="127.0.0.1:1")
    assert (nobody.code, nobody.err) == (4, "error: no Kafka broker answers\n")
    unset = await affidavit("check")
    assert (unset.code, unset.err) == (
        2,
        "error: no Kafka cluster: set AFFIDAVIT_KAFKA_BOOTSTRAP to host:port of a broker\n",
    )
    wrong = secured(own_kafka, tmp_path, password="wrong")
    told = await affidavit(
        "check",
        BOOTSTRAP=own_kafka.secure,
        TLS="true",
        TLS_CA_FILE=str(wrong["tls_ca_file"]),
        USERNAME=wrong["username"],
        PASSWORD_FILE=str(wrong["password_file"]),
    )
    assert told.code == 1
    assert told.err.count("\n") == 1
    assert told.err.startswith("error: Kafka refuses the credentials")


async def test_a_worker_does_not_start_on_wrong_topics(
    kafka: Broker, rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    new = f"agent.test-{uuid.uuid4()}"
    env = environment(
        rig,
        server.address,
        AFFIDAVIT_KAFKA_BOOTSTRAP=kafka.plain,
        AFFIDAVIT_KAFKA_TOPICS=manifest(tmp_path, new),
    )
    async with process(WORKERS, env, tmp_path / "log") as worker:
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 2
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last == f"error: topic {new} is missing; `affidavit topics provision` makes it; see `affidavit topics check`"


async def test_a_worker_starts_while_no_broker_answers(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    """E1: sessions go on; what they have to publish waits in the journal."""
    env = environment(rig, server.address, AFFIDAVIT_KAFKA_BOOTSTRAP="127.0.0.1:1")
    async with process(WORKERS, env, tmp_path / "log") as worker:
        session = await rig.open()
        await session.record({"kind": "tool_result", "content": 1})
        await session.flush()
        view = await session.view()
        assert (view.state, view.published_through) == ("open", -1)
        worker.terminate()
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
    assert "no Kafka broker answers; events wait in the journal until it is there" in (tmp_path / "log").read_text()
