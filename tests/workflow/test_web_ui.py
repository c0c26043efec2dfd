"""What Temporal shows of a session to somebody who knows nothing of this product: search attributes, memo, page."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from markdown_it import MarkdownIt
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

from activities.embedders import HashEmbedder
from affidavit import contract
from affidavit.attributes import SEARCH_ATTRIBUTES
from affidavit.contract import Agent, BreakerConfig
from affidavit.registering import register
from tests.support.bare import Bare, Json, asked, call, said
from tests.support.halves import journaling, store_of
from tests.support.rig import AGENT, Rig
from tests.support.taps import Outage, TapStore
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workflows.attributes import Attributes

UPSERT = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
MEMO = EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED


def upserts(runs: list[list[HistoryEvent]]) -> list[Json]:
    """What each upsert set, in order, over all runs; None where it took a value away."""
    found = []
    for run in runs:
        for event in run:
            if event.event_type == UPSERT:
                fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
                found.append({name: json.loads(value.data or b"null") for name, value in fields.items()})
    return found


async def described(rig: Rig, session_id: str) -> WorkflowExecutionDescription:
    return await rig.client.temporal.get_workflow_handle(session_id).describe()


def attributes(description: WorkflowExecutionDescription) -> dict[str, Any]:
    pairs = {pair.key.name: pair.value for pair in description.typed_search_attributes}
    return {name: value for name, value in pairs.items() if name.startswith("Affidavit")}


async def page(rig: Rig, session_id: str) -> str:
    """The current details, as the Web UI asks for them."""
    handle = rig.client.temporal.get_workflow_handle(session_id)
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def found(rig: Rig, query: str) -> set[str]:
    return {each.id async for each in rig.client.temporal.list_workflows(query)}


async def test_search_attributes_are_set_on_transitions_and_at_no_other_time(running: Rig) -> None:
    session = await running.open(breaker=BreakerConfig(window=2, min_tokens=0))
    bare = Bare(running, session.session_id)
    for number in range(20):
        await bare.submit(call(f"c{number}"))
    usage = {"prompt_tokens": 300, "completion_tokens": 12, "cost_usd": 0.25}
    for _ in range(3):
        await bare.submit(said("Let me try that again.", usage=usage))
    await session.reset_breaker(by="operator", reason="it was no loop")
    await session.close()

    told = upserts(await bare.runs())
    assert [(each["AffidavitStatus"], each["AffidavitBreakerTripped"]) for each in told] == [
        ("open", False),
        ("open", True),
        ("open", False),
        ("closing", False),
        ("closed", False),
    ]
    assert told[0] == {
        "AffidavitMode": "signed",
        "AffidavitAgent": "triage",
        "AffidavitStatus": "open",
        "AffidavitCost": "0.000000",
        "AffidavitSteps": 0,
        "AffidavitTokens": 0,
        "AffidavitBreakerTripped": False,
    }
    assert (told[1]["AffidavitSteps"], told[1]["AffidavitTokens"], told[1]["AffidavitCost"]) == (23, 936, "0.750000")
    assert attributes(await described(running, session.session_id)) == {
        "AffidavitMode": "signed",
        "AffidavitAgent": "triage",
        "AffidavitStatus": "closed",
        "AffidavitStopReason": "Loop Detected",
        "AffidavitCost": "0.750000",
        "AffidavitSteps": 23,
        "AffidavitTokens": 936,
        "AffidavitBreakerTripped": False,
    }


async def test_a_search_finds_sessions_by_what_they_are(running: Rig) -> None:
    mine = f'TaskQueue = "{running.settings.task_queue}"'
    signed = await running.open()
    unsigned = await running.open(mode="unsigned", agent=Agent(version="2", charter="other", instance_uid="b"))
    both = {signed.session_id, unsigned.session_id}
    await eventually(lambda: found(running, f'{mine} AND AffidavitStatus = "open"'), lambda ids: ids == both)
    assert await found(running, f'{mine} AND AffidavitMode = "unsigned"') == {unsigned.session_id}
    assert await found(running, f'{mine} AND AffidavitAgent = "triage"') == {signed.session_id}
    await signed.record(call("c1"))
    await signed.close()
    await eventually(
        lambda: found(running, f'{mine} AND AffidavitStatus = "closed" AND AffidavitSteps = 1'),
        lambda ids: ids == {signed.session_id},
    )


async def test_attributes_survive_a_rollover_and_are_not_set_again(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 5)
    session = await running.open()
    bare = Bare(running, session.session_id)
    await until_run(bare, 2)
    before = await page(running, session.session_id)
    assert "| run | 2 |" in before
    assert attributes(await described(running, session.session_id))["AffidavitStatus"] == "open"
    await session.close()
    runs = await bare.runs()
    assert [each["AffidavitStatus"] for each in upserts(runs)] == ["open", "closing", "closed"]
    assert [each["AffidavitStatus"] for each in upserts(runs[:1])] == ["open"]
    assert attributes(await described(running, session.session_id))["AffidavitMode"] == "signed"


async def until_run(bare: Bare, number: int) -> None:
    """Report until the session is in its run of that number; a run may take more than one task's signals at once."""

    async def report() -> Json:
        await bare.step(call("again"))
        return await bare.view()

    await eventually(report, lambda view: view["runs"] >= number)


async def test_a_memo_is_passed_on_at_a_rollover(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the session was started with, and what was added while it ran."""
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 5)
    show = Attributes._show

    def adding(self: Attributes, *args: Any) -> None:
        show(self, *args)
        workflow.upsert_memo({"added": 1})

    monkeypatch.setattr(Attributes, "_show", adding)
    spec = {"agent": AGENT.model_dump(exclude_none=True)}
    handle = await rig.client.temporal.start_workflow(
        "AgentSession", spec, id="with-a-memo", task_queue=rig.settings.task_queue, memo={"team": "refunds"}
    )
    async with rig.worker():
        bare = Bare(rig, handle.id)
        await until_run(bare, 3)
        assert await (await described(rig, handle.id)).memo() == {"team": "refunds", "added": 1}
        await rig.client.handle(handle.id).close()
        memo = await (await described(rig, handle.id)).memo()
    assert memo["team"] == "refunds"
    assert memo["AffidavitOutcome"]["status"] == "closed"


async def test_p5_the_facts_of_the_end_are_read_without_a_worker(rig: Rig) -> None:
    async with rig.worker():
        session = await rig.open()
        await session.record(call("c1"))
        outcome = await session.close()
    description = await described(rig, session.session_id)
    assert outcome.receipt is not None
    facts = (await description.memo())["AffidavitOutcome"]
    assert (facts["status"], facts["stop_reason"], facts["event_count"], facts["published"]) == (
        "closed",
        "Session Closed",
        2,
        True,
    )
    assert facts["chain_head"] == outcome.receipt["subject"]["chain_head"]
    assert (facts["receipt_id"], facts["key_id"]) == (outcome.receipt["receipt_id"], outcome.receipt["key_id"])
    assert "receipt" not in facts
    assert attributes(description)["AffidavitStatus"] == "closed"


async def test_a_quarantined_session_is_red_and_says_why(running: Rig) -> None:
    session = await running.open()
    (running.folder(session.session_id) / "journal/000000000001.ndjson").write_bytes(b"spoilt\n")
    await session.record(call("c1"))
    assert (await session.close()).status == "quarantined"
    description = await described(running, session.session_id)
    assert description.status == WorkflowExecutionStatus.FAILED
    assert attributes(description)["AffidavitStatus"] == "quarantined"
    facts = (await description.memo())["AffidavitOutcome"]
    assert facts["status"] == "quarantined"
    assert facts["reason"].startswith("journaling: IntegrityError: ")
    assert "receipt_id" not in facts
    shown = await page(running, session.session_id)
    assert "| state | quarantined |" in shown
    assert "| capture incomplete | `journaling: IntegrityError: " in shown


async def test_a_cancelled_session_is_found_as_one(running: Rig) -> None:
    session = await running.open(mode="unsigned")
    await session.record(call("c1"))
    await session.cancel()
    outcome = await session.result()
    description = await described(running, session.session_id)
    assert attributes(description)["AffidavitStatus"] == "cancelled"
    assert attributes(description)["AffidavitStopReason"] == "Other"
    assert (await description.memo())["AffidavitOutcome"]["trajectory_digest"] == outcome.trajectory_digest


async def test_a_session_that_does_not_open_leaves_its_facts(running: Rig) -> None:
    """Nobody has looked for the search attributes then, so none is set."""
    session = await running.open()
    (running.folder(session.session_id) / "metadata.json").write_bytes(b"spoilt")
    await session.close()
    handle = await running.client.temporal.start_workflow(
        "AgentSession",
        {"agent": AGENT.model_dump(exclude_none=True)},
        id=session.session_id,
        task_queue=running.settings.task_queue,
    )
    await eventually(handle.describe, lambda now: now.status == WorkflowExecutionStatus.FAILED)
    description = await handle.describe()
    assert (await description.memo())["AffidavitOutcome"]["status"] == "quarantined"
    assert attributes(description) == {}


async def test_the_page_says_what_an_operator_asks_first(running: Rig) -> None:
    session = await running.open()
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "cost_usd": 0.5}
    steps = [asked(attempt_id="a1"), said("", finish_reason="stop", attempt_id="a1", usage=usage), call("c1")]
    await session.submit(*steps, call("c2", allowed=False))
    shown = await page(running, session.session_id)
    assert shown.startswith("**`triage` `1` · signed**\n")
    for row in (
        "| state | open |",
        "| instance | `agent-7` |",
        "| steps | 4, 0 rejected, 0 repeated |",
        "| tool calls | 1 allowed, 1 blocked |",
        "| tokens | 9 prompt, 4 completion |",
        "| cost | 0.500000 USD |",
        "| breaker | closed |",
        "| stop reason | Policy Blocked |",
    ):
        assert row in shown
    outcome = await session.close()
    shown = await page(running, session.session_id)
    assert "| state | closed |" in shown
    assert f"| receipt | `{outcome.receipt_id}` |" in shown
    assert f"| chain head | `{outcome.chain_head}` |" in shown


async def test_the_page_shows_ten_events_and_stays_short(running: Rig) -> None:
    session = await running.open()
    await session.submit(*(call(f"c{number}") for number in range(30)))
    shown = await page(running, session.session_id)
    lines = [line for line in shown.splitlines() if "`tool_call`" in line]
    assert [line.split(" | ")[0] for line in lines] == [f"| {number}" for number in range(21, 31)]
    assert len(shown.encode()) < 4_000


async def test_a_run_that_begins_while_the_store_is_away_has_its_page(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_SIGNALS", 5)
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 0.2)
    async with rig.worker():
        session = await rig.open()
        bare = Bare(rig, session.session_id)
    outage = Outage(lambda: OSError(28, "No space left on device"))
    async with journaling(rig, store=TapStore(store_of(rig), before=lambda _: outage.strike())):
        for number in range(5):
            await bare.step(call(f"s{number}"))
        await eventually(bare.view, lambda view: view["runs"] == 2)
        assert "| run | 2 |" in await page(rig, session.session_id)


MEAN = "[x](https://evil.example) ![p](https://evil.example/p.png) `|` <script>alert(1)</script>"


async def test_foreign_text_on_the_page_is_characters(running: Rig) -> None:
    session = await running.open(agent=Agent(version=MEAN, charter=MEAN, instance_uid=MEAN))
    shown = await page(running, session.session_id)
    assert "evil.example" in shown
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(shown)
    for tag in ("<a ", "<img", "<script"):
        assert tag not in html
    assert html.count("<td>instance</td>") == 1


async def test_summary_and_details_are_set_at_the_start_within_their_limits(running: Rig) -> None:
    longest = "ä" * 256
    session = await running.open(agent=Agent(version=longest, charter=longest, instance_uid=longest))
    description = await described(running, session.session_id)
    summary, details = await description.static_summary(), await description.static_details()
    assert summary is not None
    assert details is not None
    assert summary.endswith("…` · signed")
    assert 150 < len(summary.encode()) <= 200
    assert len(details.encode()) < 20_000
    assert attributes(description)["AffidavitAgent"] == "ä" * 127


async def test_every_activity_has_a_summary(rig: Rig) -> None:
    async with rig.worker(embedder=HashEmbedder()):  # one that is passed in is asked in an activity
        session = await rig.open()
        await session.submit(said("one"), call("c1"))
        await session.close()
        (run,) = await Bare(rig, session.session_id).runs()
    scheduled = [event for event in run if event.HasField("activity_task_scheduled_event_attributes")]
    assert len(scheduled) >= 7
    for event in scheduled:
        name = event.activity_task_scheduled_event_attributes.activity_type.name
        assert json.loads(event.user_metadata.summary.data), name
    assert not [event for event in run if event.HasField("marker_recorded_event_attributes")]


@pytest_asyncio.fixture
async def bare_server(tmp_path: Path) -> AsyncIterator[DevServer]:
    """A server on which nobody has registered anything."""
    started = await DevServer.start(log=tmp_path / "server.log", headless=True)
    try:
        yield started
    finally:
        await started.stop()


async def test_without_the_attributes_a_session_sets_none(bare_server: DevServer, tmp_path: Path) -> None:
    """Not even when they come later: what the opening activity found holds for the life of the session."""
    rig = await Rig.make(bare_server.address, tmp_path / "data")
    async with rig.worker():
        session = await rig.open()
        assert set(await register(rig.client.temporal)) == {
            "AffidavitMode",
            "AffidavitAgent",
            "AffidavitStatus",
            "AffidavitStopReason",
            "AffidavitWaiting",
            "AffidavitCost",
            "AffidavitSteps",
            "AffidavitTokens",
            "AffidavitBreakerTripped",
        }
        assert await register(rig.client.temporal) == ()
        outcome = await session.close()
    assert outcome.status == "closed"
    assert upserts(await Bare(rig, session.session_id).runs()) == []
    assert (await (await described(rig, session.session_id)).memo())["AffidavitOutcome"]["status"] == "closed"
    async with rig.worker():  # one that finds them at its first look
        later = await rig.open()
        assert attributes(await described(rig, later.session_id))["AffidavitStatus"] == "open"
        await later.close()


GUIDE = Path(__file__).parents[2] / "docs/web-ui.md"


async def test_the_queries_of_the_guide_are_queries_and_its_table_names_every_attribute(running: Rig) -> None:
    text = GUIDE.read_text("utf-8")
    queries = re.findall(r"^\| [^|`]+ \| `([^`]*Affidavit[^`]*|WorkflowType[^`]*)` \|$", text, re.MULTILINE)
    assert len(queries) == 8
    for query in queries:
        await running.client.temporal.count_workflows(query)
    rows = re.findall(r"^\| `(Affidavit\w+)` \| (\w+) \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(SEARCH_ATTRIBUTES.items())
