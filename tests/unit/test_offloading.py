"""B9: the driver that keeps big payloads in the evidence store, and the converter that no reference can stop."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriverActivityInfo,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from affidavit.contract import MESSAGE_BYTES, MESSAGE_VALUES, OFFLOAD_BYTES
from affidavit.converter import data_converter, raw_json
from affidavit.density import too_dense
from affidavit.offloading import UNAVAILABLE, EvidenceDriver, OpenedSessions, opened_in, unavailable
from affidavit.stores.errors import EvidenceStoreMismatch
from affidavit.stores.local import DirectoryStore
from tests.support.oracle import sha256
from tests.support.taps import TapStore

BIG = Payload(metadata={"encoding": b"json/plain", "key": b"value"}, data=b'"' + b"x" * 300_000 + b'"')
ID = "../etc/passwd"
STEM = sha256(ID.encode())[:32]
RUN = StorageDriverWorkflowInfo(namespace="default", id=ID, run_id="run", type="AgentSession")
RETRIEVE = StorageDriverRetrieveContext()


async def kept(store: Any, payload: Payload = BIG) -> StorageDriverClaim:
    (claim,) = await EvidenceDriver(store).store(StorageDriverStoreContext(target=RUN), [payload])
    return claim


async def test_b9_i7_a_payload_is_kept_once_under_its_session_and_its_digest(tmp_path: Path) -> None:
    store = TapStore(DirectoryStore(tmp_path))
    first, second = await kept(store), await kept(store)
    assert first == second
    digest = sha256(BIG.SerializeToString(deterministic=True))
    assert store.written == [f"sessions/{STEM}/payloads/{digest}.bin"]
    assert sha256((tmp_path / store.written[0]).read_bytes()) == digest
    assert (await EvidenceDriver(store).retrieve(RETRIEVE, [first, second])) == [BIG, BIG]


def test_b9_payloads_without_a_session_of_this_store_stay_where_they_are(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    driver = EvidenceDriver(store)
    client = StorageDriverWorkflowInfo(namespace="default", id=ID, run_id="run")
    starting = StorageDriverWorkflowInfo(namespace="default", id=ID, type="AgentSession")

    def selected(target: Any, payload: Payload = BIG) -> bool:
        return driver.select(StorageDriverSelectContext(target=target), payload) is driver

    store.create(f"sessions/{STEM}/payloads/{'0' * 64}.bin", b"")  # a folder that is no life
    nobody: list[Any] = [
        None,
        StorageDriverActivityInfo(namespace="default", id="a"),
        StorageDriverWorkflowInfo(namespace="default", run_id="run", type="AgentSession"),
        client,
        starting,
    ]
    assert [selected(target) for target in nobody] == [False] * 5
    assert selected(RUN)
    assert not opened_in(store, STEM)
    store.create(f"sessions/{STEM}/11111111-2222-4333-8444-555555555555/metadata.json", b"{}")
    assert opened_in(store, STEM)
    assert selected(client)
    assert selected(starting)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("elsewhere"))


def made_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [Path.unlink, emptied, linked, made_directory])
async def test_b9_what_is_lost_is_unavailable_and_says_what_it_was(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = DirectoryStore(tmp_path)
    claim = await kept(store)
    digest, size = claim.claim_data["sha256"], str(BIG.ByteSize())
    harm(tmp_path / f"sessions/{STEM}/payloads/{digest}.bin")
    (found,) = await EvidenceDriver(store).retrieve(RETRIEVE, [claim])
    assert found.metadata == {"encoding": UNAVAILABLE, "sha256": digest.encode(), "bytes": size.encode()}
    assert found.data == b""
    if harm is not Path.unlink:
        assert await kept(store) == claim  # keeping it again raises nothing, as a replay does


async def test_b9_a_foreign_object_under_its_right_digest_is_unavailable(tmp_path: Path) -> None:
    store, data = DirectoryStore(tmp_path), b"\xff\xff"
    store.create(f"sessions/{STEM}/payloads/{sha256(data)}.bin", data)
    claim = StorageDriverClaim(
        {"store": store.store_id, "session": STEM, "sha256": sha256(data), "bytes": str(len(data))}
    )
    (found,) = await EvidenceDriver(store).retrieve(RETRIEVE, [claim])
    assert found.metadata["encoding"] == UNAVAILABLE


@pytest.mark.parametrize(
    "claim",
    [{}, {"session": "..", "sha256": "0" * 64}, {"session": "0" * 32, "sha256": "../store"}, {"session": "0" * 33}],
)
async def test_b9_a_claim_of_another_shape_reads_nothing(tmp_path: Path, claim: dict[str, str]) -> None:
    read: list[str] = []
    store = TapStore(DirectoryStore(tmp_path), reading=read.append)
    assert await EvidenceDriver(store).retrieve(RETRIEVE, [StorageDriverClaim(claim)]) == [unavailable()]
    assert read == []


async def test_b9_a_store_that_does_not_answer_is_raised(tmp_path: Path) -> None:
    def out(_: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = DirectoryStore(tmp_path)
    claim = await kept(store)
    with pytest.raises(OSError, match="Input/output error"):
        await EvidenceDriver(TapStore(store, reading=out)).retrieve(RETRIEVE, [claim])
    with pytest.raises(OSError, match="Input/output error"):
        await kept(TapStore(store, before=out))


async def test_b9_a_mount_that_is_away_is_raised_and_not_taken_for_a_loss(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "evidence")
    claim = await kept(store)
    (tmp_path / "evidence").rename(tmp_path / "away")
    (tmp_path / "evidence").mkdir()
    with pytest.raises(EvidenceStoreMismatch):
        await EvidenceDriver(store).retrieve(RETRIEVE, [claim])


async def test_b9_another_store_hands_on_what_it_cannot_know(tmp_path: Path) -> None:
    claim = await kept(DirectoryStore(tmp_path / "a"))
    other = DirectoryStore(tmp_path / "b")
    with pytest.raises(EvidenceStoreMismatch, match="in another evidence store"):
        await EvidenceDriver(other).retrieve(RETRIEVE, [claim])
    # Where the session itself is known, it is the sender who has another store, and will go on having it.
    other.create(f"sessions/{STEM}/11111111-2222-4333-8444-555555555555/metadata.json", b"{}")
    (found,) = await EvidenceDriver(other).retrieve(RETRIEVE, [claim])
    assert found.metadata["encoding"] == UNAVAILABLE
    # A copy of the payload is as good as the payload, wherever it lies.
    name = f"sessions/{STEM}/payloads/{claim.claim_data['sha256']}.bin"
    other.create(name, (tmp_path / "a" / name).read_bytes())
    assert await EvidenceDriver(other).retrieve(RETRIEVE, [claim]) == [BIG]


async def test_b9_the_converter_keeps_what_is_over_256_kib(tmp_path: Path) -> None:
    store = TapStore(DirectoryStore(tmp_path))
    converter = data_converter(store)._with_store_context(StorageDriverStoreContext(target=RUN))
    small = raw_json(b'"' + b"x" * (OFFLOAD_BYTES - 40) + b'"')
    assert small.payload.ByteSize() <= OFFLOAD_BYTES
    large = raw_json(b'"' + b"x" * OFFLOAD_BYTES + b'"')
    encoded = await converter.encode([small, large, 7])
    assert [payload.ByteSize() < 1_000 for payload in encoded] == [False, True, True]
    assert len(store.written) == 1
    assert await converter.decode(encoded, [str, str, int]) == ["x" * (OFFLOAD_BYTES - 40), "x" * OFFLOAD_BYTES, 7]
    assert data_converter().external_storage is None


VALUES = b",".join([b"1"] * MESSAGE_VALUES)
TEXT = b'"' + b"x" * MESSAGE_BYTES + b'"'


@pytest.mark.parametrize(
    ("data", "dense"),
    [
        (b"[" + b",".join([b"[]"] * 400_000) + b"]", False),  # within 1.5 MB nothing is counted
        (b'"' + b'[{,\\"' * 1_000_000 + b'"', False),  # in a string nothing counts
        (b'["' + b",\\\\" * 1_000_000 + b'",' + VALUES[4:] + b"]", False),
        (b"[" + TEXT + b"," + VALUES + b"]", True),
        (b"[" + TEXT + b"," + VALUES[2:] + b"]", False),
        (b"[" + b",".join([b'"\\\\"'] * 1_000_000) + b"]", True),
        (b"[" + b",".join([b'{"k":1}'] * 300_000) + b"]", True),
        (b'"' + b"," * 2_000_000, False),  # a string without an end
    ],
)
def test_b9_a_large_message_holds_a_bounded_number_of_values(data: bytes, dense: bool) -> None:
    assert too_dense(data) is dense


def test_a_store_is_asked_once_for_a_session_that_was_opened_there(tmp_path: Path) -> None:
    asked: list[str] = []
    store = TapStore(DirectoryStore(tmp_path), reading=asked.append)
    opened = OpenedSessions(store)
    assert STEM not in opened  # may be opened yet, so it is asked again
    store.create(f"sessions/{STEM}/11111111-2222-4333-8444-555555555555/metadata.json", b"{}")
    assert STEM in opened
    assert STEM in opened
    assert asked == [f"sessions/{STEM}"] * 2
