"""I6: with keys, a memo is encrypted once, however often the session is handed on, and reads as it was put."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import Client

from affidavit import contract
from affidavit.converter import encode_json, raw_json
from tests.support.encrypted import ID_A, KEY_A, KEY_B, with_keys
from tests.support.rig import AGENT, Rig
from tests.support.waiting import eventually

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
PLANTED = {"ticket": "planted-77", "tags": ["a", "b"]}


async def described(client: Client, session_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A session's memo as this client reads it, and its payloads as they lie in Temporal."""
    found = await client.get_workflow_handle(session_id).describe()
    return dict(await found.memo()), dict(found.raw_description.workflow_execution_info.memo.fields)


async def rolled(rig: Rig, session_id: str, runs: int) -> None:
    session = rig.client.handle(session_id)
    number = 0

    async def handed_on() -> int:
        nonlocal number
        number += 1
        await session.submit({**CALL, "call_id": f"c{number}"})
        return (await session.view()).runs

    await eventually(handed_on, lambda found: found >= runs, within=60)


@pytest.mark.timeout(170)
async def test_i6_a_memo_of_the_start_and_that_of_the_end_outlive_rollovers_encrypted_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_UPDATES", 3)
    rig = with_keys(rig, KEY_A)
    temporal, session_id = rig.client.temporal, f"memo-{uuid.uuid4()}"
    async with rig.worker():
        await temporal.start_workflow(
            contract.SESSION_WORKFLOW,
            raw_json(encode_json({"agent": AGENT.model_dump(mode="json", exclude_none=True)})),
            id=session_id,
            task_queue=rig.settings.task_queue,
            memo={"about": PLANTED},
        )
        before, at_start = await described(temporal, session_id)
        assert before == {"about": PLANTED}
        await rolled(rig, session_id, 3)
        memo, payloads = await described(temporal, session_id)
        assert memo == {"about": PLANTED}
        # Once, so no larger than at the start, whatever nonce it has.
        assert len(payloads["about"].data) == len(at_start["about"].data)
        assert payloads["about"].metadata["encoding"] == at_start["about"].metadata["encoding"]
        async with asyncio.timeout(60):
            outcome = await rig.client.handle(session_id).close()
    memo, payloads = await described(temporal, session_id)
    assert memo.keys() == {"about", "AffidavitOutcome"}
    assert memo["about"] == PLANTED
    facts = memo["AffidavitOutcome"]
    assert (facts["status"], facts["session_id"], facts["steps"]) == ("closed", session_id, outcome.steps)
    for payload in payloads.values():
        assert ID_A.encode() in payload.SerializeToString()
        assert b"planted-77" not in payload.SerializeToString()
        assert b"closed" not in payload.SerializeToString()
    # Lists show it too; who has another key reads neither.
    query = f"WorkflowId = '{session_id}' AND ExecutionStatus = 'Completed'"

    async def listed() -> list[dict[str, Any]]:
        return [dict(await each.memo()) async for each in temporal.list_workflows(query)]

    assert (await eventually(listed, bool, within=30))[0]["AffidavitOutcome"]["status"] == "closed"
    memo, _ = await described(with_keys(rig, KEY_B).client.temporal, session_id)
    assert not [text for text in ("planted-77", "closed", session_id) if text in repr(memo)]


async def test_without_keys_a_memo_outlives_rollovers_too(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_UPDATES", 3)
    temporal, session_id = running.client.temporal, f"memo-{uuid.uuid4()}"
    await temporal.start_workflow(
        contract.SESSION_WORKFLOW,
        raw_json(encode_json({"agent": AGENT.model_dump(mode="json", exclude_none=True)})),
        id=session_id,
        task_queue=running.settings.task_queue,
        memo={"about": PLANTED},
    )
    await rolled(running, session_id, 2)
    await running.client.handle(session_id).close()
    memo, _ = await described(temporal, session_id)
    assert (memo["about"], memo["AffidavitOutcome"]["status"]) == (PLANTED, "closed")
