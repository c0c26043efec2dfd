"""Envelopes and journal records: formats.md 5, behaviours I4."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from affidavit.evidence import journal
from affidavit.evidence.canonical import CanonicalError
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.strict import DuplicateKey, NestingTooDeep, StrictJsonError, TrailingBytes
from tests.support import proof

VECTORS = json.loads(Path(__file__).parents[2].joinpath("vectors.json").read_text("utf-8"))["journal"]
KEY = b"\x07" * 32
DOMAIN = "session:signed"
SEALED = VECTORS[0]["sealed"].encode()
RECORD: dict[str, Any] = {
    "event": {"metadata": {"sequence": 4}},
    "identity": {"version": "1"},
    "tool_calls": 1,
    "tool_allowed": 1,
    "tool_blocked": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cached_tokens": 0,
    "cost_usd_micros": 0,
    "stop_reason_id": None,
    "attempt": None,
}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["domain"])
def test_macs_are_the_golden_ones(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key_hex"])
    sealed = journal.seal(key, vector["domain"], vector["index"], vector["payload"])
    assert json.loads(sealed)["mac"] == vector["mac"]
    assert list(json.loads(sealed)) == ["index", "payload", "mac"]
    assert b"\n" not in sealed
    opened = journal.open_envelope(sealed, keys=[key], domain=vector["domain"], index=vector["index"])
    assert opened == vector["payload"]


def test_sealed_text_is_compact_and_golden() -> None:
    assert journal.seal(KEY, DOMAIN, 3, {"value": 1}) == SEALED


def test_sealing_is_the_same_bytes_whatever_the_order_of_keys() -> None:
    assert journal.seal(KEY, "d", 0, {"b": 1, "a": 2}) == journal.seal(KEY, "d", 0, {"a": 2, "b": 1})


def test_any_of_the_keys_may_have_made_the_mac() -> None:
    keys = [b"a" * 32, KEY, b"b" * 32]
    assert journal.open_envelope(SEALED, keys=keys, domain=DOMAIN, index=3) == {"value": 1}
    with pytest.raises(journal.AuthenticationFailed):
        journal.open_envelope(SEALED, keys=[keys[0], keys[2]], domain=DOMAIN, index=3)
    with pytest.raises(journal.AuthenticationFailed):
        journal.open_envelope(SEALED, keys=[], domain=DOMAIN, index=3)


def test_i4_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    original = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append("once")
        return original(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    journal.open_envelope(SEALED, keys=[KEY, b"a" * 32, b"b" * 32], domain=DOMAIN, index=3)
    assert len(compared) == 3


@pytest.mark.parametrize("place", range(64))
def test_i4_authentication_failed_is_the_same_text_for_every_byte(place: int) -> None:
    at = SEALED.index(b'"mac":"') + len('"mac":"') + place
    other = b"0" if SEALED[at : at + 1] != b"0" else b"1"
    with pytest.raises(journal.AuthenticationFailed, match=r"\Aauthentication failed\Z"):
        journal.open_envelope(SEALED[:at] + other + SEALED[at + 1 :], keys=[KEY], domain=DOMAIN, index=3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"value":1', b'"value":2'),
        (b'"index":3', b'"index":4'),
        (b"affcb6a8", b"AFFCB6A8"),
        (b'2b35c0309f"', b'2b35c0309"'),
        (b'2b35c0309f"', b'2b35c0309f00"'),
    ],
)
def test_authentication_failed(old: bytes, new: bytes) -> None:
    assert old in SEALED
    with pytest.raises(journal.AuthenticationFailed, match=r"\Aauthentication failed\Z"):
        journal.open_envelope(SEALED.replace(old, new), keys=[KEY], domain=DOMAIN, index=3)


def test_another_domain_does_not_authenticate() -> None:
    with pytest.raises(journal.AuthenticationFailed):
        journal.open_envelope(SEALED, keys=[KEY], domain="session:signee", index=3)


def test_i4_the_mac_comes_before_the_position() -> None:
    with pytest.raises(journal.PositionMismatch, match=r"\Aposition mismatch\Z"):
        journal.open_envelope(SEALED, keys=[KEY], domain=DOMAIN, index=4)
    with pytest.raises(journal.AuthenticationFailed):
        journal.open_envelope(SEALED, keys=[b"x" * 32], domain=DOMAIN, index=4)
    assert journal.open_envelope(SEALED, keys=[KEY], domain=DOMAIN, index=None) == {"value": 1}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", StrictJsonError),
        (b"{", StrictJsonError),
        (SEALED + b"x", TrailingBytes),
        (SEALED.replace(b'"index":3', b'"index":3,"index":3'), DuplicateKey),
        (b'{"index":3,"payload":' + b"[" * 200 + b"]" * 200 + b',"mac":""}', NestingTooDeep),
        (b"[]", journal.EnvelopeParseError),
        (b'{"index":3,"payload":{}}', journal.EnvelopeParseError),
        (SEALED.replace(b'"index"', b'"more":1,"index"'), journal.EnvelopeParseError),
        (SEALED.replace(b'"index":3', b'"index":-0'), journal.EnvelopeParseError),
        (SEALED.replace(b'"index":3', b'"index":-3'), journal.EnvelopeParseError),
        (SEALED.replace(b'"index":3', b'"index":3.0'), journal.EnvelopeParseError),
        (SEALED.replace(b'"index":3', b'"index":true'), journal.EnvelopeParseError),
        (SEALED.replace(b'"index":3', b'"index":9007199254740992'), journal.EnvelopeParseError),
        (SEALED.replace(b"affcb6a8", b" ffcb6a8"), journal.EnvelopeParseError),
        (b'{"index":0,"payload":1,"mac":"%b"}' % (b"0" * 129), journal.EnvelopeParseError),
        (b'{"index":0,"payload":1,"mac":"%b"}' % (b"0" * 128), journal.AuthenticationFailed),
        (b'{"index":0,"payload":1,"mac":null}', journal.EnvelopeParseError),
    ],
)
def test_malformed_envelopes(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        journal.open_envelope(data, keys=[KEY], domain=DOMAIN, index=None)


def test_sealing_refuses_what_cannot_be_opened() -> None:
    for key, index in ((b"short", 0), (KEY, -1), (KEY, 2**53), (KEY, True)):
        with pytest.raises(journal.EnvelopeError):
            journal.seal(key, "d", index, {})
    with pytest.raises(CanonicalError):
        journal.seal(KEY, "d", 0, {"value": 2**53})


def test_domains_name_session_generation_and_kind() -> None:
    assert journal.domain_active("s-1", "gen-A") == "s-1#gen-A:active"
    assert journal.domain_metadata("s-1", "gen-A") == "s-1#gen-A:metadata"
    assert journal.domain_lifecycle("s-1", "gen-A") == "s-1#gen-A:lifecycle"
    assert journal.domain_outcome("s-1", "gen-A") == "s-1#gen-A:outcome"
    assert journal.domain_trajectory("s-1", "gen-A") == "s-1#gen-A:trajectory"


@pytest.mark.parametrize(
    ("session", "generation"), [("a#b", "g"), ("a", "g:active"), ("a", "g#h"), ("", "g"), ("a", "")]
)
def test_domains_are_unambiguous(session: str, generation: str) -> None:
    with pytest.raises(ValueError):
        journal.domain_active(session, generation)


def test_record_payload_writes_the_keys_of_the_format_in_order() -> None:
    payload = journal.record_payload(
        event=RECORD["event"],
        identity=RECORD["identity"],
        counts={"tool_calls": 1, "tool_allowed": 1},
        stop_reason_id=None,
        attempt=None,
    )
    assert payload == RECORD
    assert list(payload) == list(RECORD)
    with pytest.raises(journal.RecordError, match="tokens"):
        journal.record_payload(event={}, identity={}, counts={"tokens": 1}, stop_reason_id=None, attempt=None)


def test_a_record_reads_back() -> None:
    record = journal.JournalRecord.read({**RECORD, "attempt": {"id": "a", "terminal": True}}, index=4)
    assert (record.tool_calls, record.stop_reason_id, record.attempt) == (
        1,
        None,
        journal.Attempt(id="a", terminal=True),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"tool_calls": True},
        {"tool_calls": 1.0},
        {"tool_calls": -1},
        {"tool_calls": 2**53},
        {"tool_calls": None},
        {"more": 1},
        {"attempt": {"id": "a"}},
        {"attempt": {"id": "a", "terminal": 1}},
        {"event": []},
        {"event": {"metadata": {"sequence": 5}}},
        {"event": {"metadata": {"sequence": 4.0}}},
        {"event": {}},
    ],
)
def test_records_are_read_strictly(change: dict[str, Any]) -> None:
    with pytest.raises(journal.RecordError):
        journal.JournalRecord.read({**RECORD, **change}, index=4)


@pytest.mark.parametrize("name", RECORD)
def test_every_field_of_a_record_is_required(name: str) -> None:
    with pytest.raises(journal.RecordError):
        journal.JournalRecord.read({key: value for key, value in RECORD.items() if key != name}, index=4)


def test_i5_record_errors_escape_and_cut_foreign_names() -> None:
    with pytest.raises(journal.RecordError) as caught:
        journal.JournalRecord.read({**RECORD, "\x1b[31m" + "x" * 500: 1}, index=4)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


def _metadata(**change: Any) -> dict[str, Any]:
    registration = {"mode": "signed"}
    return {
        "journal_version": 3,
        "session_id": "s",
        "generation": "g",
        "mode": "signed",
        "content": "store",
        "identity": {},
        "product_version": "0.1.0",
        "trajectory_id": "019fe9c7-fc00-7000-8000-000000000001",
        "registration_sha256": hashlib.sha256(b'{"mode":"signed"}').hexdigest(),
        "registration": registration,
    } | change


def test_metadata_reads_back() -> None:
    assert journal.Metadata.read(_metadata()).mode == "signed"


@pytest.mark.parametrize(
    "change",
    [
        {"journal_version": 2},
        {"journal_version": True},
        {"mode": "both"},
        {"mode": "signed\n"},
        {"content": "none"},
        {"registration_sha256": "0" * 64},
        {"registration": {"mode": "unsigned"}},
        {"more": 1},
        {"generation": ""},
    ],
)
def test_metadata_is_read_strictly(change: dict[str, Any]) -> None:
    with pytest.raises(journal.RecordError):
        journal.Metadata.read(_metadata(**change))


@pytest.mark.parametrize(
    "record",
    [
        {"event": {"b": 1, "a": [1.0]}, "identity": {"c": 2}},
        {"event": {}, "attempt": None, "identity": {}},
    ],
)
def test_a_record_is_sealed_like_any_payload_and_its_event_is_in_canonical_form(record: dict[str, Any]) -> None:
    line, event = journal.seal_record(KEY, DOMAIN, 3, record)
    assert line == proof.envelope(KEY, DOMAIN, 3, record)
    assert event == rfc8785.dumps(record["event"])


TRICKY = st.sampled_from(['"event":', ',"identity":', "event", "identity", "\\", '"', "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-4, 4) | TRICKY,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=8,
)


@given(event=st.dictionaries(TRICKY, VALUES, max_size=4), attempt=TRICKY, name=TRICKY)
def test_a_record_opens_to_what_any_reader_reads_and_to_its_events_canonical_form(
    event: dict[str, Any], attempt: str, name: str
) -> None:
    record = {
        **RECORD,
        "event": event,
        "identity": {"charter": {"name": name}},
        "attempt": {"id": attempt, "terminal": True},
    }
    line = proof.envelope(KEY, DOMAIN, 4, record)
    assert journal.seal_record(KEY, DOMAIN, 4, record) == (line, rfc8785.dumps(event))
    opened, canonical = journal.open_record(line, keys=[b"x" * 32, KEY], domain=DOMAIN, index=4)
    assert opened == json.loads(rfc8785.dumps(record))
    assert canonical == rfc8785.dumps(event)
    # Written by somebody else's JSON library: as good, if the MAC is.
    spaced = json.dumps(json.loads(line)).encode()
    assert journal.open_record(spaced, keys=[KEY], domain=DOMAIN, index=4) == (opened, canonical)


@pytest.mark.parametrize("at", range(0, 480, 7))
def test_a_record_with_one_other_byte_is_refused(at: int) -> None:
    line = proof.envelope(KEY, DOMAIN, 4, {**RECORD, "event": {"metadata": {"sequence": 4}, "text": "x" * 200}})
    at = at % len(line)
    with pytest.raises(EvidenceError):
        journal.open_record(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :], keys=[KEY], domain=DOMAIN, index=4)


def test_a_record_at_another_place_is_refused() -> None:
    line = proof.envelope(KEY, DOMAIN, 4, RECORD)
    with pytest.raises(journal.PositionMismatch):
        journal.open_record(line, keys=[KEY], domain=DOMAIN, index=5)
    with pytest.raises(journal.AuthenticationFailed):
        journal.open_record(line, keys=[b"x" * 32], domain=DOMAIN, index=4)
    with pytest.raises(EvidenceError):
        journal.open_record(line.replace(b'"index":4', b'"index":04'), keys=[KEY], domain=DOMAIN, index=4)
