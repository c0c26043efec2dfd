from __future__ import annotations

import copy
import hashlib
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from affidavit.evidence.canonical import BigInteger
from affidavit.evidence.chain import BadHead, chain_head, extend, genesis

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["chain"]


@pytest.mark.parametrize(("session_id", "head"), VECTORS["genesis"].items())
def test_genesis_vectors(session_id: str, head: str) -> None:
    assert genesis(session_id).hex() == head


@pytest.mark.parametrize("name", ["ocsf", "plain_events"])
def test_heads_vectors(name: str) -> None:
    row = VECTORS[name]
    heads = accumulate(row["events"], extend, initial=genesis(row["session_id"]))
    assert [head.hex() for head in heads] == row["heads"]
    assert chain_head(row["session_id"], row["events"]) == row["heads"][-1]
    assert chain_head(row["session_id"], []) == row["heads"][0]


def test_head_covers_the_canonical_bytes() -> None:
    row = VECTORS["ocsf"]
    head = bytes.fromhex(row["heads"][0])
    assert extend(head, row["events"][0]) == hashlib.sha256(head + row["canonical"][0].encode()).digest()


def test_any_change_changes_the_head() -> None:
    row = VECTORS["plain_events"]
    events, head = row["events"], row["heads"][-1]
    altered = copy.deepcopy(events)
    altered[1]["payload"] = "event-X"
    others = [events[:-1], events[1:], events[:2] + events[3:], [events[1], events[0], *events[2:]], altered]
    for other in others:
        assert chain_head(row["session_id"], other) != head
    assert chain_head("sesS", events) != head


def test_a_head_has_32_bytes() -> None:
    for head in (b"", b"x" * 31, b"x" * 64):
        with pytest.raises(BadHead):
            extend(head, {})


def test_case19_an_event_that_json_cannot_carry_is_not_chained() -> None:
    with pytest.raises(BigInteger):
        extend(genesis("s"), {"n": 2**53})
