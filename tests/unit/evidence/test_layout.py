"""Object names: formats.md 5, behaviours I7."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affidavit.evidence import layout

STEM = "84097828fc31a8c8d29210df48901a85"  # vectors.json, session-1
GENERATION = "019fe9c7-fc00-7000-8000-0000000000aa"
PREFIX = f"sessions/{STEM}/{GENERATION}"


def test_names_are_those_of_the_format() -> None:
    where = ("session-1", GENERATION)
    assert layout.session_prefix(*where) == PREFIX
    assert layout.metadata_name(*where) == f"{PREFIX}/metadata.json"
    assert layout.journal_name(*where, 0) == f"{PREFIX}/journal/000000000000.ndjson"
    assert layout.captures_name(*where, 64) == f"{PREFIX}/captures/000000000064.ndjson"
    assert layout.lifecycle_name(*where, 1234567) == f"{PREFIX}/lifecycle/000001234567.json"
    assert layout.receipt_name(*where) == f"{PREFIX}/receipt.json"
    assert layout.outcome_name(*where) == f"{PREFIX}/outcome.json"
    assert layout.trajectory_name(*where) == f"{PREFIX}/trajectory.json"
    assert layout.provenance_name(*where) == f"{PREFIX}/trajectory.provenance.json"
    assert layout.PUBLIC_KEYS == "public.json"


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#"), min_size=1, max_size=128))
def test_i7_no_session_id_becomes_a_path(session_id: str) -> None:
    name = layout.receipt_name(session_id, "g")
    assert re.fullmatch(r"sessions/[0-9a-f]{32}/g/receipt\.json", name)


@pytest.mark.parametrize("session_id", ["", "a b", "a#b", "x" * 129, "é", "a\n"])
def test_i7_what_is_no_session_id_has_no_name(session_id: str) -> None:
    with pytest.raises(ValueError):
        layout.session_prefix(session_id, GENERATION)


@pytest.mark.parametrize("generation", ["", ".", "..", "a/b", "../x", "a\\b", "a.b", "a\n", "é", "x" * 65, "a b", "\0"])
def test_i7_a_generation_is_one_plain_word(generation: str) -> None:
    with pytest.raises(layout.BadObjectName):
        layout.session_prefix("s", generation)


@pytest.mark.parametrize("number", [-1, 10**12, True, 1.0])
def test_indices_have_twelve_digits(number: int) -> None:
    assert layout.journal_name("s", "g", 10**12 - 1).endswith("/journal/999999999999.ndjson")
    with pytest.raises(layout.BadObjectName):
        layout.journal_name("s", "g", number)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("receipt.json", True),
        ("trajectory.provenance.json", True),
        ("journal/000000000000.ndjson", True),
        ("lifecycle/000000000007.json", True),
        ("journal/0.ndjson", False),
        ("lifecycle/000000000007.ndjson", False),
        ("payloads/000000000000.ndjson", False),
        ("xreceipt.json", False),
        ("receipt.json\n", False),
        ("receiptxjson", False),
    ],
)
def test_evidence_names(name: str, expected: bool) -> None:
    assert layout.is_evidence(name) is expected


def test_number_of() -> None:
    assert layout.number_of("journal/000000000064.ndjson") == 64
    for name in ("journal/64.ndjson", "metadata.json", "journal/00000000006\u0664.ndjson"):
        with pytest.raises(layout.BadObjectName):
            layout.number_of(name)
