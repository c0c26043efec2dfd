"""The embedded bus: dense offsets, every uid once, durable, readable from another process."""

# ruff: noqa: ASYNC240 - small local files

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.buses.base import Ack, BusRecord, EventBus
from activities.buses.sqlite import SqliteBus
from activities.errors import IntegrityError, TransientError
from affidavit.buslog import BusLogError, BusLogReader

ROOT = Path(__file__).parents[3]


def record(uid: str, *, topic: str = "agent.session", value: bytes | None = None, session: str = "s") -> BusRecord:
    return BusRecord(
        topic=topic,
        key="instance-1",
        value=b'{"uid":"%b"}' % uid.encode() if value is None else value,
        uid=uid,
        session_id=session,
        generation="gen-1",
        time_ms=1_786_320_000_000,
    )


def child(script: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bus" / "events.db"


@pytest.fixture
async def bus(path: Path) -> AsyncIterator[SqliteBus]:
    bus = SqliteBus(path, busy_timeout_s=0.2)
    yield bus
    await bus.close()


async def test_one_acknowledgement_a_record_and_dense_offsets_per_topic(bus: SqliteBus) -> None:
    protocol: EventBus = bus
    topics = ["a", "b", "a", "a", "b"]
    acks = await protocol.publish([record(f"u{n}", topic=t) for n, t in enumerate(topics)], look_up=False)
    assert acks == [Ack("a", 0, 0), Ack("b", 0, 0), Ack("a", 0, 1), Ack("a", 0, 2), Ack("b", 0, 1)]
    assert await bus.publish([record("u5", topic="b")], look_up=False) == [Ack("b", 0, 2)]
    assert await bus.publish([], look_up=False) == []


@pytest.mark.parametrize("look_up", [False, True])
async def test_a_repeated_uid_is_published_once(bus: SqliteBus, path: Path, look_up: bool) -> None:
    first = await bus.publish([record("u0"), record("u1")], look_up=False)
    again = await bus.publish([record("u1"), record("u2"), record("u0"), record("u2")], look_up=look_up)
    assert again == [first[1], Ack("agent.session", 0, 2), first[0], Ack("agent.session", 0, 2)]
    with BusLogReader.open_read_only(path) as reader:
        assert [row.uid for row in reader.read()] == ["u0", "u1", "u2"]


@pytest.mark.parametrize("other", [record("u0", value=b"{}"), record("u0", topic="x"), record("u0", session="t")])
async def test_another_record_under_a_known_uid_is_refused_and_nothing_of_the_call_stays(
    bus: SqliteBus, path: Path, other: BusRecord
) -> None:
    await bus.publish([record("u0")], look_up=False)
    with pytest.raises(IntegrityError):
        await bus.publish([record("u1"), other], look_up=False)
    assert await bus.publish([record("u2")], look_up=False) == [Ack("agent.session", 0, 1)]
    with BusLogReader.open_read_only(path) as reader:
        assert [row.uid for row in reader.read()] == ["u0", "u2"]


async def test_a_row_says_what_was_published(bus: SqliteBus, path: Path) -> None:
    await bus.publish([record("u0", value='{"ä":1}'.encode())], look_up=False)
    with BusLogReader.open_read_only(path) as reader:
        [row] = reader.read()
    assert (row.position, row.topic, row.partition, row.offset) == (1, "agent.session", 0, 0)
    assert (row.key, row.uid, row.session_id, row.generation) == ("instance-1", "u0", "s", "gen-1")
    assert (row.time_ms, row.value) == (1_786_320_000_000, b'{"\xc3\xa4":1}')
    assert row.headers == {
        "affidavit-event-uid": "u0",
        "affidavit-session": "s",
        "affidavit-generation": "gen-1",
        "content-type": "application/json",
    }


async def test_reading_filters_pages_and_goes_on_from_a_cursor(bus: SqliteBus, path: Path) -> None:
    records = [record(f"u{n}", topic="ab"[n % 2], session="st"[n % 3 == 0]) for n in range(700)]
    await bus.publish(records, look_up=False)
    with BusLogReader.open_read_only(path) as reader:
        assert [row.uid for row in reader.read()] == [f"u{n}" for n in range(700)]
        assert [row.offset for row in reader.read(topic="b")] == list(range(350))
        assert [row.uid for row in reader.read(session="t")] == [f"u{n}" for n in range(0, 700, 3)]
        both = [f"u{n}" for n in range(700) if n % 2 == 0 and n % 3 == 0]
        assert [row.uid for row in reader.read("a", "t")] == both
        for limit in (0, 1, 256, 257, 512, 699, 1000):
            assert [row.uid for row in reader.read(limit=limit)] == [f"u{n}" for n in range(min(limit, 700))]
        position = list(reader.read(limit=300))[-1].position
        assert next(reader.read(after=position)).uid == "u300"
        assert list(reader.read(after=700)) == list(reader.read(topic="none")) == []


async def test_the_file_is_private_and_its_commits_are_synced(bus: SqliteBus, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def pragmas() -> list[object]:
        connection = bus._connected()
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert bus._thread.submit(pragmas).result() == ["wal", 2]


async def test_a_log_is_there_after_closing_and_opening(path: Path) -> None:
    bus = SqliteBus(path)
    await bus.publish([record("u0")], look_up=False)
    await bus.close()
    await bus.close()
    with pytest.raises(TransientError, match="closed"):
        await bus.publish([record("u1")], look_up=False)
    with BusLogReader.open_read_only(path) as reader:  # no side files left, and none needed
        assert [row.uid for row in reader.read()] == ["u0"]
    again = SqliteBus(path)
    assert await again.publish([record("u0"), record("u1")], look_up=False) == [
        Ack("agent.session", 0, 0),
        Ack("agent.session", 0, 1),
    ]
    await again.close()


async def test_a_busy_file_is_transient(bus: SqliteBus, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientError, match=r"^events\.db cannot be used now \(SQLITE_BUSY\)$"):
        await bus.publish([record("u0")], look_up=False)
    other.execute("ROLLBACK")
    other.close()
    assert await bus.publish([record("u0")], look_up=False) == [Ack("agent.session", 0, 0)]


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from activities.buses.base import BusRecord
from activities.buses.sqlite import SqliteBus
from activities.errors import TransientError
async def main():
    bus = SqliteBus(Path(sys.argv[1]))
    records = [BusRecord("t", "k", b"x" * 10_000, f"u{n}", "s", "g", 0) for n in range(100)]
    await bus.publish(records[:1], look_up=False)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        await bus.publish(records, look_up=False)
    except TransientError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print([ack.offset for ack in await bus.publish(records, look_up=True)] == list(range(100)))
    await bus.close()
asyncio.run(main())
"""


def test_a_full_disk_is_transient_and_the_log_goes_on_afterwards(path: Path) -> None:
    output, _ = child(FULL_DISK, str(path)).communicate(timeout=30)
    refusal, recovered = output.splitlines()
    assert refusal.startswith("events.db cannot be used now (SQLITE_")
    assert recovered == "True"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is no database at all, but a text " * 200, "events.db is not a SQLite database"),
        (b"SQLite format 3\0" + b"\xff" * 8000, "events.db is (not a SQLite database|damaged)"),
    ],
)
def test_a_file_that_is_no_database_is_named(path: Path, content: bytes, message: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for opened in (SqliteBus, BusLogReader.open_read_only):
        with pytest.raises(BusLogError, match=f"^{message}$"):
            opened(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("CREATE TABLE mine (a)", "another program"),
        ("PRAGMA user_version = 7", "another program"),
        ("PRAGMA application_id = 1097231463; PRAGMA user_version = 2", "has format 2"),
    ],
)
def test_another_programs_database_is_left_alone(path: Path, script: str, message: str) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    content = path.read_bytes()
    for opened in (SqliteBus, BusLogReader.open_read_only):
        with pytest.raises(BusLogError, match=message):
            opened(path)
    assert path.read_bytes() == content


async def test_a_log_damaged_in_its_middle_is_transient_until_it_is_mended(path: Path) -> None:
    bus = SqliteBus(path)
    await bus.publish([record(f"u{n}", value=b"x" * 3000) for n in range(50)], look_up=False)
    await bus.close()
    whole = path.read_bytes()
    content = bytearray(whole)
    content[4096 : len(content) - 4096] = os.urandom(len(content) - 8192)
    path.write_bytes(content)
    damaged = SqliteBus(path)  # its first page is whole
    with pytest.raises(TransientError, match=r"^events\.db is damaged$"):
        await damaged.publish([record("u0", value=b"x" * 3000)], look_up=False)
    with BusLogReader.open_read_only(path) as reader, pytest.raises(BusLogError, match="damaged"):
        list(reader.read())
    path.write_bytes(whole)
    assert await damaged.publish([record("u50")], look_up=False) == [Ack("agent.session", 0, 50)]
    await damaged.close()


GONE = r"^events\.db is gone or was replaced; put it back, or restart the worker to begin anew$"


async def test_a_file_that_disappears_stalls_the_bus_until_it_is_back(bus: SqliteBus, path: Path) -> None:
    await bus.publish([record("u0")], look_up=False)
    path.rename(path.with_name("old.db"))
    for _ in range(2):
        with pytest.raises(TransientError, match=GONE):
            await bus.publish([record("u1")], look_up=False)
    assert not path.exists()
    path.with_name("old.db").rename(path)
    assert await bus.publish([record("u1")], look_up=False) == [Ack("agent.session", 0, 1)]
    with BusLogReader.open_read_only(path) as reader:
        assert [row.uid for row in reader.read()] == ["u0", "u1"]


async def test_a_file_replaced_under_an_open_bus_is_not_taken_for_its_own(bus: SqliteBus, path: Path) -> None:
    await bus.publish([record("u0")], look_up=False)
    path.unlink()
    other = SqliteBus(path)  # a worker that starts makes a log
    await other.publish([record("u1")], look_up=False)
    with pytest.raises(TransientError, match=GONE):
        await bus.publish([record("u2")], look_up=False)
    await other.close()
    with BusLogReader.open_read_only(path) as reader:
        assert [row.uid for row in reader.read()] == ["u1"]


async def test_a_bus_whose_connection_broke_makes_no_new_log_either(bus: SqliteBus, path: Path) -> None:
    await bus.publish([record("u0")], look_up=False)
    bus._thread.submit(bus._disconnect).result()
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(TransientError, match=GONE):
        await bus.publish([record("u1")], look_up=False)
    assert list(path.parent.iterdir()) == []


def test_a_reader_makes_nothing(path: Path) -> None:
    with pytest.raises(BusLogError, match=r"^there is no event log events\.db$"):
        BusLogReader.open_read_only(path)
    path.parent.mkdir()
    path.write_bytes(b"")
    with pytest.raises(BusLogError, match="empty"):
        BusLogReader.open_read_only(path)
    assert path.read_bytes() == b""


async def test_a_reader_cannot_write(bus: SqliteBus, path: Path) -> None:
    with BusLogReader.open_read_only(path) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._connection.execute("DELETE FROM records")


RACE = """
import asyncio, json, sys
from pathlib import Path
from activities.buses.base import BusRecord
from activities.buses.sqlite import SqliteBus
path, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
def record(uid):
    return BusRecord("t", "k", uid.encode(), uid, "s", "g", 0)
async def main():
    bus = SqliteBus(path, busy_timeout_s=30)
    same = []
    for start in range(0, 200, 10):
        acks = await bus.publish([record(f"same-{n}") for n in range(start, start + 10)], look_up=True)
        same += [ack.offset for ack in acks]
        await bus.publish([record(f"{me}-{start}")], look_up=False)
    await bus.close()
    print(json.dumps(same))
asyncio.run(main())
"""


def test_processes_race_and_every_uid_is_there_once(path: Path) -> None:
    racers = [child(RACE, str(path), str(number)) for number in range(4)]
    for racer in racers:
        assert racer.stdin is not None
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outputs = [racer.communicate(timeout=120)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(set(outputs)) == 1  # all were told the same places
    with BusLogReader.open_read_only(path) as reader:
        rows = list(reader.read())
    assert [row.offset for row in rows] == list(range(200 + 4 * 20))
    assert len({row.uid for row in rows}) == len(rows)
    offsets = {row.uid: row.offset for row in rows}
    assert json.loads(outputs[0]) == [offsets[f"same-{n}"] for n in range(200)]


WRITER = """
import asyncio, sys
from pathlib import Path
from activities.buses.base import BusRecord
from activities.buses.sqlite import SqliteBus
async def main():
    bus = SqliteBus(Path(sys.argv[1]))
    for start in range(0, 1_000_000, 7):
        records = [BusRecord("t", "k", b"x" * 500, f"u{n}", "s", "g", 0) for n in range(start, start + 7)]
        acks = await bus.publish(records, look_up=False)
        print(acks[-1].offset, flush=True)
asyncio.run(main())
"""


def test_a_reader_follows_a_writer_in_another_process_that_is_killed(path: Path) -> None:
    writer = child(WRITER, str(path))
    assert writer.stdout is not None
    writer.stdout.readline()
    seen: list[int] = []
    position = 0
    with BusLogReader.open_read_only(path) as reader:
        while len(seen) < 700:
            for row in reader.read(after=position):
                seen.append(row.offset)
                position = row.position
            assert len(seen) % 7 == 0  # a call of publish is seen whole or not at all
        writer.send_signal(signal.SIGKILL)
        acknowledged = int((writer.stdout.read().split() or ["0"])[-1])
        writer.wait(timeout=10)
        seen += [row.offset for row in reader.read(after=position)]
    assert seen == list(range(len(seen)))
    assert len(seen) > acknowledged


async def test_after_a_kill_the_next_writer_goes_on(path: Path) -> None:
    writer = child(WRITER, str(path))
    assert writer.stdout is not None
    for _ in range(50):
        last = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    last = int((writer.stdout.read().split() or [str(last)])[-1])
    writer.wait(timeout=10)
    bus = SqliteBus(path)
    repeat = [BusRecord("t", "k", b"x" * 500, f"u{n}", "s", "g", 0) for n in range(last + 20)]
    assert [ack.offset for ack in await bus.publish(repeat, look_up=True)] == list(range(last + 20))
    await bus.close()
