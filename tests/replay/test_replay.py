"""H3: every saved history replays, and a session that is replayed on every task ends like any other."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from affidavit import contract
from affidavit.contract import SessionOutcome
from affidavit.converter import data_converter
from affidavit.stores.base import EvidenceStore
from affidavit.stores.local import DirectoryStore
from tests.replay.paths import put_payloads, waited_for
from tests.replay.plays import SCENES, Play, Scene, Servers, started, without_and_with_a_cache
from tests.replay.record import RUN_EVENTS, bad_start, every_kind, granting, rolled_over
from tests.support import proof
from tests.support.halves import check_once
from workers.devserver import DevServer
from workers.worker import workflow_runner
from workflows.grants import GrantBook
from workflows.promotion import TrajectoryPromotion
from workflows.session import AgentSession

SUGGESTED = "limit.historyCount.suggestContinueAsNew"
HISTORIES = sorted(Path(__file__).with_name("histories").glob("*.json"))


def replayer(runtime: Runtime | None = None, store: EvidenceStore | None = None) -> Replayer:
    """As workers run it; `store` has what the history holds by reference."""
    return Replayer(
        workflows=[AgentSession, GrantBook, TrajectoryPromotion],
        workflow_runner=workflow_runner(),
        data_converter=data_converter(store),
        runtime=runtime,
    )


def load(path: Path) -> WorkflowHistory:
    document = json.loads(path.read_text())
    return WorkflowHistory.from_json(document["workflow_id"], document["history"])


def test_h3_the_saved_histories_are_there() -> None:
    expected = {"every_kind", "cancelled", "empty", "quarantined", "abandoned", "bad_start", "retried", "shown"}
    expected |= {"waking", "woken", "granting_1", "granting_2"}
    expected |= {f"rolled_over_{run}" for run in (1, 2, 3, 4)}
    expected |= {"breaker_observes", "breaker_injects", "breaker_aborts", "idle", "not_drained", "oversize"}
    expected |= {"unavailable", "unsigned", "unsigned_empty", "promotion", "waited_for", "embedder_passed_in"}
    assert {path.stem for path in HISTORIES} >= expected


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_h3_a_saved_history_replays(path: Path, tmp_path: Path) -> None:
    store, history = DirectoryStore(tmp_path), load(path)
    put_payloads(store, history.workflow_id)
    result = await replayer(store=store).replay_workflow(history)
    assert result.replay_failure is None


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_saved_history_says_nothing_of_the_machine_it_was_made_on(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r'"identity": "([^"]*)"', text)) <= {"recorder"}
    assert not re.search(r"/(home|root|tmp|work|usr)/", text)
    assert len(text) < 500_000


@pytest.mark.failed_tasks
async def test_h3_the_replay_notices_another_order_of_commands() -> None:
    """The control: a history whose first journal activity is called otherwise does not replay."""
    document = json.loads(Path(__file__).with_name("histories").joinpath("cancelled.json").read_text())
    text = json.dumps(document["history"]).replace('"name": "journal"', '"name": "jot"')
    history = WorkflowHistory.from_json(document["workflow_id"], text)
    # In a runtime of its own, whose log does not count as a failed task of the tests that follow.
    silent = Runtime(telemetry=TelemetryConfig(logging=None))
    result = await replayer(silent).replay_workflow(history, raise_on_replay_failure=False)
    assert "jot" in str(result.replay_failure)


@pytest_asyncio.fixture(scope="module")
async def servers(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """Where a scene is played without a cache, and where with one."""
    async with started(tmp_path_factory.mktemp("with-a-cache") / "server.log") as other:
        yield server, other


async def check(play: Play) -> None:
    """What it has left is sound in itself, and every run of it replays."""
    store = DirectoryStore(play.rig.data.evidence)
    for history in play.histories:
        assert (await replayer(store=store).replay_workflow(history)).replay_failure is None
    for session_id, outcome in play.outcomes.items():
        if outcome.receipt is not None:
            check_once(play.rig, session_id)
            chain_head = proof.chain_head(session_id, play.rig.bus(session_id))
            assert outcome.receipt["subject"]["chain_head"] == outcome.chain_head == chain_head


@pytest.mark.parametrize(
    "scene", [scene for scene in SCENES if scene is not waited_for], ids=lambda scene: scene.__name__
)
async def test_h3_a_scene_without_a_cache_goes_as_with_one(servers: Servers, tmp_path: Path, scene: Scene) -> None:
    """Every workflow task replays the session from its first event. Each scene says itself how it must end."""
    plays = await without_and_with_a_cache(servers, tmp_path, scene)
    for play in plays:
        assert play.failed_tasks() == []
        assert play.outcomes or scene is bad_start
        await check(play)
    assert plays[0].left() == plays[1].left()
    if scene is every_kind:
        expected = ["opened", "model_request", "model_response", "tool_call"] + ["message_rejected"] * 3
        assert plays[0].actions("recorded-every-kind")[: len(expected)] == expected


async def test_h3_updates_that_come_at_once_without_a_cache_are_all_journaled(servers: Servers, tmp_path: Path) -> None:
    """In any order, so that two plays cannot be compared."""
    for play in await without_and_with_a_cache(servers, tmp_path, waited_for):
        assert play.failed_tasks() == []
        await check(play)
        steps = play.outcomes["recorded-waited-for"].steps
        assert steps >= 8
        assert play.actions("recorded-waited-for") == ["opened", *["tool_call"] * steps, "receipt", "closed"]


@pytest_asyncio.fixture(scope="module")
async def short_runs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """The same, for scenes that are handed on."""
    folder, suggestion = tmp_path_factory.mktemp("short-runs"), {SUGGESTED: str(RUN_EVENTS)}
    async with started(folder / "1.log", **suggestion) as one, started(folder / "2.log", **suggestion) as other:
        yield one, other


@pytest.mark.failed_tasks  # a run is handed on while signals come: Temporal fails that task, and it is done again
async def test_h3_a_session_that_is_handed_on_without_a_cache_goes_as_with_one(
    short_runs: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ROLLOVER_WAIT_S", 1)
    plays = await without_and_with_a_cache(short_runs, tmp_path, rolled_over)
    for play in plays:
        assert set(play.failed_tasks()) <= {"WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND"}
        assert len(play.histories) >= 4
        await check(play)
        expected = ["opened", "model_request", "model_response", "tool_call", "producer_gap", "receipt", "closed"]
        assert [action for action, _ in groupby(play.actions("recorded-rolled-over"))] == expected
    # How many calls the first run takes before it is full hangs on how they are cut into tasks, and nothing else does.
    ends = [play.outcomes["recorded-rolled-over"] for play in plays]
    assert all(end.steps - end.totals.tool_calls == end.event_count - end.steps == 2 for end in ends)
    assert shared(ends[0]) == shared(ends[1])


def shared(outcome: SessionOutcome) -> dict[str, Any]:
    """What two sessions of another number of allowed calls share."""
    totals = outcome.totals.model_dump(exclude={"tool_calls", "tool_allowed"})
    names = ("status", "stop_reason_id", "rejected", "repeated", "late_steps", "unprocessed", "published")
    return {**totals, **outcome.model_dump(include=set(names))}


async def test_h3_a_grant_book_without_a_cache_holds_what_one_with_a_cache_does(
    short_runs: Servers, tmp_path: Path
) -> None:
    plays = await without_and_with_a_cache(short_runs, tmp_path, granting)
    for play in plays:
        assert play.failed_tasks() == []
        assert len(play.histories) == 2
        await check(play)
    assert plays[0].grants == plays[1].grants
