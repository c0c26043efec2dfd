from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from affidavit.evidence.scalars import (
    MAX_INTEGER,
    BadSessionId,
    BadTime,
    check_session_id,
    is_digest,
    is_uuid7,
    iso_ms,
    session_stem,
    sha256_hex,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())


def test_largest_integer() -> None:
    assert MAX_INTEGER == VECTORS["constants"]["max_integer"] == 9_007_199_254_740_991


@pytest.mark.parametrize("row", VECTORS["iso8601_ms"], ids=lambda row: row["iso"])
def test_iso_ms_vectors(row: dict[str, Any]) -> None:
    assert iso_ms(row["ms"]) == row["iso"]


@pytest.mark.parametrize(
    ("ms", "iso"),
    [(1, "1970-01-01T00:00:00.001Z"), (999, "1970-01-01T00:00:00.999Z"), (1_010, "1970-01-01T00:00:01.010Z")],
)
def test_iso_ms_has_three_fraction_digits(ms: int, iso: str) -> None:
    assert iso_ms(ms) == iso


@pytest.mark.parametrize("ms", [-1, 253_402_300_800_000, 9_007_199_254_740_991, 10**400])
def test_time_without_a_mirror(ms: int) -> None:
    with pytest.raises(BadTime):
        iso_ms(ms)


def test_session_stem_vector() -> None:
    assert {sid: session_stem(sid) for sid in VECTORS["session_stem"]} == VECTORS["session_stem"]


def test_sha256_of_nothing() -> None:
    assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("sid", ["s", "session-1", "!", "~", "a/b:c?d=%20", '"', "x" * 128])
def test_session_ids(sid: str) -> None:
    assert check_session_id(sid) == sid


@pytest.mark.parametrize(
    ("sid", "rule"),
    [
        (None, "string"),
        (7, "string"),
        (b"session", "string"),
        ("", "empty"),
        ("x" * 129, "128"),
        ("a b", "0x21-0x7e"),
        ("a\n", "0x21-0x7e"),
        ("a\x7f", "0x21-0x7e"),
        ("é", "0x21-0x7e"),
        ("\ud800", "0x21-0x7e"),
        ("a#b", "#"),
    ],
)
def test_bad_session_ids_name_the_rule(sid: object, rule: str) -> None:
    with pytest.raises(BadSessionId, match=rule):
        check_session_id(sid)


def test_is_digest() -> None:
    assert is_digest("0123456789abcdef" * 4)
    for x in ["0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "٠" * 64, None, 0, b"0" * 64, ["0" * 64]]:
        assert not is_digest(x)


def test_is_uuid7() -> None:
    good = "019fe9c7-fc00-7000-8000-000000000001"
    assert is_uuid7(good)
    for x in [
        good.upper(),
        good + "\n",
        good.replace("-", ""),
        "{" + good + "}",
        "019fe9c7-fc00-4000-8000-000000000001",
        "019fe9c7-fc00-7000-c000-000000000001",
        str(uuid.UUID(int=0)),
        uuid.UUID(good),
        None,
        7,
    ]:
        assert not is_uuid7(x)
