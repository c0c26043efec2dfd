"""A session's own memory of its events, and the rules of requests to it."""

from __future__ import annotations

import json

import pytest

from affidavit.activity_api import Entry
from affidavit.process_api import AbandonRequest, EventCountRequest, EventsAfter, WaitRequest
from workflows.process import EventLog, ProcessState
from workflows.registration import Refused

T = 1_786_320_000_000
LIFE = "01a22eea-77ae-7678-a3d5-6dd4bddb65ef"


def entries(*actions: str, first: int = 0) -> list[Entry]:
    return [
        Entry(
            action=action.partition(":")[0],
            sequence=sequence,
            uid="u",
            time=T + sequence,
            class_name="agent.session",
            status_id=1,
            severity_id=1,
            payload={"type": action.partition(":")[2]} if ":" in action else {},
        )
        for sequence, action in enumerate(actions, first)
    ]


def after(log: EventLog, sequence: int, **request: object) -> list[int]:
    asked = EventsAfter.model_validate({"sequence": sequence, **request})
    return [event.sequence for event in log.after(asked, LIFE, ended=False).events]


def count(log: EventLog, action: str, through: int | None = None) -> int | None:
    fields = {"action": action} if through is None else {"action": action, "through": through}
    return log.count(EventCountRequest.model_validate(fields), LIFE).count


def a_log(length: int = 301) -> EventLog:
    """`opened`, then in turn a call, an event `paid`, an event `sent`; handed on half-way."""
    turns = ["tool_call", "event:paid", "event:sent"]
    log = EventLog()
    log.append(entries("opened"))
    for sequence in range(1, length):
        log.append(entries(turns[(sequence - 1) % 3], first=sequence))
        if sequence == length // 2:
            log = EventLog.model_validate_json(log.model_dump_json())
    return log


def test_p6_events_after_are_strictly_after_ascending_and_empty_past_the_end() -> None:
    log = EventLog()
    log.append(entries("opened", "tool_call", "event:paid", "tool_call", "event:sent"))
    assert after(log, -1) == [0, 1, 2, 3, 4]
    assert after(log, 1) == [2, 3, 4]
    assert after(log, 1, limit=2) == [2, 3]
    assert after(log, -1, action="tool_call") == [1, 3]
    assert after(log, -1, action="event") == [2, 4]
    assert after(log, 2, action="event:paid") == []
    assert after(log, 4) == after(log, 99) == []
    page = log.recent(2, LIFE, ended=True)
    assert ([event.sequence for event in page.events], page.held_from, page.last, page.ended) == ([3, 4], 0, 4, True)
    assert (page.events[1].time, page.events[1].type, log.opened_ms) == (T + 4, "sent", T)


def test_p7_the_tail_is_bounded_and_says_from_where_on_it_holds() -> None:
    log = a_log()
    page = log.after(EventsAfter(sequence=-1), LIFE, ended=False)
    assert (page.held_from, page.last, page.events[0].sequence, len(log.tail)) == (173, 300, 173, 128)
    assert after(log, 170, limit=3) == [173, 174, 175]


@pytest.mark.parametrize(
    ("action", "through", "expected"),
    [
        ("tool_call", None, 100),
        ("tool_call", 300, 100),
        ("tool_call", 9_999, 100),
        ("tool_call", 298, 100),
        ("tool_call", 297, 99),
        ("event", 299, 199),
        ("event:sent", 299, 99),
        ("opened", 172, 1),
        ("tool_call", 172, 58),
        ("tool_call", 171, None),
        ("unheard of", None, 0),
    ],
)
def test_p6_counts_are_right_wherever_they_can_be_told(action: str, through: int | None, expected: int | None) -> None:
    assert count(a_log(), action, through) == expected


def test_a_session_that_an_older_version_handed_on_counts_by_the_store() -> None:
    state = ProcessState.model_validate(json.loads("{}"))
    state.log.append(entries("tool_call", "tool_call", first=7))
    assert after(state.log, 6) == [7, 8]
    assert (state.log.held_from, count(state.log, "tool_call")) == (7, None)


def test_p11_p12_the_first_request_stands() -> None:
    state = ProcessState()
    assert state.request_cancel(None, T) == {}
    assert state.request_cancel("a reason", T + 1) is None
    assert state.cancel is not None
    assert (state.cancel.time, state.cancel.reason) == (T, None)
    assert state.request_abandon(AbandonRequest(by="a", reason="x" * 300), T, 1) == {"by": "a", "reason": "x" * 256}
    assert state.request_abandon(AbandonRequest(by="b", reason="y"), T + 1, 2) is None


def test_p12_the_lapse_runs_from_the_request_or_the_last_report_after_it() -> None:
    state = ProcessState()
    assert state.abandon_due(T, 1000) is None
    assert not state.owner_is_silent(0)
    state.request_abandon(AbandonRequest(by="a", reason="x"), T, 7)
    assert (state.abandon_due(T - 5000, 1000), state.owner_is_silent(7)) == (T + 1000, True)
    assert (state.abandon_due(T + 400, 1000), state.owner_is_silent(8)) == (T + 1400, False)
    assert state.abandonment() is None
    state.abandoned_ms = T + 1400
    evidence = state.abandonment()
    assert evidence is not None
    assert (evidence.by, evidence.at, evidence.why, evidence.requested_at) == ("a", T + 1400, "x", T)


def test_p13_p14_a_repeat_changes_nothing() -> None:
    state = ProcessState(external_ref="one")
    state.check_external_ref("one")
    with pytest.raises(Refused, match="another external_ref") as refused:
        state.check_external_ref("two")
    assert refused.value.type == "ExternalRefConflict"
    wait = WaitRequest(kind="approval", name="manager")
    assert state.clear_wait() is None
    assert state.set_wait(wait, T) == {"kind": "approval", "name": "manager"}
    assert state.set_wait(wait, T + 1) is None
    assert state.set_wait(WaitRequest(kind="timer", name="x"), T + 2) == {"kind": "timer", "name": "x"}
    assert state.clear_wait() == {"kind": "timer", "name": "x"}
    assert state.clear_wait() is None
