"""Receipts: formats.md 6, behaviours G1, G2, cases 19 and 20."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from affidavit.evidence import receipt as module
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keyring import Keyring, RingKey
from affidavit.evidence.keys import Signer
from affidavit.evidence.receipt import parse, verify
from affidavit.evidence.strict import DuplicateKey, NestingTooDeep, ParseError, TooLarge, TrailingBytes
from affidavit.evidence.totals import Totals

VECTORS = json.loads(Path(__file__).parents[2].joinpath("vectors.json").read_text("utf-8"))
CHAIN, ATIF = (row["receipt"] for row in VECTORS["receipts"])
TRAPS = VECTORS["small_order_signature_traps"]
RING = Keyring.parse("C+71qeZ55qPhNP4ng3v/MsfLX11E6gm8sOVCutakwMw=")
ISSUED = 1786320000002
SEED = bytes([14]) * 32


def stored(document: Any) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def changed(document: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(document)), **change}


def resigned(document: dict[str, Any], seed: bytes = SEED) -> dict[str, Any]:
    """Signed by hand: sorted keys are canonical form for ASCII and integers."""
    body = {name: value for name, value in document.items() if name != "signature_b64"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(text)
    return {**body, "signature_b64": base64.b64encode(signature).decode()}


# --- issuing ---


@pytest.mark.parametrize("row", VECTORS["receipts"], ids=["chain", "atif"])
def test_issuing_gives_the_golden_receipt(row: dict[str, Any]) -> None:
    golden = row["receipt"]
    subject = golden["subject"]
    body = module.unsigned_body(
        receipt_id=golden["receipt_id"],
        session_id="session-1",
        issued_at=ISSUED,
        ai_agent=golden["ai_agent"],
        subject=module.event_chain(subject["chain_head"], 2)
        if subject["kind"] == "event_chain"
        else module.atif_trajectory("cd" * 32, 2),
        totals=Totals(prompt_tokens=500),
        stop_reason_id=golden["stop_reason_id"],
    )
    issued = module.issue(body, Signer(SEED))
    assert issued == golden
    assert list(issued) == list(golden)
    assert parse(stored(issued)).signed_bytes() == row["canonical_body"].encode()
    assert hashlib.sha256(parse(stored(issued)).signed_bytes()).hexdigest() == row["canonical_sha256"]


@pytest.mark.parametrize("name", ["key_id", "public_key_b64", "signature_b64"])
def test_only_the_signer_sets_its_fields(name: str) -> None:
    body = {key: value for key, value in CHAIN.items() if key not in module.SIGNER_FIELDS}
    assert module.issue(body, Signer(SEED)) == CHAIN
    with pytest.raises(module.ReceiptFormatError, match=name):
        module.issue({**body, name: CHAIN[name]}, Signer(SEED))


@pytest.mark.parametrize(
    "change",
    [{"issued_at_iso": "2026-08-10T00:00:00.003Z"}, {"stop_reason_id": 4}, {"extra": 1}, {"session_id": "a#b"}],
)
def test_the_signer_signs_nothing_that_would_not_be_read(change: dict[str, Any]) -> None:
    body = {key: value for key, value in CHAIN.items() if key not in module.SIGNER_FIELDS}
    with pytest.raises(module.ReceiptFormatError):
        module.issue({**body, **change}, Signer(SEED))


def test_stored_form_has_two_spaces_and_a_final_newline() -> None:
    data = module.to_bytes(CHAIN)
    assert data.startswith(b'{\n  "receipt_version": 1,\n')
    assert data.endswith(b"}\n")
    assert module.to_bytes(parse(data)) == data


# --- verification ---


@pytest.mark.parametrize("golden", [CHAIN, ATIF], ids=["chain", "atif"])
def test_golden_receipts_verify(golden: dict[str, Any]) -> None:
    verified = verify(parse(stored(golden)), RING)
    assert verified.key.key_id == "52168a9c192c6d153a2f0b1ce4f4144c"
    assert verified.receipt.session_id == "session-1"
    module.integrity(parse(stored(golden)))


REPLACEMENTS = b'09aF"\\{],:-+. \x00\xff'


@pytest.mark.parametrize("golden", [CHAIN, ATIF], ids=["chain", "atif"])
def test_g2_every_changed_byte_is_refused(golden: dict[str, Any]) -> None:
    data = stored(golden)
    survived = []
    for place, old in enumerate(data):
        for new in {*REPLACEMENTS, old ^ 1, old ^ 0x20, old ^ 0x80} - {old}:
            if old in b" \n" and new in b" \t\r\n":
                continue
            try:
                verify(parse(data[:place] + bytes([new]) + data[place + 1 :]), RING)
            except EvidenceError:
                continue
            survived.append((place, old, new))
    assert survived == []


@given(st.integers(0, len(stored(CHAIN)) - 1), st.integers(0, 255), st.sampled_from(["replace", "insert", "delete"]))
def test_g2_no_edit_of_one_byte_changes_what_a_receipt_says(place: int, byte: int, how: str) -> None:
    data = stored(CHAIN)
    after = data[place:] if how == "insert" else data[place + 1 :]
    edited = data[:place] + (b"" if how == "delete" else bytes([byte])) + after
    try:
        verified = verify(parse(edited), RING)
    except EvidenceError:
        return
    assert verified.receipt.document() == CHAIN


@pytest.mark.parametrize("golden", [CHAIN, ATIF], ids=["chain", "atif"])
def test_g2_changed_field(golden: dict[str, Any]) -> None:
    cases: list[dict[str, Any]] = [
        {"session_id": "session-2"},
        {"receipt_id": "019fe9c7-fc02-7000-8000-000000000009"},
        {"issued_at": ISSUED + 1, "issued_at_iso": "2026-08-10T00:00:00.003Z"},
        {"ai_agent": {**golden["ai_agent"], "instance_uid": "instance-2"}},
        {"ai_agent": {**golden["ai_agent"], "ttl_remaining_s": 1}},
        {"tool_calls": {"total": 1, "allowed": 1, "blocked": 0}},
        {"cost": {**golden["cost"], "prompt_tokens": 501}},
        {"stop_reason_id": 1, "stop_reason": "Stop"},
    ]
    for change in cases:
        with pytest.raises(module.SignatureMismatch, match="signature does not match"):
            verify(parse(stored(changed(golden, **change))), RING)


def test_g2_extra_field_is_refused_at_any_level() -> None:
    for path in ("", "ai_agent", "ai_agent.charter", "subject", "tool_calls", "cost"):
        document = changed(CHAIN)
        holder = document
        for part in filter(None, path.split(".")):
            holder = holder[part]
        holder["note"] = "x"
        with pytest.raises(module.UnknownField, match=rf"unknown field {path + '.' if path else ''}note"):
            parse(stored(resigned(document)))


def test_g2_missing_field_is_refused() -> None:
    for name in CHAIN:
        with pytest.raises(EvidenceError):
            parse(stored({key: value for key, value in CHAIN.items() if key != name}))


def test_g2_duplicate_key_is_refused() -> None:
    text = stored(CHAIN).decode()
    for old in ('"issued_at": 1786320000002', '"total": 0', '"type_id": 1'):
        with pytest.raises(DuplicateKey):
            parse(text.replace(old, f"{old}, {old}").encode())


def test_g2_null_is_refused() -> None:
    for change in (
        {"ai_agent": {**CHAIN["ai_agent"], "ttl_remaining_s": None}},
        {"stop_reason": None},
        {"note": None},
        {"subject": {**CHAIN["subject"], "retroactive": None}},
        {"cost": [None]},
    ):
        with pytest.raises(module.NullInReceipt, match="null"):
            parse(stored(resigned(changed(CHAIN, **change))))


def test_g2_trailing_bytes_are_refused() -> None:
    for tail in (b"x", b"{}", b"\x00", stored(CHAIN)):
        with pytest.raises(TrailingBytes):
            parse(stored(CHAIN) + tail)


def test_g2_other_unreadable_documents() -> None:
    for data, error in (
        (b"", ParseError),
        (b"\xef\xbb\xbf" + stored(CHAIN), ParseError),
        (stored(CHAIN).decode().encode("utf-16"), ParseError),
        (b"[" * 200 + b"]" * 200, NestingTooDeep),
        (stored(CHAIN) + b" " * (16 << 20), TooLarge),
        (b"[]", module.ReceiptFormatError),
        (b"null", module.ReceiptFormatError),
        (stored(changed(CHAIN, ai_agent={**CHAIN["ai_agent"], "version": "\ud800"})), module.ReceiptFormatError),
        (stored(changed(CHAIN, key_id="\ud800")), module.ReceiptFormatError),
    ):
        with pytest.raises(error):
            parse(data)


def test_g2_swapped_key() -> None:
    other = VECTORS["keys"]["seed_07x32"]
    swapped = resigned(changed(CHAIN, public_key_b64=other["public_key_b64"]), bytes([7]) * 32)
    with pytest.raises(module.KeyIdMismatch, match="untrusted key"):
        verify(parse(stored(swapped)), RING)
    with pytest.raises(module.KeyIdMismatch):
        module.integrity(parse(stored(swapped)))


def test_g2_unknown_key_id() -> None:
    other = VECTORS["keys"]["seed_07x32"]
    document = resigned(changed(CHAIN, public_key_b64=other["public_key_b64"], key_id=other["key_id"]), bytes([7]) * 32)
    with pytest.raises(module.UnknownKey, match="untrusted key"):
        verify(parse(stored(document)), RING)
    module.integrity(parse(stored(document)))


def test_key_bytes_that_differ_from_the_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Needs a collision of 128 bits; the ring is made to lie instead.
    monkeypatch.setattr(
        Keyring, "find", lambda *_: RingKey(bytes.fromhex(VECTORS["keys"]["seed_07x32"]["public_key_hex"]))
    )
    with pytest.raises(module.KeyBytesDiffer, match="untrusted key"):
        verify(parse(stored(CHAIN)), RING)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"not_before": ISSUED + 1}, module.KeyOutsideValidity),
        ({"not_after": ISSUED - 1}, module.KeyOutsideValidity),
        ({"revoked_at": ISSUED}, module.KeyRevoked),
        ({"not_before": ISSUED, "not_after": ISSUED, "revoked_at": ISSUED + 1}, None),
    ],
)
def test_g2_key_outside_its_validity(limits: dict[str, int], error: type[Exception] | None) -> None:
    ring = Keyring.parse(json.dumps([{"public_key_b64": CHAIN["public_key_b64"], **limits}]))
    if error is None:
        verify(parse(stored(CHAIN)), ring)
    else:
        with pytest.raises(error, match="untrusted key"):
            verify(parse(stored(CHAIN)), ring)


@pytest.mark.parametrize("point", TRAPS["small_order_y_encodings_ignoring_sign_bit"])
def test_g2_small_order_key(point: str) -> None:
    raw = bytes.fromhex(point)
    document = changed(
        CHAIN,
        public_key_b64=base64.b64encode(raw).decode(),
        key_id=hashlib.sha256(raw).hexdigest()[:32],
        signature_b64=base64.b64encode(b"\1" + bytes(63)).decode(),
    )
    for check in (module.integrity, lambda receipt: verify(receipt, RING)):
        with pytest.raises(module.SmallOrderKey, match="untrusted key"):
            check(parse(stored(document)))


def test_g2_the_forgery_that_the_library_accepts_is_refused() -> None:
    # Key and R are the identity and S is 0: that is a signature of everything.
    identity = b"\1" + bytes(31)
    Ed25519PublicKey.from_public_bytes(identity).verify(identity + bytes(32), b"anything")
    document = changed(
        CHAIN,
        public_key_b64=base64.b64encode(identity).decode(),
        key_id=hashlib.sha256(identity).hexdigest()[:32],
        signature_b64=base64.b64encode(identity + bytes(32)).decode(),
    )
    with pytest.raises(module.SmallOrderKey):
        module.integrity(parse(stored(document)))


@pytest.mark.parametrize("row", TRAPS["rows"], ids=lambda row: f"{row['a_order']}-{row['r_order']}")
def test_g2_small_order_r(row: dict[str, str]) -> None:
    document = changed(CHAIN, signature_b64=base64.b64encode(bytes.fromhex(row["signature_hex"])).decode())
    with pytest.raises(module.SmallOrderSignature):
        verify(parse(stored(document)), RING)


@pytest.mark.parametrize("name", ["public_key_b64", "signature_b64"])
def test_g2_base64_that_does_not_re_encode(name: str) -> None:
    text = CHAIN[name]
    stem = text.rstrip("=")
    following = {"w": "x", "g": "h"}[stem[-1]]
    for other in (stem, stem[:-1] + following + text[len(stem) :], text + "=", text.replace("+", "-"), text + "\n", ""):
        with pytest.raises(module.NonCanonicalBase64, match=name):
            verify(parse(stored(changed(CHAIN, **{name: other}))), RING)


def test_g2_minus_zero_is_refused() -> None:
    for old in ('"total": 0', '"cached_tokens": 0'):
        for new in ("-0", "-0.0", "-0e0"):
            text = stored(CHAIN).decode().replace(old, old[:-1] + new)
            with pytest.raises(module.NegativeZero, match="-0"):
                parse(text.encode())


def test_g2_retroactive_false_is_refused_whatever_the_signature() -> None:
    for value in (False, 1, "true", 0):
        subject = {**ATIF["subject"], "retroactive": value}
        with pytest.raises(module.RetroactiveRule, match="retroactive"):
            parse(stored(resigned(changed(ATIF, subject=subject))))
    absent = {name: value for name, value in ATIF["subject"].items() if name != "retroactive"}
    with pytest.raises(module.RetroactiveRule):
        parse(stored(resigned(changed(ATIF, subject=absent))))
    for value in (True, False):
        with pytest.raises(module.RetroactiveRule):
            parse(stored(resigned(changed(CHAIN, subject={**CHAIN["subject"], "retroactive": value}))))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"receipt_version": 2}, module.ReceiptFormatError),
        ({"receipt_version": True}, module.ReceiptFormatError),
        (
            {"ai_agent": {"version": "1", "charter": {"name": "t", "type_id": True}, "instance_uid": "i"}},
            module.ReceiptFormatError,
        ),
        (
            {"ai_agent": {"version": "", "charter": {"name": "t", "type_id": 1}, "instance_uid": "i"}},
            module.ReceiptFormatError,
        ),
        ({"receipt_id": "019fe9c7-fc02-4000-8000-000000000003"}, module.ReceiptFormatError),
        ({"receipt_id": "019FE9C7-FC02-7000-8000-000000000003"}, module.ReceiptFormatError),
        ({"session_id": "a#b"}, module.ReceiptFormatError),
        ({"session_id": ""}, module.ReceiptFormatError),
        ({"issued_at": -1}, module.ReceiptFormatError),
        ({"issued_at": 2**53 - 1}, module.ReceiptFormatError),
        ({"issued_at": str(ISSUED)}, module.ReceiptFormatError),
        ({"issued_at_iso": "2026-08-10T00:00:00.002+00:00"}, module.MirrorMismatch),
        ({"stop_reason": "Stop"}, module.MirrorMismatch),
        ({"stop_reason_id": 55, "stop_reason": "Unknown"}, module.MirrorMismatch),
        ({"tool_calls": {"total": 2, "allowed": 1, "blocked": 0}}, module.MirrorMismatch),
        ({"tool_calls": {"total": False, "allowed": 0, "blocked": 0}}, module.ReceiptFormatError),
        ({"subject": {**CHAIN["subject"], "kind": "chain"}}, module.ReceiptFormatError),
        ({"subject": {**CHAIN["subject"], "chain_head": "C8" * 32}}, module.ReceiptFormatError),
        ({"subject": {**CHAIN["subject"], "chain_head": "c8" * 32 + "\n"}}, module.ReceiptFormatError),
        ({"subject": {**CHAIN["subject"], "event_count": 1.0}}, module.FractionInReceipt),
        ({"subject": []}, module.ReceiptFormatError),
    ],
)
def test_strict_form(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        parse(stored(resigned(changed(CHAIN, **change))))


# --- cases ---


def test_case19_the_largest_integer_is_signed_and_survives_any_reader() -> None:
    body = {key: value for key, value in CHAIN.items() if key not in module.SIGNER_FIELDS}
    body["cost"] = {**body["cost"], "prompt_tokens": 9007199254740991}
    data = module.to_bytes(module.issue(body, Signer(SEED)))
    assert verify(parse(data), RING).receipt.cost.prompt_tokens == 9007199254740991
    assert int(float(json.loads(data)["cost"]["prompt_tokens"])) == 9007199254740991


@pytest.mark.parametrize(
    "literal",
    [
        "9007199254740992",
        "9007199254740993",
        "0.30000000000000004",
        "1e21",
        "-0.0",
        "NaN",
        "1e2",
        "1.0",
        "true",
        '"1"',
        "-1",
    ],
)
def test_case19_other_numbers_are_refused(literal: str) -> None:
    text = stored(CHAIN).decode()
    for old in ('"prompt_tokens": 500', '"cost_usd_micros": 0'):
        with pytest.raises(EvidenceError):
            parse(text.replace(old, old.split(" ")[0] + " " + literal).encode())


@pytest.mark.parametrize("value", [2**53, 0.1 + 0.2, 1e21, float("nan"), True, -1])
def test_case19_no_other_number_is_signed(value: Any) -> None:
    body = {key: value_ for key, value_ in CHAIN.items() if key not in module.SIGNER_FIELDS}
    with pytest.raises(EvidenceError):
        module.issue({**body, "cost": {**body["cost"], "cost_usd_micros": value}}, Signer(SEED))


def test_case20_signed_again_with_a_fresh_key_under_the_same_key_id() -> None:
    fresh = VECTORS["keys"]["seed_05x32"]
    forged = resigned(changed(CHAIN, public_key_b64=fresh["public_key_b64"]), bytes([5]) * 32)
    with pytest.raises(module.UntrustedKey, match="untrusted key"):
        verify(parse(stored(forged)), RING)
    only_signature = resigned(CHAIN, bytes([5]) * 32)
    with pytest.raises(module.SignatureMismatch):
        verify(parse(stored(only_signature)), RING)


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31)], ids=["all-zero", "identity"])
@pytest.mark.parametrize("key_id", ["kept", "derived"])
def test_case20_all_zero_and_identity_keys(point: bytes, key_id: str) -> None:
    document = changed(CHAIN, public_key_b64=base64.b64encode(point).decode())
    if key_id == "derived":
        document["key_id"] = hashlib.sha256(point).hexdigest()[:32]
    with pytest.raises(module.UntrustedKey, match="untrusted key"):
        verify(parse(stored(document)), RING)


def test_i5_foreign_text_in_messages_is_escaped_and_cut() -> None:
    for change in ({"key_id": "\x1b[2J" + "x" * 500}, {"\x1b[2J" + "x" * 500: 1}, {"\x1b[2J" + "x" * 500: None}):
        with pytest.raises(EvidenceError) as caught:
            verify(parse(stored(changed(CHAIN, **change))), RING)
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 200
