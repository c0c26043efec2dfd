"""P17: a child session is a session like any other."""

from __future__ import annotations

import json

from tests.support.bare import asked, call, said
from tests.support.grants import book as book
from tests.support.grants import client_of
from tests.support.rig import AGENT, Rig
from tests.support.waiting import eventually


async def test_p17_a_child_is_granted_to_its_wake_target_and_outlives_its_parent(running: Rig, book: str) -> None:
    parent = await running.open(mode="unsigned")
    child = await running.open(
        mode="unsigned", originator=parent.session_id, wake_target=f"{parent.session_id}#{parent.generation}"
    )
    (grant,) = await running.client.grants.holders(child.session_id)
    assert (grant.holder, grant.descriptor) == (parent.session_id, "wake target")
    # As the parent, a client addresses the child at once; as anybody else it does not.
    as_parent = client_of(running, parent.session_id).handle(child.session_id)
    assert (await as_parent.view()).state == "open"
    await child.submit(asked(), said("done", usage={"prompt_tokens": 1, "completion_tokens": 1}))
    await child.wake({"result": 42})
    await eventually(parent.wakes_after, lambda answer: len(answer.wakes) == 1)

    reference = child.trajectory_ref()
    await parent.submit(
        asked(),
        said("ask the child", tool_calls=[{"call_id": "c1", "name": "delegate", "arguments": {}}]),
        call("c1", tool="delegate", arguments={}),
        {"kind": "tool_result", "call_id": "c1", "content": "42", "subagent_trajectory_ref": reference},
    )
    assert (await parent.close()).status == "closed"
    assert (await child.view()).state == "open"
    assert (await running.client.grants.list(parent.session_id))[0].session_id == child.session_id
    assert (await as_parent.close()).status == "closed"

    # The reference in the parent's trajectory leads to the child's.
    document = json.loads((running.folder(parent.session_id) / "trajectory.json").read_text())
    (result,) = next(step["observation"]["results"] for step in document["steps"] if "observation" in step)
    (stood,) = result["subagent_trajectory_ref"]
    assert stood["session_id"] == child.session_id
    found = json.loads((running.data.evidence / stood["trajectory_path"]).read_text())
    assert found["session_id"] == child.session_id


async def test_p17_opening_it_again_repeats_what_a_crash_left_out_and_nothing_else(running: Rig, book: str) -> None:
    spec = {"agent": AGENT, "originator": "parent", "wake_target": "parent"}
    grants, session_id = running.client.grants, f"child-{book[7:]}"
    child = await running.client.open(spec, session_id=session_id)
    await grants.transfer("parent", "other", session_id)
    again = await running.client.open(spec, session_id=session_id)
    assert again.generation == child.generation
    assert [grant.holder for grant in await grants.holders(session_id)] == ["other"]
    await grants.revoke("other", session_id)
    await running.client.open(spec, session_id=session_id)
    assert [grant.holder for grant in await grants.holders(session_id)] == ["parent"]
    # Without an originator it is nobody's child; a target that is no holder gets no grant.
    for changes in ({"wake_target": "parent"}, {"originator": "parent"}, {"originator": "p", "wake_target": "a b"}):
        session = await running.client.open({"agent": AGENT, **changes})
        assert await grants.holders(session.session_id) == []
        await session.close()
    await child.close()


async def test_p17_a_parent_that_is_terminated_takes_nothing_with_it(running: Rig, book: str) -> None:
    parent = await running.open()
    child = await running.open(originator=parent.session_id, wake_target=parent.session_id)
    await running.client.temporal.get_workflow_handle(parent.session_id).terminate()
    await child.wake("is anybody there?")
    assert (await child.close()).status == "closed"
