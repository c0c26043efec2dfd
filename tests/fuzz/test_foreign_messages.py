"""Messages that somebody else has sent: rejected by name, or taken; and what is taken can be journaled (B5, B6)."""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from activities.composing import Session, compose
from activities.embedders import HashEmbedder
from activities.embedding import EmbeddingActivity
from affidavit.assessment import decode_request, encode_request
from affidavit.contract import SIGNAL_RECORD, STEP_SIGNALS, AdmitRequest, Agent, BreakerReset, SessionSpec
from affidavit.converter import data_converter
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.capture import read_reported
from affidavit.evidence.ocsf import validate_event
from affidavit.stores.local import DirectoryStore
from tests.fuzz.evidence import STEPS, signal
from tests.fuzz.mutations import TOKENS, altered, bad_json, bent, deep, fuzzed, values
from tests.support.rig import AGENT
from workflows.attempts import Attempts
from workflows.decide import assessable, decide
from workflows.inbox import Inbox, Item, Message
from workflows.messages import Unreadable, check_submission, message, read_model
from workflows.receiving import Receiver
from workflows.registration import Refused, check_same, read_registration
from workflows.state import Ledger, SessionState

NOW = 1_786_320_000_000
SPEC = SessionSpec(agent=AGENT, content="full")
NAMES = st.sampled_from([SIGNAL_RECORD, *STEP_SIGNALS, "woken", "ack_wake", "", "a" * 300, "\x1b[2J"])
ENCODINGS = st.sampled_from([b"json/plain", b"json/plain", b"binary/plain", b"affidavit/unavailable", b"\xff", b""])


def fresh() -> SessionState:
    return SessionState(
        generation="g",
        product_version="1",
        trajectory_id="t",
        registration_sha256="r",
        ledger=Ledger(agent=AGENT, head="00" * 32),
    )


records = st.lists(st.sampled_from(STEPS).flatmap(altered) | values | deep, min_size=1, max_size=4).map(
    lambda steps: json.dumps({"steps": steps}).encode()
)
bodies = st.binary(max_size=64) | records | records.flatmap(bent) | bad_json(STEPS[1]) | st.sampled_from(TOKENS)
payloads = st.builds(signal, bodies, ENCODINGS)

WOKEN: dict[str, Any] = {
    "kind": "wake",
    "input": {"do": ["this", 1.5, None]},
    "wake_id": "0198a7c0-0000-7000-8000-000000000001",
    "source": {"session_id": "child", "generation": "0198a7c0-0000-7000-8000-00000000000a", "sequence": 4},
}
with_any_input = (values | deep).map(lambda value: {**WOKEN, "input": value})
woken = bad_json(WOKEN) | (altered(WOKEN) | with_any_input).map(lambda form: json.dumps(form).encode())


@fuzzed
@given(NAMES, st.lists(payloads, max_size=2) | payloads.map(lambda payload: [payload]))
def test_b5_a_signal_becomes_events_that_can_be_journaled(name: str, arguments: Sequence[Payload]) -> None:
    state = fresh()
    items = received(state, message(name, arguments, NOW))
    assert items or state.repeated  # never nothing
    journal(state, items)


@fuzzed
@given(st.lists(st.builds(signal, woken), min_size=1, max_size=3))
def test_p18_a_wake_that_somebody_has_forged(wakes: Sequence[Payload]) -> None:
    state = fresh()
    items = received(state, *(message("woken", [wake], NOW) for wake in wakes))
    assert len(items) + state.repeated == len(wakes)
    journal(state, items)
    taken = [item for item in items if item.step is not None]
    for item in taken:  # as the session does once they are journaled
        state.wakes.came(item.sequence, json.loads(item.text))
    listed = state.wakes.after(-1).wakes
    assert [note.sequence for note in listed] == [item.sequence for item in taken]
    for note, item in zip(listed, taken, strict=True):
        assert note.input_omitted or json.dumps(note.input) == json.dumps(item.value["input"])


def test_p18_the_wake_that_is_bent_is_good_before() -> None:
    state = fresh()
    sent = message("woken", [signal(json.dumps(WOKEN).encode())], NOW)
    assert [item.action for item in received(state, sent, sent)] == ["wake"]
    assert state.repeated == 1


def received(state: SessionState, *messages: Message) -> list[Item]:
    """What the session is to journal of them, in order."""
    inbox = Inbox(Receiver(state).receive)
    inbox.put(messages)
    items: list[Item] = []
    while batch := inbox.cut():
        items += batch
    return items


def journal(state: SessionState, items: Sequence[Item]) -> None:
    """What the session does with a batch, without a server: embed, decide, compose."""
    places = [place for place, item in enumerate(items) if assessable(item)]
    request = decode_request(encode_request([], [items[place].value for place in places]))
    assessed = EmbeddingActivity(HashEmbedder()).assess(request).assessments
    decision = decide(
        state.ledger, SPEC, items, dict(zip(places, assessed, strict=True)), Attempts(), lambda: str(uuid.uuid4())
    )
    assert len(decision.entries) == len(items) or decision.fault
    steps = read_reported(('{"steps":[' + ",".join(decision.steps) + "]}").encode("utf-8"))["steps"]
    session = Session("session-1", "1", AGENT, "full")
    for entry in decision.entries:
        record, _ = compose(session, entry, None if entry.step is None else steps[entry.step])
        canonicalize(record)
        assert validate_event(record["event"]) == []


@fuzzed
@given(payloads)
def test_a_submission(payload: Payload) -> None:
    with suppress(Unreadable):
        check_submission(payload)


@fuzzed
@given(
    st.builds(signal, bad_json({"attempt_id": "a", "agent": AGENT.model_dump()}), ENCODINGS) | payloads,
    st.sampled_from([AdmitRequest, Agent, BreakerReset]),
)
def test_the_argument_of_an_update(payload: Payload, model: type[BaseModel]) -> None:
    with suppress(Unreadable):
        read_model(payload, model)


FORM: dict[str, Any] = {
    "agent": AGENT.model_dump(),
    "mode": "unsigned",
    "breaker": {"delta_epsilon": 0.3, "window": 3, "min_tokens": 0, "action": "inject"},
    "limits": {"queue": 8, "idle_close_s": 60},
    "tool_definitions": [{"name": "search"}],
    "trajectory_extra": {"notes": "x", "extra": {"a": 1}},
}


@fuzzed
@given(st.lists(st.builds(signal, bad_json(FORM), ENCODINGS) | payloads, max_size=2))
def test_a6_a_spec(arguments: Sequence[Payload]) -> None:
    bound = read_registration([signal(json.dumps(FORM).encode())])
    with suppress(Refused):
        check_same(bound, read_registration(arguments))


_KEPT = tempfile.TemporaryDirectory()
CONVERTER = data_converter(DirectoryStore(Path(_KEPT.name)))
CLAIM = {"store": "x", "session": "0" * 32, "sha256": "0" * 64, "bytes": "7"}


@fuzzed
@given(
    st.binary(max_size=64) | bad_json({"driver_name": "affidavit", "driver_claim": {"claim_data": CLAIM}}),
    st.sampled_from([b"json/external-storage-reference", b"json/plain", b"affidavit/unavailable", b"binary/protobuf"]),
)
def test_b9_a_reference_to_a_payload_that_somebody_has_forged(data: bytes, encoding: bytes) -> None:
    payload = signal(data, encoding)
    # An error here would fail a session's every task.
    (opened,) = asyncio.run(CONVERTER.decode([payload], [RawValue]))
    assert isinstance(opened, RawValue)
