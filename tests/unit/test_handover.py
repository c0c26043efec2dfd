"""What a run hands to the next one: nothing of it changes on the way, and it stays small."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from activities.embedders import HashEmbedder
from affidavit.activity_api import Entry, JournalRequest, LifecycleRequest, OpenRequest, SealRequest, SealResult
from affidavit.assessment import pack_counts
from affidavit.contract import Agent, SessionOutcome, Totals
from affidavit.process_api import AbandonRequest, EventSummary, WaitRequest
from workflows.breaker import BreakerState
from workflows.handover import ARGUMENTS, TooMuchWaits, pack, unpack
from workflows.inbox import Arrival, Inbox, Item, Message
from workflows.messages import message, parse, read_step
from workflows.process import ProcessState
from workflows.producers import body_digest
from workflows.state import Ending, Ledger, Pending, SessionState

T = 1_786_320_000_000
BIG = 2**53 - 1
DIGEST = "ab" * 32
UID = "0198e1f0-0000-7000-8000-000000000001"
SPEC = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent": "as it was sent"}'))
AGENT = Agent(version="1", charter="triage", instance_uid="agent-7", ttl_remaining_s=600)
TOTALS = Totals(tool_calls=3, tool_allowed=2, tool_blocked=1, prompt_tokens=BIG, cost_usd_micros=7)


def fresh_state(**fields: Any) -> SessionState:
    return SessionState(
        generation=UID,
        product_version="0.1.0",
        trajectory_id=UID,
        registration_sha256=DIGEST,
        **{"ledger": Ledger(agent=AGENT), **fields},
    )


def an_inbox(received: list[Item] = [], arrivals: list[Arrival] = []) -> Inbox:  # noqa: B006
    inbox = Inbox(lambda arrival: [])
    inbox.put_received(received)
    inbox.put(arrivals)
    return inbox


def handed_on(
    state: SessionState, steps: bytes = b"", inbox: Inbox | None = None
) -> tuple[SessionState, bytes, list[Item], list[Arrival]]:
    """Through JSON and back, as the next run gets it."""
    arguments = pack(SPEC, state, steps, inbox or an_inbox())
    assert len(arguments) == ARGUMENTS == 4
    assert arguments[0] is SPEC
    assert all(argument.payload.metadata["encoding"] == b"json/plain" for argument in arguments)
    return unpack([Payload.FromString(argument.payload.SerializeToString()) for argument in arguments])


def a_step(text: str) -> Item:
    value = parse(text)
    step = read_step(text, value)
    return Item(step.kind, T, step, value, text)


# -- the state ------------------------------------------------------------------------------------------


def entry(sequence: int) -> Entry:
    return Entry(
        action="model_response",
        sequence=sequence,
        uid=UID,
        time=T + sequence,
        class_name="agent.stop_reason",
        status_id=1,
        severity_id=1,
        stop_reason_id=1,
        stop_reason="stop",
        payload={"finish_reason": "stop", "nested": {"empty": {}, "list": []}},
        metrics={"prompt_tokens": BIG},
        counts={"prompt_tokens": BIG},
        step=sequence,
        ttl_remaining_s=0,
        attempt_id="a",
        attempt_terminal=False,
    )


def journal_request(entries: int = 2) -> JournalRequest:
    return JournalRequest(
        generation=UID,
        run_id=UID,
        content="store",
        product_version="0.1.0",
        agent=AGENT,
        head=DIGEST,
        entries=[entry(sequence) for sequence in range(entries)],
    )


def open_request() -> OpenRequest:
    return OpenRequest(
        generation=UID,
        reopen=True,
        mode="signed",
        content="store",
        agent=AGENT,
        product_version="0.1.0",
        trajectory_id=UID,
        registration={"agent": {"version": "1"}, "event_types": {}},
        registration_sha256=DIGEST,
        entry=entry(0),
    )


def an_outcome() -> SessionOutcome:
    return SessionOutcome(
        session_id="s",
        generation=UID,
        mode="signed",
        status="closed",
        stop_reason_id=1,
        stop_reason="Stop",
        totals=TOTALS,
        steps=3,
        event_count=4,
        chain_head=DIGEST,
        receipt={"cost": {}, "ttl": 0},
        published=True,
    )


def an_ending() -> Ending:
    return Ending(
        seal=SealRequest(
            generation=UID,
            head=DIGEST,
            count=4,
            totals=TOTALS,
            stop_reason_id=1,
            idle=True,
            receipt_id=UID,
            issued_at=T,
        ),
        sealed=SealResult(receipt={"cost": {}, "subject": {"kind": "event_chain"}}, receipt_sha256=DIGEST),
        lifecycle=LifecycleRequest(generation=UID, product_version="0.1.0", agent=AGENT, entries=[entry(4), entry(5)]),
        lifecycle_written=True,
        outcome=an_outcome(),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pending": Pending(request=journal_request(), ledger=Ledger(agent=AGENT, head=DIGEST, count=2))},
        {"pending": Pending(request=open_request(), ledger=Ledger(agent=AGENT)), "opened": False},
        {"ending": an_ending(), "closing": True, "closing_since_ms": T},
        {"ending": Ending(), "poisoned": "overflow of prompt_tokens", "unprocessed": 3, "unprocessed_sha256": DIGEST},
        {"in_doubt_through": 17, "published": 12, "runs": 4, "cancelled": True, "late_steps": 2, "idle": True},
    ],
    ids=["fresh", "a batch", "the opening", "an ending", "a poisoned ending", "marks"],
)
def test_the_next_run_has_the_state_of_this_one(fields: dict[str, Any]) -> None:
    state = fresh_state(**fields)
    found, _, _, _ = handed_on(state)
    assert found == state
    if state.pending is not None:
        assert found.pending is not None
        assert type(found.pending.request) is type(state.pending.request)
        assert found.pending.request.model_dump_json() == state.pending.request.model_dump_json()


def test_sessions_share_nothing() -> None:
    """Two of them live in one worker process, and defaults of a model could be one object."""
    one, other = fresh_state(), fresh_state()
    one.producers.arrive("p", 1, "x", T)
    one.attempts.admit("a", T)
    one.refusals.add("loop detected", 0)
    one.ledger.breaker.vectors.append("x")
    one.ledger.tail.append(EventSummary(sequence=0, time=T, action="opened", status_id=1))
    one.ledger.totals.tool_calls = 1
    assert other == fresh_state()


def test_the_steps_of_the_pending_batch_are_handed_on_to_the_letter() -> None:
    steps = b'{"steps":[{"n": 1e2 ,"t":"\\ud83d","u":"\xc3\xa9"}]}'
    assert handed_on(fresh_state(), steps)[1] == steps
    assert json.loads(handed_on(fresh_state())[1]) == {"steps": []}


# -- what waits -----------------------------------------------------------------------------------------


def shown(arrival: Arrival) -> dict[str, Any]:
    """All of an arrival but its ticket, which the next run gives anew."""
    if isinstance(arrival, Message):
        payloads = [(dict(payload.metadata), payload.data) for payload in arrival.payloads]
        return {"name": arrival.name, "payloads": payloads, "late": arrival.late, "weight": arrival.weight}
    return {name: getattr(arrival, name) for name in ("action", "admitted_ms", "step", "value", "text", "payload")}


RECEIVED = [
    a_step(
        '{"kind":"tool_result", "content":{"n":1e2,"big":9007199254740993,"half":"\\ud83d","pair":"\\ud83d\\ude00"}}'
    ),
    a_step('{"kind":"model_response","text":"é\\n","attempt_id":"a","producer":"p","producer_seq":3}'),
    Item("message_rejected", T + 1, payload={"name": "record", "reason": "é", "sha256": DIGEST, "bytes": 12}),
]
ARRIVALS: list[Arrival] = [
    message(
        "record", [Payload(metadata={"encoding": b"json/plain"}, data=b'{"steps":[{"kind":1},{"kind":2}]}')], T + 2
    ),
    message("two\nlines", [], T + 2),
    Item("cancel_requested", T + 3),
    message(
        "tool_call",
        [
            Payload(
                metadata={"encoding": b"binary/encrypted", "key-id": b"\x00\xff\xfe", "": b""}, data=bytes(range(256))
            ),
            Payload(),
            Payload(metadata={"encoding": b"affidavit/unavailable", "sha256": DIGEST.encode()}),
        ],
        T + 4,
        late=True,
    ),
    a_step('{"kind":"model_failure","reason":"timeout","claimed_time":"2020-01-01T00:00:00Z"}'),
]


def test_what_waits_is_handed_on_in_order_read_and_unread() -> None:
    inbox = an_inbox(RECEIVED, ARRIVALS)
    _, _, received, arrivals = handed_on(fresh_state(), inbox=inbox)
    assert [shown(item) for item in received] == [shown(item) for item in RECEIVED]
    assert [shown(arrival) for arrival in arrivals] == [shown(arrival) for arrival in ARRIVALS]
    assert [arrival.admitted_ms for arrival in arrivals] == [arrival.admitted_ms for arrival in ARRIVALS]
    # Nothing was taken out: a run that cannot be handed on goes on with it.
    assert inbox.waiting() == (RECEIVED, ARRIVALS)
    # And the next run weighs it as this one did.
    again = an_inbox(received, arrivals)
    assert (again.depth, again.bytes) == (inbox.depth, inbox.bytes)


@pytest.mark.parametrize("kind", ["received", "unread"])
def test_more_than_a_megabyte_that_waits_is_not_handed_on(kind: str) -> None:
    def waiting(size: int) -> Inbox:
        text = '{"kind":"tool_result","content":"' + "x" * size + '"}'
        if kind == "received":
            return an_inbox([a_step(text)])
        payload = Payload(metadata={"encoding": b"json/plain"}, data=text.encode())
        return an_inbox(arrivals=[message("tool_result", [payload], T)])

    # Unread messages may be any bytes, and take a third more as text.
    fits = 999_700 if kind == "received" else 749_700
    arguments = pack(SPEC, fresh_state(), b"", waiting(fits))
    assert len(arguments[3].payload.data) <= 1_000_000
    with pytest.raises(TooMuchWaits, match=r"bytes wait, over the limit of 1000000$"):
        pack(SPEC, fresh_state(), b"", waiting(fits + 400))


# -- how much it is -------------------------------------------------------------------------------------


def fill(process: ProcessState) -> None:
    """Every declared type with a long name, and long words on all else."""
    types = [f"{place:02}".ljust(64, "t") for place in range(32)]
    process.log.append(
        [
            Entry(
                action="event",
                sequence=sequence,
                uid=UID,
                time=T,
                class_name="agent.session",
                status_id=1,
                severity_id=1,
                payload={"type": types[sequence % 32]},
            )
            for sequence in range(500)
        ]
    )
    process.log.counts |= dict.fromkeys((f"action_number_{place:02}" for place in range(30)), BIG)
    process.external_ref = "r" * 256
    process.set_wait(WaitRequest(kind="k" * 256, name="n" * 256), T)
    process.request_cancel("c" * 4096, T)
    process.request_abandon(AbandonRequest(by="b" * 256, reason="a" * 4096), T, 9)
    assert len(process.model_dump_json()) < 20_000


@pytest.mark.parametrize("first", [1, 1_000_000_000, BIG - 1_000_000], ids=["small", "usual", "largest"])
def test_h5_a_full_state_is_under_200_kb(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    """64 producers with long names, 32 gaps and 64 digests each; 64 attempts; a breaker after eight long texts."""
    state = fresh_state()
    for place in range(64):
        name, number = f"{place:02}".ljust(64, "p"), first
        for step in (0, *[5_000] * 32, *[1] * 63):
            number += step
            state.producers.arrive(name, number, body_digest({"producer": place, "number": number}), T)
        producer = state.producers.known[name]
        assert (len(producer.gaps), len(producer.digests)) == (32, 64)
        state.attempts.request(f"{place:03}".ljust(128, "a"), T)
    embedder = HashEmbedder()
    vectors = [
        pack_counts(
            [int(count) for count in embedder.counts("".join(chr(33 + (n * n + place) % 900) for n in range(20_000)))]
        )
        for place in range(8)
    ]
    state.ledger.breaker = BreakerState(vectors=vectors, call_digests=[DIGEST] * 8, streak=3, tokens=BIG, open=True)
    state.ledger.totals = TOTALS
    for sequence in range(20):
        state.ledger.summarise(EventSummary(sequence=sequence, time=T, action="identity_refreshed", status_id=1))
    fill(state.process)
    size = len(pack(SPEC, state, b"", an_inbox())[1].payload.data)
    assert handed_on(state)[0] == state
    with capsys.disabled():
        names = ("producers", "attempts", "ledger", "process")
        parts = {name: len(getattr(state, name).model_dump_json()) for name in names}
        print(f"\n    a full state, numbers from {first}: {size} bytes, of which {parts}")
    assert size < 200_000
    # With a batch of 64 that is cut and not journaled, and the ledger that it leads to.
    state.pending = Pending(request=journal_request(64), ledger=state.ledger)
    with_batch = len(pack(SPEC, state, b"", an_inbox())[1].payload.data)
    with capsys.disabled():
        print(f"    with a batch of 64: {with_batch} bytes")
    assert with_batch < 256 * 1024
