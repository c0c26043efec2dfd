"""Keyrings: formats.md 6."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from affidavit.evidence import keyring as module
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.strict import DuplicateKey, StrictJsonError, TooLarge, TrailingBytes

VECTORS = json.loads(Path(__file__).parents[2].joinpath("vectors.json").read_text("utf-8"))
FIVE = VECTORS["keys"]["seed_05x32"]
SEVEN = VECTORS["keys"]["seed_07x32"]
SMALL = VECTORS["small_order_signature_traps"]["small_order_y_encodings_ignoring_sign_bit"]


def ring(*entries: Any) -> bytes:
    return json.dumps(list(entries)).encode()


def entry(**more: Any) -> dict[str, Any]:
    return {"public_key_b64": FIVE["public_key_b64"], **more}


def test_a_list_of_keys() -> None:
    parsed = Keyring.parse(ring(entry(), {"public_key_b64": SEVEN["public_key_b64"]}))
    assert len(parsed) == 2
    found = parsed.find("7599776c3085e3f9da0d13071eb0b4ab")
    assert found is not None
    assert found.public_key.hex() == FIVE["public_key_hex"]
    assert parsed.find("0" * 32) is None


@pytest.mark.parametrize("text", [FIVE["public_key_b64"], FIVE["public_key_hex"], FIVE["public_key_hex"].upper()])
def test_a_single_key_as_text(text: str) -> None:
    for data in (text, text + "\n", text.encode()):
        assert Keyring.parse(data).find(FIVE["key_id"]) is not None


@pytest.mark.parametrize(
    ("limits", "ms", "valid"),
    [
        ({}, 0, True),
        ({"not_before": 10}, 9, False),
        ({"not_before": 10}, 10, True),
        ({"not_after": 10}, 10, True),
        ({"not_after": 10}, 11, False),
        ({"revoked_at": 10}, 9, True),
        ({"revoked_at": 10}, 10, False),
        ({"not_after": 0}, 1, False),
        ({"not_before": "2026-08-10T00:00:00Z"}, 1786319999999, False),
        ({"not_before": "2026-08-10T00:00:00Z"}, 1786320000000, True),
        ({"not_after": "2024-02-29T13:34:56.789+01:00"}, 1709210096789, True),
        ({"not_after": "2024-02-29T13:34:56.789+01:00"}, 1709210096790, False),
        ({"not_after": "9999-12-31T23:59:59.999Z"}, 253402300799999, True),
    ],
)
def test_validity(limits: dict[str, Any], ms: int, valid: bool) -> None:
    found = Keyring.parse(ring(entry(**limits))).find(FIVE["key_id"])
    assert found is not None
    assert found.valid_at(ms) is valid


@pytest.mark.parametrize(
    "bad",
    [
        "2026-08-10",
        "2026-08-10T00:00:00",
        "2026-02-30T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "2026-08-10 00:00:00Z",
        "2026-08-10T00:00:00Z\n",
        "0001-01-01T00:00:00+23:59",
        "",
        -1,
        2**53,
        1.5,
        True,
        None,
        [],
    ],
)
def test_times_that_are_none(bad: Any) -> None:
    with pytest.raises(module.MalformedKeyring, match="entry 1: revoked_at"):
        Keyring.parse(ring(entry(revoked_at=bad)))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", module.MalformedKey),
        (b"[]", module.MalformedKeyring),
        (b"{}", module.MalformedKey),
        (ring("x"), module.MalformedKeyring),
        (ring(entry(extra=1)), module.MalformedKeyring),
        (ring({}), module.MalformedKey),
        (ring({"public_key_b64": None}), module.MalformedKey),
        (ring(entry(not_before=2, not_after=1)), module.MalformedKeyring),
        (ring(entry(), entry()), module.DuplicateRingKey),
        (ring(entry()) + b"x", TrailingBytes),
        (b'[{"public_key_b64":"a","public_key_b64":"b"}]', DuplicateKey),
        (b"[" + b" " * (1 << 20) + b"]", TooLarge),
        (b"[nonsense", StrictJsonError),
        (b"\xff" * 44, module.MalformedKey),
        ("\ud800", module.MalformedKey),
    ],
)
def test_malformed_keyrings(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        Keyring.parse(data)


@pytest.mark.parametrize(
    "text",
    [
        FIVE["public_key_b64"].rstrip("="),
        FIVE["public_key_b64"][:-2] + "F=",
        FIVE["public_key_b64"].replace("/", "_"),
        " " + FIVE["public_key_b64"],
        FIVE["public_key_b64"] + "\n",
        base64.b64encode(b"a" * 31).decode(),
        base64.b64encode(b"a" * 33).decode(),
        "é" * 44,
    ],
)
def test_g2_base64_that_does_not_re_encode_is_refused(text: str) -> None:
    with pytest.raises(module.MalformedKey):
        Keyring.parse(ring({"public_key_b64": text}))


@pytest.mark.parametrize("point", SMALL)
def test_case20_small_order_keys_are_refused(point: str) -> None:
    raw = bytes.fromhex(point)
    for data in (point.encode(), ring({"public_key_b64": base64.b64encode(raw).decode()})):
        with pytest.raises(module.WeakKey):
            Keyring.parse(data)


def test_i5_foreign_names_are_escaped() -> None:
    with pytest.raises(module.MalformedKeyring) as caught:
        Keyring.parse(ring(entry(**{"\x1b]0;" + "x" * 300: 1})))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 150
