"""The inbox as a function: order, bounds of a batch, tickets, and messages that are read in their turn."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload

from affidavit.contract import Agent
from workflows.inbox import Arrival, Inbox, Item, Message
from workflows.messages import message, parse, read_step
from workflows.receiving import Receiver
from workflows.state import Ledger, SessionState

T = 1_786_320_000_000
Step = dict[str, Any]


def call(call_id: str, **more: Any) -> Step:
    return {"kind": "tool_call", "call_id": call_id, "tool": "search", "allowed": True, **more}


def signal(*steps: Step, late: bool = False) -> Message:
    data = json.dumps({"steps": list(steps)}).encode()
    return message("record", [Payload(metadata={"encoding": b"json/plain"}, data=data)], T, late=late)


def item(step: Step) -> Item:
    text = json.dumps(step)
    return Item(step["kind"], T, read_step(text, parse(text)), parse(text), text)


def own(action: str = "cancel_requested") -> Item:
    return Item(action, T)


def fresh_state() -> SessionState:
    agent = Agent(version="1", charter="triage", instance_uid="agent-7")
    return SessionState(
        generation="g", product_version="1", trajectory_id="t", registration_sha256="r", ledger=Ledger(agent=agent)
    )


class Reading:
    """Receives like a session, and notes how much was read by then."""

    def __init__(self) -> None:
        self.state = fresh_state()
        self.received: list[Arrival] = []
        self._receiver = Receiver(self.state)

    def __call__(self, arrival: Arrival) -> list[Item]:
        self.received.append(arrival)
        return self._receiver.receive(arrival)


@pytest.fixture
def reading() -> Reading:
    return Reading()


def names(items: list[Item]) -> list[str]:
    return [getattr(item.step, "call_id", item.action) for item in items]


def test_b1_what_came_first_is_cut_first_whatever_it_came_as(reading: Reading) -> None:
    inbox = Inbox(reading)
    inbox.put([signal(call("a"), call("b")), own(), item(call("c"))])
    inbox.put([signal(call("d"))])
    assert names(inbox.cut()) == ["a", "b", "cancel_requested", "c", "d"]
    assert (inbox.cut(), inbox.empty, inbox.depth, inbox.bytes) == ([], True, 0, 0)


def test_a_batch_has_64_steps_and_the_rest_goes_into_the_next(reading: Reading) -> None:
    inbox = Inbox(reading)
    inbox.put([signal(*(call(f"{n}") for n in range(100))), signal(*(call(f"{n}") for n in range(100, 130)))])
    assert inbox.depth == 130
    assert [len(inbox.cut()) for _ in range(4)] == [64, 64, 2, 0]


def test_a_batch_has_256_kib_or_one_larger_step(reading: Reading) -> None:
    inbox = Inbox(reading)
    third = 100 * 1024
    sizes = {"a": third, "b": third, "c": third, "big": 300 * 1024, "d": 10}
    inbox.put([signal(call(name, reason="x" * size)) for name, size in sizes.items()])
    assert [names(inbox.cut()) for _ in range(4)] == [["a", "b"], ["c"], ["big"], ["d"]]


def test_no_more_is_read_than_a_batch_takes(reading: Reading) -> None:
    inbox = Inbox(reading)
    inbox.put([signal(*(call(f"{n}") for n in range(40))) for _ in range(5)])
    assert reading.received == []
    assert len(inbox.cut()) == 64
    assert len(reading.received) == 2
    # A message that would not fit is not even read.
    inbox.put([signal(call("big", reason="x" * 300 * 1024))])
    for _ in range(3):
        inbox.cut()
    assert len(reading.received) == 5
    assert names(inbox.cut()) == ["big"]


def test_the_depth_guesses_what_is_not_read_and_knows_what_is(reading: Reading) -> None:
    inbox = Inbox(reading)
    inbox.put([signal(*(call(f"{n}", arguments={"kind": "x"}) for n in range(70))), own()])
    assert inbox.depth == 141  # each step names "kind" twice
    inbox.cut()
    assert inbox.depth == 7
    inbox.put([message("nobody", [], T)])
    assert inbox.depth == 8  # at least one


def test_tickets_follow_arrival_and_tell_what_is_cut(reading: Reading) -> None:
    inbox = Inbox(reading)
    assert (inbox.arrived, inbox.first_ticket) == (0, 0)
    inbox.put([signal(*(call(f"{n}") for n in range(65))), own()])
    assert (inbox.arrived, inbox.first_ticket) == (2, 0)
    batch = inbox.cut()
    assert {item.ticket for item in batch} == {0}
    assert inbox.first_ticket == 0  # one of its steps waits
    assert [item.ticket for item in inbox.cut()] == [0, 1]
    assert inbox.first_ticket == inbox.arrived == 2


def test_what_an_earlier_run_has_received_is_not_judged_again(reading: Reading) -> None:
    inbox = Inbox(reading)
    twice = call("a", producer="p", producer_seq=1)
    inbox.put_received([item(twice)])
    inbox.put([signal(call("b"))])
    assert (inbox.depth, inbox.arrived) == (2, 2)
    assert names(inbox.cut()) == ["a", "b"]
    assert len(reading.received) == 1
    assert reading.state.producers.known == {}


def test_discarding_reads_nothing_and_counts_everything(reading: Reading) -> None:
    inbox = Inbox(reading)
    received, waiting, unread, ours = item(call("a")), item(call("b")), signal(call("c"), call("d")), own()
    inbox.put_received([received])
    inbox.put([unread, waiting, ours])
    assert list(inbox.discard()) == [
        (1, received.text.encode(), received),
        (2, unread.data, None),
        (1, waiting.text.encode(), waiting),
        (0, b"", ours),
    ]
    assert reading.received == []
    assert (inbox.empty, inbox.depth, inbox.bytes, inbox.first_ticket) == (True, 0, 0, 4)


# -- what becomes of an arrival -------------------------------------------------------------------------


def numbered(number: int, **more: Any) -> Step:
    return call(f"c{number}", producer="p", producer_seq=number, **more)


def test_b7_repeats_are_dropped_and_counted_and_conflicts_are_events(reading: Reading) -> None:
    inbox = Inbox(reading)
    other = numbered(1, reason="another body")
    inbox.put([signal(numbered(1), numbered(2)), signal(numbered(1), other, numbered(3)), item(numbered(2))])
    batch = inbox.cut()
    assert names(batch) == ["c1", "c2", "producer_conflict", "c3"]
    assert batch[2].payload == {
        "producer": "p",
        "producer_seq": 1,
        "sha256": hashlib.sha256(json.dumps(other).encode()).hexdigest(),
    }
    assert (reading.state.repeated, reading.state.unverified) == (2, 0)


def test_b7_a_repeat_with_its_keys_in_another_order_is_a_repeat(reading: Reading) -> None:
    inbox = Inbox(reading)
    inbox.put([signal(numbered(1)), signal(dict(reversed(numbered(1).items())))])
    assert names(inbox.cut()) == ["c1"]
    assert reading.state.repeated == 1


def test_b7_a_repeat_without_a_digest_is_dropped_and_counted_as_unverified(reading: Reading) -> None:
    inbox = Inbox(reading)
    inbox.put([signal(*(numbered(number) for number in range(1, 66))), signal(numbered(1, reason="who knows"))])
    assert len(inbox.cut() + inbox.cut()) == 65
    assert (reading.state.repeated, reading.state.unverified) == (1, 1)


def test_b7_a_number_that_cannot_be_followed_is_rejected_with_its_digest(reading: Reading) -> None:
    inbox = Inbox(reading)
    jumped = numbered(10_003)
    inbox.put([signal(numbered(1)), item(jumped)])
    batch = inbox.cut()
    assert names(batch) == ["c1", "message_rejected"]
    text = json.dumps(jumped).encode()
    assert batch[1].payload == {
        "name": "tool_call",
        "reason": "producer p: a jump over 10000 numbers",
        "sha256": hashlib.sha256(text).hexdigest(),
        "bytes": len(text),
    }


def test_b7_a_submission_learns_what_became_of_its_steps(reading: Reading) -> None:
    inbox = Inbox(reading)
    steps = [item(step) for step in (numbered(1), numbered(1), numbered(1, reason="other"), numbered(20_000))]
    inbox.put(steps)
    inbox.cut()
    assert [step.repeat for step in steps] == [False, True, False, False]
    assert [step.refused for step in steps] == [
        None,
        None,
        "producer p has reported number 1 with another body",
        "producer p: a jump over 10000 numbers",
    ]


def test_f9_after_close_only_what_ends_an_open_attempt_is_taken(reading: Reading) -> None:
    reading.state.attempts.admit("a", T)
    inbox = Inbox(reading)
    answer = {"kind": "model_response", "text": "done", "attempt_id": "a"}
    inbox.put([signal(call("late"), answer, {**answer, "attempt_id": "b"}, late=True), signal(late=True)])
    assert names(inbox.cut()) == ["model_response"]
    inbox.cut()
    # A message that cannot be read is as late as a step.
    assert reading.state.late_steps == 3


def test_f9_a_late_message_is_judged_when_everything_before_it_is_decided(reading: Reading) -> None:
    reading.state.attempts.admit("a", T)
    inbox = Inbox(reading)
    answer = {"kind": "model_response", "text": "done", "attempt_id": "a"}
    inbox.put([signal(answer), signal(answer, late=True)])
    assert names(inbox.cut()) == ["model_response"]
    reading.state.attempts.end("a")  # as the loop does with the batch
    assert inbox.cut() == []
    assert reading.state.late_steps == 1
