"""Two concurrent journal writers of one segment, on a disk and on an object store (formats.md 5)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from activities.sealed import Life, SealedEvidence
from affidavit.stores.base import EvidenceStore
from affidavit.stores.local import DirectoryStore
from tests.support.racing import raced
from tests.support.stored import StoredSession

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
NAME = "journal/000000000000.ndjson"


@pytest.fixture
def segment(tmp_path: Path) -> tuple[Life, list[dict[str, Any]]]:
    """A life and the payloads of its first segment, as the product makes them."""
    session = StoredSession(SealedEvidence(DirectoryStore(tmp_path / "made"), [KEY]))
    ((first, records),) = session.evidence.records(session.life)
    assert first == 0
    return session.life, [record.model_dump() for record in records]


def events(payloads: list[dict[str, Any]]) -> list[bytes]:
    """The events of a segment in canonical form, by another writer than the product's."""
    return [rfc8785.dumps(payload["event"]) for payload in payloads]


def standing(store: EvidenceStore) -> bytes:
    (name,) = [name for name in store.list("sessions") if name.endswith(NAME)]
    return store.read(name)


@pytest.mark.timeout(120)
def test_writers_of_the_same_segment_both_succeed_and_write_it_once(
    open_one: Callable[[], EvidenceStore], segment: tuple[Life, list[dict[str, Any]]]
) -> None:
    life, payloads = segment
    writers = [SealedEvidence(open_one(), [KEY]) for _ in range(2)]
    heard = raced(2, lambda writer: writers[writer].create_segment(life, 0, payloads) == events(payloads))
    assert heard == {"created": 2}
    assert standing(writers[0].store).count(b"\n") == 1


@pytest.mark.timeout(120)
def test_a_writer_with_a_rotated_key_adopts_what_the_other_wrote(
    open_one: Callable[[], EvidenceStore], segment: tuple[Life, list[dict[str, Any]]]
) -> None:
    life, payloads = segment
    writers = [SealedEvidence(open_one(), keys) for keys in ([KEY, OTHER_KEY], [OTHER_KEY, KEY])]
    heard = raced(2, lambda writer: writers[writer].create_segment(life, 0, payloads) == events(payloads))
    assert heard == {"created": 2}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["uid", "capture_sha256"])
def test_of_writers_of_different_segments_one_wins_and_the_other_is_an_integrity_error(
    open_one: Callable[[], EvidenceStore], segment: tuple[Life, list[dict[str, Any]]], what: str
) -> None:
    life, payloads = segment
    others = copy.deepcopy(payloads)
    event = others[0]["event"]
    if what == "uid":
        event["metadata"]["uid"] = "01890000-0000-7000-8000-000000000000"
    else:
        event["payload"]["capture_sha256"] = "0" * 64
    both = [payloads, others]
    writers = [SealedEvidence(open_one(), [KEY]) for _ in range(2)]
    heard = raced(2, lambda writer: bool(writers[writer].create_segment(life, 0, both[writer])))
    assert heard == {"created": 1, "refused": 1}
    stands = writers[0].segment(life, 0)[0].model_dump()
    assert stands in (payloads[0], others[0])
