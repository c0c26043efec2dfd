"""Somebody who knows Temporal and nothing of this product looks at sessions in the Temporal Web UI, with a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from affidavit import contract
from affidavit.client import SessionClient, SessionHandle
from affidavit.contract import Agent, BreakerConfig
from affidavit.registering import register
from tests.support.bare import Json, call
from tests.support.browser import ANSWER_MS, chromium, screenshots, web_ui
from tests.support.rig import Rig
from tests.support.waiting import eventually
from workers.devserver import DevServer

REFUNDS = Agent(version="1.4", charter="refund-triage", instance_uid="worker-7")
CLERK = Agent(version="2.0", charter="invoice-clerk", instance_uid="worker-2")
RESEARCH = Agent(version="0.9", charter="research", instance_uid="notebook-3")
COLUMNS = [
    "Status",
    "Workflow ID",
    "AffidavitStatus",
    "AffidavitAgent",
    "AffidavitMode",
    "AffidavitSteps",
    "AffidavitTokens",
    "AffidavitCost",
    "AffidavitStopReason",
]
EVERY_SESSION = 'WorkflowType = "AgentSession"'

expect.set_options(timeout=ANSWER_MS)


@pytest_asyncio.fixture
async def shown(tmp_path: Path) -> AsyncIterator[tuple[str, Rig]]:
    """A product under a dev server with its Web UI; and where that is."""
    chromium()
    server = await DevServer.start(log=tmp_path / "server.log")
    try:
        assert server.ui is not None
        rig = await Rig.make(server.address, tmp_path / "data", task_queue=contract.TASK_QUEUE)
        rig.client = SessionClient(rig.client.temporal, admit_timeout=20)
        await register(rig.client.temporal)
        async with rig.worker():
            yield server.ui, rig
    finally:
        await server.stop()


def turn(number: int) -> list[Json]:
    """One question to a model, its answer, and the tool that it asks for."""
    asked = {"kind": "model_request", "messages": [{"role": "user", "content": "next refund"}], "model": "example-1"}
    usage = {"prompt_tokens": 900 + 7 * number, "completion_tokens": 60, "cost_usd": 0.0125}
    announced = {"call_id": f"c{number}", "name": "refund", "arguments": {"order": number}}
    text = f"Order {number * number + 17} was delivered late, so its {number} items are refunded in full."
    return [
        {**asked, "attempt_id": f"a{number}"},
        {
            "kind": "model_response",
            "text": text,
            "tool_calls": [announced],
            "finish_reason": "tool_calls",
            "usage": usage,
            "attempt_id": f"a{number}",
        },
        {"kind": "tool_call", "call_id": f"c{number}", "tool": "refund", "allowed": number != 3},
        {"kind": "tool_result", "call_id": f"c{number}", "content": {"refunded": True}},
    ]


async def worked(rig: Rig, session_id: str, agent: Agent, turns: int, **spec: object) -> SessionHandle:
    session = await rig.open(session_id=session_id, agent=agent, **spec)
    for number in range(turns):
        await session.submit(*turn(number))
    return session


async def in_two_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> SessionHandle:
    """An open session that was handed on once."""
    session = await worked(rig, "refund-4711", REFUNDS, 3)
    with monkeypatch.context() as patched:
        patched.setattr(contract, "ROLLOVER_SIGNALS", 1)
        await session.record(*turn(3))
        await eventually(session.view, lambda view: view.runs == 2, within=60)
    await session.submit(*turn(4))
    view = await session.view()
    assert (view.runs, view.steps) == (2, 20)
    return session


async def quarantined(rig: Rig) -> None:
    session = await worked(rig, "payout-88", CLERK, 2)
    (rig.folder(session.session_id) / "journal/000000000009.ndjson").write_bytes(b"spoilt\n")
    await session.record(call("c9"))
    assert (await session.close()).status == "quarantined"


async def others(rig: Rig) -> None:
    """One of each other kind."""
    await (await worked(rig, "invoice-2290", CLERK, 6)).close()
    await (await worked(rig, "survey-17", RESEARCH, 4, mode="unsigned")).close()
    stopped = await worked(rig, "refund-4702", REFUNDS, 2)
    await stopped.cancel()
    await stopped.result()
    await worked(rig, "survey-18", RESEARCH, 1, mode="unsigned")
    loop = await worked(rig, "refund-4709", REFUNDS, 1, breaker=BreakerConfig(min_tokens=0, window=2))
    for _ in range(3):
        await loop.submit({"kind": "model_response", "text": "Let me try that again.", "usage": {"prompt_tokens": 400}})
    assert (await loop.view()).breaker_open


async def listed(page: Page, ui: str, query: str, rows: int) -> None:
    """Open the list of workflows of a query, and wait until it has so many rows."""
    await page.goto(f"{ui}/namespaces/default/workflows?query={quote(query)}")
    await expect(page.locator("table tbody tr").filter(has=page.locator("a[href*='/workflows/']"))).to_have_count(rows)


async def opened(page: Page, session_id: str) -> None:
    """Follow the list's link to the session's newest run, and its details."""
    await page.locator("table a[href*='/workflows/']", has_text=session_id).first.click()
    await page.get_by_role("tab", name="User Metadata").or_(page.get_by_text("User Metadata")).first.click()


async def details(page: Page, *cells: str) -> None:
    """That the current details show these cells."""
    frame = page.frame_locator('iframe[src*="chain%20head"]')
    for cell in cells:
        await expect(frame.get_by_role("cell", name=cell, exact=True).first).to_be_visible()


@pytest.mark.timeout(240)
async def test_an_operator_finds_a_session_and_reads_how_it_stands(
    shown: tuple[str, Rig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ui, rig = shown
    folder = screenshots(tmp_path / "screenshots")
    await asyncio.gather(quarantined(rig), others(rig))
    async with web_ui(COLUMNS, width=1440, height=640) as page:
        await listed(page, ui, EVERY_SESSION, rows=6)
        for text in ("quarantined", "cancelled", "refund-triage", "Loop Detected", "unsigned"):
            await expect(page.locator("table").get_by_text(text, exact=True).first).to_be_visible()
        await page.get_by_role("button", name="Collapse Navigation").click()
        await page.screenshot(path=folder / "web-ui-sessions.png", animations="disabled")
        await listed(page, ui, f"{EVERY_SESSION} AND AffidavitBreakerTripped = true", rows=1)
        await expect(page.locator("table").get_by_role("link", name="refund-4709").first).to_be_visible()

        await in_two_runs(rig, monkeypatch)
        # Both runs are found by what the session is: search attributes survive a rollover.
        await listed(page, ui, 'AffidavitAgent = "refund-triage" AND AffidavitBreakerTripped = false', rows=3)
        await page.set_viewport_size({"width": 1440, "height": 980})
        await opened(page, "refund-4711")
        await details(page, "open", "worker-7", "20, 0 rejected, 0 repeated", "2", "Tool Use")
        await page.screenshot(path=folder / "web-ui-session.png", animations="disabled")

        await listed(page, ui, 'AffidavitStatus = "quarantined"', rows=1)
        await opened(page, "payout-88")
        await expect(page.get_by_text("Failed", exact=True).first).to_be_visible()
        await details(page, "quarantined", "worker-2")
        await page.screenshot(path=folder / "web-ui-quarantined.png", animations="disabled")
    for file in folder.glob("web-ui-*.png"):
        assert file.stat().st_size > 10_000


def test_without_a_browser_the_page_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(pytest.skip.Exception, match=r"^no browser: apt-get install chromium$"):
        chromium()
