"""The publish activity: by reference, authentic records only, every failure of the right kind.

Segments are built here by hand from formats.md 5, not with the code under test.
"""

# ruff: noqa: ASYNC240 - small local files

import dataclasses
import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, DefaultPayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.buses.base import Ack, BusRecord
from activities.buses.sqlite import SqliteBus
from activities.errors import PermanentPublishError, TransientError
from activities.publishing import PublishingActivity
from affidavit.buslog import BusLogReader
from affidavit.publishing_api import PublishRequest, PublishResult
from affidavit.stores.local import DirectoryStore

SESSION = "session-1"
GENERATION = "01890f3a-0000-7000-8000-000000000001"
# The first 32 hex of SHA-256("session-1"); tests/vectors.json, session_stem.
FOLDER = Path("sessions/84097828fc31a8c8d29210df48901a85") / GENERATION
KEY = bytes(range(32))
OLD_KEY = b"\x07" * 32


def compact(value: Any) -> bytes:
    """RFC 8785 for what is used here: ASCII, integers, keys that sort alike."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def envelope(payload: Any, index: int, *, domain: str = f"{SESSION}#{GENERATION}:active", key: bytes = KEY) -> bytes:
    name, body = domain.encode(), compact(payload)
    message = b"agentvisor-journal-v1\0" + u64(len(name)) + name + u64(index) + u64(len(body)) + body
    mac = hmac.new(key, message, hashlib.sha256).hexdigest()
    return b'{"index":%d,"payload":%s,"mac":"%s"}' % (index, body, mac.encode())


def event(sequence: int, *, session: str = SESSION, topic: str = "agent.session", **payload: Any) -> dict[str, Any]:
    return {
        "metadata": {"version": "1.10.0", "uid": f"uid-{sequence}", "sequence": sequence},
        "class_name": topic,
        "time": 1_786_320_000_000 + sequence,
        "session_uid": session,
        "ai_agent": {"version": "1", "charter": {"name": "test", "type_id": 1}, "instance_uid": "instance-1"},
        "payload": {"action": "event", **payload},
        "metrics": {},
    }


def journal_payload(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": event,
        "identity": event["ai_agent"],
        "tool_calls": 0,
        "tool_allowed": 0,
        "tool_blocked": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cached_tokens": 0,
        "cost_usd_micros": 0,
        "stop_reason_id": None,
        "attempt": None,
    }


def sealed(sequence: int, **options: Any) -> bytes:
    return envelope(journal_payload(event(sequence)), sequence, **options)


class RecordingBus:
    """A bus in memory that can be told to fail or to acknowledge too little."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[BusRecord], bool]] = []
        self.failure: Exception | None = None
        self.drop = 0

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        if self.failure is not None:
            raise self.failure
        start = sum(len(call) for call, _ in self.calls)
        self.calls.append((list(records), look_up))
        return [Ack(record.topic, 0, start + n) for n, record in enumerate(records)][self.drop :]

    async def close(self) -> None: ...

    @property
    def records(self) -> list[BusRecord]:
        return [record for call, _ in self.calls for record in call]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "evidence"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


@pytest.fixture
def bus() -> RecordingBus:
    return RecordingBus()


@pytest.fixture
def environment() -> ActivityEnvironment:
    made = ActivityEnvironment()
    made.info = dataclasses.replace(made.info, start_to_close_timeout=timedelta(seconds=30))
    return made


@pytest.fixture
def write(root: Path) -> Callable[[str, bytes], None]:
    def write(name: str, data: bytes) -> None:
        path = root / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return write


@pytest.fixture
def segments(store: DirectoryStore, write: Callable[[str, bytes], None]) -> None:
    """Three segments: 0, 1-3, 4-5."""
    for first, last in ((0, 0), (1, 3), (4, 5)):
        lines = [sealed(index) + b"\n" for index in range(first, last + 1)]
        write(f"journal/{first:012d}.ndjson", b"".join(lines))


@pytest.fixture
def publish(store: DirectoryStore, bus: RecordingBus, environment: ActivityEnvironment) -> Callable[..., Any]:
    activity = PublishingActivity(store, bus, [KEY])

    async def publish(first: int, last: int, *, attempt: int = 1, **options: Any) -> PublishResult:
        environment.info = dataclasses.replace(environment.info, attempt=attempt)
        request = PublishRequest(
            **{"session_id": SESSION, "generation": GENERATION, "first": first, "last": last, **options}
        )
        return await environment.run(activity.publish, request)

    return publish


async def refused(call: Any, kind: str, *, retryable: bool) -> str:
    with pytest.raises(ApplicationError) as caught:
        await call
    assert caught.value.type == kind
    assert caught.value.non_retryable is not retryable
    return caught.value.message


@pytest.mark.usefixtures("segments")
async def test_a_range_over_several_segments_goes_out_in_order(publish: Any, bus: RecordingBus) -> None:
    result = await publish(0, 5)
    assert result.model_dump() == {"first": 0, "last": 5, "count": 6, "look_up": False}
    assert [record.uid for record in bus.records] == [f"uid-{n}" for n in range(6)]
    assert bus.records[1] == BusRecord(
        topic="agent.session",
        key="instance-1",
        value=(
            b'{"ai_agent":{"charter":{"name":"test","type_id":1},"instance_uid":"instance-1","version":"1"},'
            b'"class_name":"agent.session","metadata":{"sequence":1,"uid":"uid-1","version":"1.10.0"},'
            b'"metrics":{},"payload":{"action":"event"},"session_uid":"session-1","time":1786320000001}'
        ),
        uid="uid-1",
        session_id=SESSION,
        generation=GENERATION,
        time_ms=1_786_320_000_001,
    )


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 3), (4, 5), (1, 5)])
async def test_any_run_of_segments_is_a_range(publish: Any, bus: RecordingBus, first: int, last: int) -> None:
    assert (await publish(first, last)).count == last - first + 1
    assert [record.uid for record in bus.records] == [f"uid-{n}" for n in range(first, last + 1)]


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(
    ("attempt", "through", "expected"), [(1, -1, False), (2, -1, True), (1, 0, False), (1, 1, True), (1, 9, True)]
)
async def test_uids_are_looked_up_when_they_may_be_there(
    publish: Any, bus: RecordingBus, attempt: int, through: int, expected: bool
) -> None:
    result = await publish(1, 3, attempt=attempt, look_up_through=through)
    assert result.look_up is expected
    assert [look_up for _, look_up in bus.calls] == [expected]


class Slow:
    """A clock that goes on by a number of seconds with each read of the store and each call of the bus."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: DirectoryStore, bus: RecordingBus) -> None:
        self.now = 100.0
        self.a_read = self.a_call = 0.0
        read, send = store.read, bus.publish

        def slow_read(name: str) -> bytes:
            self.now += self.a_read
            return read(name)

        async def slow_send(records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
            self.now += self.a_call
            return await send(records, look_up=look_up)

        monkeypatch.setattr(store, "read", slow_read)
        monkeypatch.setattr(bus, "publish", slow_send)
        monkeypatch.setattr("activities.publishing.time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, store: DirectoryStore, bus: RecordingBus) -> Slow:
    return Slow(monkeypatch, store, bus)


async def test_nothing_is_sent_that_might_outlast_the_attempt(
    publish: Any, bus: RecordingBus, write: Any, slow: Slow
) -> None:
    """A call of the bus may take 24 of the attempt's 30 seconds: reading the journal has 6."""
    write("journal/000000000000.ndjson", sealed(0) + b"\n")
    slow.a_read = 6.1
    with pytest.raises(ApplicationError, match="too long to publish") as failed:
        await publish(0, 0)
    assert (failed.value.type, failed.value.non_retryable) == ("TransientError", False)
    assert bus.calls == []
    slow.a_read = 5.9
    assert (await publish(0, 0)).count == 1


async def test_an_activity_that_runs_out_of_time_ends_with_a_segment(
    publish: Any, bus: RecordingBus, write: Any, slow: Slow
) -> None:
    """The next one begins where a segment does; elsewhere it would find none, and poison the session."""
    for first in range(0, 1080, 60):
        write(f"journal/{first:012d}.ndjson", b"\n".join(sealed(n) for n in range(first, first + 60)) + b"\n")
    slow.a_call = 7.0
    assert (await publish(0, 1079)).last == 959
    assert (await publish(960, 1079)).last == 1079
    assert [record.uid for record in bus.records] == [f"uid-{n}" for n in range(1080)]


async def test_a_backlog_on_a_slow_store_goes_out_as_it_is_read(
    publish: Any, bus: RecordingBus, write: Any, slow: Slow
) -> None:
    """After 2 s of reading what was read is sent, and after 6 s the rest is another activity's."""
    for first in range(20):
        write(f"journal/{first:012d}.ndjson", sealed(first) + b"\n")
    slow.a_read = 0.5
    assert (await publish(0, 19)).last == 11
    assert [len(call) for call, _ in bus.calls] == [4, 4, 4]
    assert (await publish(12, 19)).last == 19


async def test_a_long_range_is_published_in_parts_that_end_with_a_segment(
    publish: Any, bus: RecordingBus, environment: ActivityEnvironment, write: Any
) -> None:
    """60 events a segment: the first end at or beyond 1 000 events is 1 020."""
    for first in range(0, 2100, 60):
        write(f"journal/{first:012d}.ndjson", b"\n".join(sealed(n) for n in range(first, first + 60)) + b"\n")
    beats: list[Any] = []
    environment.on_heartbeat = lambda *details: beats.extend(details)
    parts = []
    first = 0
    while first < 2100:
        result = await publish(first, 2099)
        parts.append((result.first, result.last, result.count))
        first = result.last + 1
    assert parts == [(0, 1019, 1020), (1020, 2039, 1020), (2040, 2099, 60)]
    assert [len(call) for call, _ in bus.calls] == [960, 60, 960, 60, 60]
    assert [record.uid for record in bus.records] == [f"uid-{n}" for n in range(2100)]
    assert beats == [959, 1019, 1979, 2039]  # after the last call of all the result says it


async def test_exactly_a_thousand_events_are_one_part(publish: Any, bus: RecordingBus, write: Any) -> None:
    for first in range(0, 1050, 50):
        write(f"journal/{first:012d}.ndjson", b"\n".join(sealed(n) for n in range(first, first + 50)) + b"\n")
    result = await publish(0, 1049)
    assert (result.last, result.count, [len(call) for call, _ in bus.calls]) == (999, 1000, [1000])


async def test_a_part_of_many_bytes_ends_early(publish: Any, bus: RecordingBus, write: Any) -> None:
    """Segments of 3 MB: the 23rd reaches 64 MiB."""
    for first in range(30):
        write(f"journal/{first:012d}.ndjson", envelope(journal_payload(event(first, text="x" * 3_000_000)), first))
    result = await publish(0, 29)
    assert (result.last, result.count) == (22, 23)
    assert [len(call) for call, _ in bus.calls] == [2] * 11 + [1]


async def test_big_records_are_cut_by_size(publish: Any, bus: RecordingBus, write: Any) -> None:
    for first in range(4):
        write(f"journal/{first:012d}.ndjson", envelope(journal_payload(event(first, text="x" * 3_000_000)), first))
    assert (await publish(0, 3)).count == 4
    assert [len(call) for call, _ in bus.calls] == [2, 2]


async def test_lifecycle_events_are_read_from_their_own_files(publish: Any, bus: RecordingBus, write: Any) -> None:
    for sequence, topic in ((6, "agent.receipt"), (7, "agent.session")):
        domain = f"{SESSION}#{GENERATION}:lifecycle"
        data = envelope({"event": event(sequence, topic=topic)}, sequence, domain=domain)
        write(f"lifecycle/{sequence:012d}.json", data + (b"\n" if sequence == 7 else b""))
    assert (await publish(6, 7, lifecycle=True)).count == 2
    assert [(record.topic, record.uid) for record in bus.records] == [
        ("agent.receipt", "uid-6"),
        ("agent.session", "uid-7"),
    ]
    await refused(publish(6, 8, lifecycle=True), "IntegrityError", retryable=False)


@pytest.mark.parametrize("payload", [{"event": event(6, session="x")}, {"event": event(7)}, {"event": {}}, {}, [], 1])
async def test_a_lifecycle_file_must_hold_its_event(publish: Any, bus: RecordingBus, write: Any, payload: Any) -> None:
    write("lifecycle/000000000006.json", envelope(payload, 6, domain=f"{SESSION}#{GENERATION}:lifecycle"))
    message = await refused(publish(6, 6, lifecycle=True), "IntegrityError", retryable=False)
    assert message.startswith("lifecycle event 6: ")
    assert bus.calls == []


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (0, 6, "000000000006.ndjson is not in the evidence store"),
        (2, 3, "000000000002.ndjson is not in the evidence store"),
        (1, 2, "the range to publish ends inside a journal segment"),
        (0, 4, "the range to publish ends inside a journal segment"),
    ],
)
async def test_a_range_that_the_journal_does_not_have(
    publish: Any, bus: RecordingBus, first: int, last: int, message: str
) -> None:
    assert await refused(publish(first, last), "IntegrityError", retryable=False) == message
    assert bus.calls == []


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([sealed(1), sealed(2, key=OLD_KEY)], "journal record 2: authentication failed"),
        ([sealed(1), sealed(2).replace(b"uid-2", b"uid-3")], "journal record 2: authentication failed"),
        ([sealed(2), sealed(1)], "journal record 1: position mismatch"),
        ([sealed(1), sealed(3)], "journal record 2: position mismatch"),
        ([sealed(1, domain=f"{SESSION}#other:active")], "journal record 1: authentication failed"),
        ([sealed(1, domain=f"{SESSION}#{GENERATION}:lifecycle")], "journal record 1: authentication failed"),
        ([envelope(journal_payload(event(2)), 1)], "journal record 1: "),
        ([envelope(journal_payload(event(1, session="other")), 1)], "journal record 1: "),
        ([envelope({"event": event(1)}, 1)], "journal record 1: "),
        ([envelope(journal_payload({**event(1), "time": "now"}), 1)], "journal record 1: not an event (at time)"),
        ([sealed(1)[:-10]], "journal record 1: "),
        ([sealed(1), b""], "journal record 2: "),
        ([b""], "journal record 1: "),
    ],
)
async def test_what_is_not_authentic_and_in_place_is_refused(
    publish: Any, bus: RecordingBus, write: Any, lines: list[bytes], message: str
) -> None:
    write("journal/000000000001.ndjson", b"\n".join(lines) + b"\n")
    assert (await refused(publish(1, 3), "IntegrityError", retryable=False)).startswith(message)
    assert bus.calls == []


@pytest.mark.usefixtures("segments")
async def test_a_flipped_bit_anywhere_is_refused(publish: Any, bus: RecordingBus, write: Any, root: Path) -> None:
    good = (root / FOLDER / "journal/000000000000.ndjson").read_bytes()
    for position in range(0, len(good) - 1, 7):
        bad = bytearray(good)
        bad[position] ^= 1
        write("journal/000000000000.ndjson", bytes(bad))
        await refused(publish(0, 0), "IntegrityError", retryable=False)
    assert bus.calls == []


async def test_any_configured_key_opens(
    store: DirectoryStore, bus: RecordingBus, environment: ActivityEnvironment, write: Any
) -> None:
    write("journal/000000000000.ndjson", sealed(0, key=OLD_KEY) + b"\n" + sealed(1) + b"\n")
    activity = PublishingActivity(store, bus, [KEY, OLD_KEY])
    request = PublishRequest(session_id=SESSION, generation=GENERATION, first=0, last=1)
    assert (await environment.run(activity.publish, request)).count == 2


@pytest.mark.usefixtures("segments")
async def test_another_store_is_a_matter_of_time(publish: Any, store: DirectoryStore, root: Path) -> None:
    assert (await publish(0, 0, store_id=store.store_id)).count == 1
    other = "00000000-0000-4000-8000-000000000000"
    await refused(publish(0, 0, store_id=other), "EvidenceStoreMismatch", retryable=True)
    root.rename(root.with_name("unmounted"))
    await refused(publish(0, 0), "EvidenceStoreMismatch", retryable=True)


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(
    ("failure", "kind", "retryable"),
    [
        (PermanentPublishError("unknown topic"), "PermanentPublishError", False),
        (TransientError("no broker"), "TransientError", True),
        (OSError(28, "No space left on device", "/secret/place/events.db"), "OSError", True),
        (RuntimeError("password=hunter2 at /secret/place"), "RuntimeError", True),
    ],
)
async def test_failures_of_the_bus(
    publish: Any, bus: RecordingBus, failure: Exception, kind: str, retryable: bool
) -> None:
    bus.failure = failure
    with pytest.raises(ApplicationError) as caught:
        await publish(0, 0)
    assert (caught.value.type, caught.value.non_retryable) == (kind, not retryable)
    # What Temporal would write into the history, causes included.
    written = Failure()
    DefaultFailureConverter().to_failure(caught.value, DefaultPayloadConverter(), written)
    assert not written.HasField("cause")
    assert "secret" not in written.message
    assert "hunter2" not in written.message


@pytest.mark.usefixtures("segments")
async def test_a_missing_acknowledgement_is_not_success(publish: Any, bus: RecordingBus) -> None:
    bus.drop = 1
    await refused(publish(1, 3), "TransientError", retryable=True)


async def test_a_failing_disk_is_retryable_and_shows_no_path(
    publish: Any, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str) -> bytes:
        raise OSError(5, "Input/output error", f"/secret/{name}")

    monkeypatch.setattr(store, "read", failing)
    message = await refused(publish(0, 0), "OSError", retryable=True)
    assert message == "Input/output error: 000000000000.ndjson"


async def test_a_mount_that_goes_away_meanwhile_is_no_lost_evidence(
    publish: Any, store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = store.read

    def unmounted_behind_the_id(name: str) -> bytes:
        if root.exists():
            root.rename(root.with_name("unmounted"))
        return read(name)

    monkeypatch.setattr(store, "read", unmounted_behind_the_id)
    await refused(publish(0, 0), "EvidenceStoreMismatch", retryable=True)


@pytest.mark.parametrize("bad", [{"first": 2, "last": 1}, {"first": -1}, {"last": 2**53}, {"look_up_through": -2}])
def test_a_request_is_checked(bad: dict[str, int]) -> None:
    good = {"session_id": SESSION, "generation": GENERATION, "first": 0, "last": 1}
    assert PublishRequest.model_validate(good).store_id is None
    with pytest.raises(ValidationError):
        PublishRequest.model_validate({**good, **bad})


@pytest.mark.parametrize("names", [{"session_id": "a b"}, {"generation": "../x"}])
async def test_names_that_are_none_never_reach_the_store(publish: Any, names: dict[str, str]) -> None:
    await refused(publish(0, 0, **names), "IntegrityError", retryable=False)


@pytest.mark.usefixtures("segments")
async def test_on_the_embedded_bus_a_retry_publishes_nothing_twice(
    store: DirectoryStore, environment: ActivityEnvironment, tmp_path: Path
) -> None:
    bus = SqliteBus(tmp_path / "events.db")
    activity = PublishingActivity(store, bus, [KEY])
    request = PublishRequest(session_id=SESSION, generation=GENERATION, first=0, last=3)
    await environment.run(activity.publish, request)
    environment.info = dataclasses.replace(environment.info, attempt=2)
    await environment.run(activity.publish, request.model_copy(update={"last": 5}))
    with BusLogReader.open_read_only(tmp_path / "events.db") as reader:
        rows = list(reader.read(session=SESSION))
    await bus.close()
    assert [(row.offset, row.uid) for row in rows] == [(n, f"uid-{n}") for n in range(6)]
    assert [json.loads(row.value) for row in rows] == [event(n) for n in range(6)]
