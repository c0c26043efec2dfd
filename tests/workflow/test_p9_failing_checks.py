"""P9, D5: an activity that fails for good costs its own result and never the session."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from activities.custom_events import CustomEventsActivity
from activities.embedders import HashEmbedder
from activities.embedding import EmbeddingActivity
from affidavit.errors import SessionRefused
from tests.support.bare import Bare, call, said
from tests.support.oracle import attested
from tests.support.rig import Rig, actions, signal_text

TYPES: dict[str, Any] = {"paid": {"type": "object"}, "part": {"properties": {"n": {"multipleOf": 0.1}}}}
PAID = {"kind": "event", "type": "paid", "payload": {}}


def broken(*_: object) -> None:
    raise RuntimeError("a bug in a library")


async def test_d5_an_embed_activity_that_raises_is_not_assessed_and_the_session_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.worker(embedder=HashEmbedder()):
        monkeypatch.setattr(EmbeddingActivity, "assess", broken)
        session = await rig.open()
        result = await session.submit(said("hello"))
        outcome = await session.close()
    assert (result.verdict, outcome.status) == ("not_assessed", "closed")
    assert [event["payload"].get("assessed") for event in attested(rig, outcome)] == [None, False]


async def test_p9_a_check_that_raises_rejects_its_events_and_the_session_goes_on(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CustomEventsActivity, "_faults", broken)
    session = await running.open(event_types=TYPES)
    with pytest.raises(SessionRefused, match="an event could not be checked against its schema"):
        await session.submit(PAID)
    bare = Bare(running, session.session_id)
    await bare.record(call("c1"), PAID)
    await bare.update("flush")
    outcome = await session.close()
    events = attested(running, outcome)
    assert (outcome.status, actions(events)) == ("closed", ["opened", "tool_call", "message_rejected"])
    assert events[2]["payload"]["reason"] == "event could not be checked against its schema"


async def test_p9_an_event_with_a_number_that_is_none_is_rejected_alone(running: Rig) -> None:
    session = await running.open(event_types=TYPES)
    bare = Bare(running, session.session_id)
    bad = '{"kind":"event","type":"part","payload":{"n":1e999}}'
    good = '{"kind":"event","type":"paid","payload":{}}'
    await bare.handle.signal("record", signal_text(f'{{"steps":[{good},{bad},{good}]}}'))
    await bare.update("flush")
    outcome = await session.close()
    events = attested(running, outcome)
    assert actions(events) == ["opened", "event", "message_rejected", "event"]
    assert events[2]["payload"]["reason"] == "event part: payload.n is not a finite number"


async def test_p9_a_refused_submission_is_not_taken_in_part_however_its_kind_is_written(running: Rig) -> None:
    session = await running.open(event_types=TYPES)
    bare = Bare(running, session.session_id)
    first = '{"kind":"tool_call","call_id":"a","tool":"t","allowed":true}'
    text = f'{{"steps":[{first},{{"kind":"\\u0065vent","type":"paid","payload":7}}]}}'
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await bare.handle.execute_update("submit", signal_text(text))
    assert "steps.1: event paid: payload is off its schema (type)" in str(refused.value.cause)
    assert actions(attested(running, await session.close())) == ["opened"]
