"""A session as it lies in a store, read by a client that has no key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from affidavit.errors import SessionFailed
from affidavit.stored import StoredSession
from affidavit.stores.local import DirectoryStore

T = 1_786_320_000_000
STEM = hashlib.sha256(b"s").hexdigest()[:32]


def envelope(payload: Any) -> bytes:
    return json.dumps({"index": 0, "payload": payload, "mac": "00"}).encode()


def event(sequence: int, action: str = "tool_call", **payload: Any) -> bytes:
    return envelope(
        {
            "event": {
                "metadata": {"sequence": sequence},
                "time": T + sequence,
                "status_id": 1,
                "payload": {"action": action, **payload},
            }
        }
    )


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def put(store: DirectoryStore, life: str, name: str, *lines: bytes) -> None:
    store.create(f"sessions/{STEM}/{life}/{name}", b"\n".join(lines) + (b"\n" if name.endswith("ndjson") else b""))


def test_nothing_is_there(store: DirectoryStore) -> None:
    session = StoredSession(store, "s")
    assert (session.latest(), session.outcome("a"), session.last("a"), list(session.after("a", -1))) == (
        None,
        None,
        -1,
        [],
    )


def test_p7_events_are_read_from_the_segment_where_the_cursor_is(store: DirectoryStore, tmp_path: Path) -> None:
    put(store, "a", "journal/000000000000.ndjson", event(0, "opened"))
    put(store, "a", "journal/000000000001.ndjson", event(1), event(2, "event", type="paid"), event(3))
    put(store, "a", "journal/000000000004.ndjson", event(4))
    put(store, "a", "lifecycle/000000000005.json", event(5, "closed"))
    put(store, "a", "captures/000000000001.ndjson", b"no capture is looked at")
    session = StoredSession(store, "s")
    assert [each.sequence for each in session.after("a", -1)] == [0, 1, 2, 3, 4, 5]
    assert [(each.sequence, each.action, each.type) for each in session.after("a", 1)] == [
        (2, "event", "paid"),
        (3, "tool_call", None),
        (4, "tool_call", None),
        (5, "closed", None),
    ]
    assert list(session.after("a", 5)) == []
    assert session.last("a") == 5
    # What lies before the cursor is not even opened.
    (tmp_path / f"sessions/{STEM}/a/journal/000000000001.ndjson").write_bytes(b"spoilt\n")
    assert [each.sequence for each in session.after("a", 3)] == [4, 5]
    with pytest.raises(SessionFailed, match="session s: its journal cannot be read"):
        list(session.after("a", 2))


def test_the_latest_life_is_the_one_that_was_opened_last(store: DirectoryStore) -> None:
    for life, opened in (("b", 30), ("c", 20), ("a", 10)):
        put(store, life, "journal/000000000000.ndjson", event(opened, "opened"))
    store.create(f"sessions/{STEM}/payloads/x.bin", b"no life")
    assert StoredSession(store, "s").latest() == "b"


@pytest.mark.parametrize("data", [b"no json", envelope("no outcome"), envelope({"status": "closed"})])
def test_an_outcome_that_is_none_is_no_missing_one(store: DirectoryStore, data: bytes) -> None:
    put(store, "a", "outcome.json", data)
    with pytest.raises(SessionFailed, match="session s: its sealed outcome cannot be read"):
        StoredSession(store, "s").outcome("a")
