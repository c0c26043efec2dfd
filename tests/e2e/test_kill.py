"""H1 and H6: the worker is a real process, and it dies in the middle of its work."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from affidavit.client import SessionHandle
from affidavit.contract import SIGNAL_RECORD, SessionOutcome
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.verify import verify_with_events
from tests.support import proof
from tests.support.comparing import comparable
from tests.support.halves import check_once
from tests.support.processes import WORKERS, environment, line, process
from tests.support.rig import Rig, actions, signal_text
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually, signalled
from workers.devserver import DevServer

RECOVERY_S = 20.0
"""After a kill, sessions move again within this time (behaviours H6)."""
STARTED = "worker for "
"""What a worker logs once it has read its settings and begins to poll."""

_FIRST: list[dict[str, Any]] = [
    {"kind": "model_request", "messages": [{"role": "user", "content": "find the needle"}], "attempt_id": "a1"},
    {
        "kind": "model_response",
        "text": "I will look into the haystack.",
        "tool_calls": [{"call_id": "c1", "name": "search", "arguments": {"q": "needle"}}],
        "finish_reason": "tool_calls",
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost_usd_micros": 11},
        "attempt_id": "a1",
    },
    {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}},
]
_SECOND: list[dict[str, Any]] = [
    {"kind": "tool_result", "call_id": "c1", "content": {"found": 1}},
    {"kind": "tool_call", "call_id": "c2", "tool": "rm", "allowed": False, "stage": "policy", "reason": "no"},
    {"kind": "model_failure", "reason": "timeout"},
    {"kind": "model_response", "text": "It is there.", "finish_reason": "stop"},
]
# Numbered here, because each handle numbers under a name of its own, and the events of two sessions are compared.
FIRST = [{**step, "producer": "agent", "producer_seq": number} for number, step in enumerate(_FIRST, 1)]
SECOND = [{**step, "producer": "agent", "producer_seq": number} for number, step in enumerate(_SECOND, 4)]
ACTIONS = [
    "opened",
    "model_request",
    "model_response",
    "tool_call",
    "message_rejected",
    "tool_result",
    "tool_call",
    "model_failure",
    "model_response",
    "receipt",
    "closed",
]
"""What the steps above become, in whatever batches they are cut."""


HELD_WORKER = (str(Path(__file__).parents[1] / "support" / "held_worker.py"),)
PLACES = [
    "embed",
    "journal before",
    "journal after",
    "agent.tool_call before",
    "agent.tool_call after",
    "receipt.json before",
    "receipt.json after",
    "lifecycle before",
    "lifecycle after",
    "agent.receipt after",
    "outcome.json after",
]


@dataclass
class Scene:
    """Sessions by the place where they were when their worker was killed, and one that was left alone."""

    rig: Rig
    outcomes: dict[str, SessionOutcome]
    seconds: dict[str, float]
    """From the kill to the end, without what the new process took to start."""
    undisturbed: SessionOutcome


async def report(session: SessionHandle, rig: Rig) -> SessionOutcome:
    """The whole run of an agent, one rejected message among its steps."""
    await session.record(*FIRST)
    workflow = rig.client.temporal.get_workflow_handle(session.session_id)
    await signalled(workflow, 1)
    await workflow.signal(SIGNAL_RECORD, signal_text('{"steps":[{"kind":"x"}]}'))
    await session.record(*SECOND)
    return await session.close()


async def timed(ending: asyncio.Task[SessionOutcome], since: float) -> tuple[SessionOutcome, float]:
    outcome = await ending
    return outcome, time.monotonic() - since


@pytest_asyncio.fixture(scope="module")
async def scene(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """All sessions at once in one worker process, each held at its place; one SIGKILL; another process."""
    root = tmp_path_factory.mktemp("kill")
    rig = await Rig.make(server.address, root / "data")
    ids = {f"killed-{uuid.uuid4()}": place for place in PLACES}
    log = root / "worker.log"
    async with process(HELD_WORKER, environment(rig, server.address, HELD=json.dumps(ids)), log) as first:
        sessions = [await rig.open(session_id=session_id) for session_id in ids]
        endings = {s.session_id: asyncio.create_task(report(s, rig)) for s in sessions}
        held = {await line(first) for _ in ids}
        assert held == {f"held {session_id}" for session_id in ids}
        assert not any(ending.done() for ending in endings.values())
        first.kill()
        killed_at = time.monotonic()
        await first.wait()
    begun = time.monotonic()

    async def log_text() -> str:
        return log.read_text("utf-8")

    async with process(WORKERS, environment(rig, server.address), log), asyncio.timeout(3 * RECOVERY_S):
        await eventually(log_text, lambda text: STARTED in text)
        killed_at += time.monotonic() - begun
        found = await asyncio.gather(*(timed(ending, killed_at) for ending in endings.values()))
        undisturbed = await report(await rig.open(), rig)
    outcomes = {ids[outcome.session_id]: outcome for outcome, _ in found}
    seconds = {ids[outcome.session_id]: after for outcome, after in found}
    yield Scene(rig, outcomes, seconds, undisturbed)


@pytest.mark.parametrize("place", PLACES)
def test_h1_the_events_equal_an_undisturbed_run(scene: Scene, place: str) -> None:
    rig, outcome = scene.rig, scene.outcomes[place]
    events = rig.bus(outcome.session_id)
    assert actions(events) == ACTIONS
    undisturbed = rig.bus(scene.undisturbed.session_id)
    assert [comparable(event) for event in events] == [comparable(event) for event in undisturbed]
    assert outcome.totals == scene.undisturbed.totals
    totals = outcome.totals.model_dump()
    assert totals == {
        "tool_calls": 2,
        "tool_allowed": 1,
        "tool_blocked": 1,
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "cached_tokens": 0,
        "cost_usd_micros": 11,
    }
    assert (outcome.status, outcome.steps, outcome.rejected, outcome.published) == ("closed", 7, 1, True)


@pytest.mark.parametrize("place", PLACES)
def test_h1_every_event_is_once_in_the_journal_and_once_on_the_bus(scene: Scene, place: str) -> None:
    rig, sid = scene.rig, scene.outcomes[place].session_id
    check_once(rig, sid)
    sequences = [event["metadata"]["sequence"] for event in rig.journal(sid)]
    assert sequences == list(range(len(ACTIONS) - 2))
    assert len(set(proof.uids(rig.bus(sid)))) == len(ACTIONS)
    # The embedded bus has no second row under another uid either.
    with sqlite3.connect(f"file:{rig.data.bus}?mode=ro", uri=True) as connection:
        (rows,) = connection.execute("SELECT count(*) FROM records WHERE session = ?", (sid,)).fetchone()
    assert rows == len(ACTIONS)


@pytest.mark.parametrize("place", PLACES)
def test_h1_the_receipt_is_valid_and_the_chain_recomputed_from_the_bus_is_its_own(scene: Scene, place: str) -> None:
    rig, outcome = scene.rig, scene.outcomes[place]
    folder = rig.folder(outcome.session_id)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt == outcome.receipt
    assert receipt["subject"]["chain_head"] == proof.chain_head(outcome.session_id, rig.bus(outcome.session_id))
    assert receipt["subject"]["event_count"] == len(ACTIONS) - 2
    ring = (rig.data.keys / "public.json").read_bytes()
    proof.check_signature(receipt, json.loads(ring))
    report = verify_with_events(None, folder, Keyring.parse(ring), [(rig.data.keys / "journal.key").read_bytes()])
    assert report.trusted
    assert sorted(file.name for file in folder.iterdir()) == [
        "captures",
        "journal",
        "lifecycle",
        "metadata.json",
        "outcome.json",
        "receipt.json",
    ]


def test_h6_after_a_kill_sessions_move_again_within_20_seconds(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        for place, seconds in scene.seconds.items():
            print(f"\n    killed at {place!r}: closed after {seconds:.1f} s", end="")
        print()
    assert max(scene.seconds.values()) < RECOVERY_S


# -- SIGTERM ------------------------------------------------------------------------------------------------------


async def test_h6_sigterm_finishes_within_the_grace_time(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    env = environment(rig, server.address, AFFIDAVIT_GRACE_S="20")
    async with process(WORKERS, env, tmp_path / "log") as worker:
        session = await rig.open()
        await session.record(*FIRST)
        await session.flush()
        worker.terminate()
        ended = time.monotonic()
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
        assert time.monotonic() - ended < 15  # with the end of the interpreter, which takes its time under load
    assert "Traceback" not in (tmp_path / "log").read_text()
    async with rig.worker():
        await session.record(*SECOND)
        outcome = await session.close()
    assert (outcome.status, outcome.steps) == ("closed", 7)
    check_once(rig, session.session_id)


async def test_h6_sigterm_hands_back_what_hangs(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    """An activity that never returns (a dead mount, a lost broker) does not keep the process alive."""
    places = ("journal before", "agent.tool_call before", "receipt.json after")
    held = {f"hangs-{uuid.uuid4()}": place for place in places}
    env = environment(rig, server.address, HELD=json.dumps(held), AFFIDAVIT_GRACE_S="1")
    async with process(HELD_WORKER, env, tmp_path / "log") as worker:
        sessions = [await rig.open(session_id=session_id) for session_id in held]
        endings = [asyncio.create_task(report(session, rig)) for session in sessions]
        assert {await line(worker) for _ in held} == {f"held {session_id}" for session_id in held}
        worker.terminate()
        ended = time.monotonic()
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 3
        assert time.monotonic() - ended < 10  # sooner than by the grace of 10 s that it would have without the setting
    assert "work under way does not end within its grace" in (tmp_path / "log").read_text()
    async with rig.worker(), asyncio.timeout(2 * RECOVERY_S):
        outcomes = await asyncio.gather(*endings)
    for outcome in outcomes:
        assert actions(rig.bus(outcome.session_id)) == ACTIONS
        assert outcome.status == "closed"
        check_once(rig, outcome.session_id)
