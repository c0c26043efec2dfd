"""H3: every saved history replays, and a session that is replayed on every task ends like any other."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from affidavit.converter import data_converter
from affidavit.stores.base import EvidenceStore
from affidavit.stores.local import DirectoryStore
from tests.replay.paths import WITH_A_WORKER, WITHOUT, Scene, put_payloads
from tests.replay.record import every_kind
from tests.support import proof
from tests.support.halves import check_once
from tests.support.rig import Rig, actions
from workers.devserver import DevServer
from workers.worker import workflow_runner
from workflows.grants import GrantBook
from workflows.promotion import TrajectoryPromotion
from workflows.session import AgentSession

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


@pytest.mark.parametrize("scene", [*WITH_A_WORKER, *WITHOUT], ids=lambda scene: scene.__name__)
async def test_h3_a_path_without_a_cache_goes_as_with_one(server: DevServer, tmp_path: Path, scene: Scene) -> None:
    """Each scene says how it must end; its history then replays as well."""
    rig = await Rig.make(server.address, tmp_path, max_cached_workflows=0)
    async with rig.worker() if scene in WITH_A_WORKER else nullcontext():
        session = await scene(rig)
        history = await rig.client.temporal.get_workflow_handle(session.session_id).fetch_history()
    assert not [event for event in history.events if event.HasField("workflow_task_failed_event_attributes")]
    store = DirectoryStore(rig.data.evidence)
    assert (await replayer(store=store).replay_workflow(history)).replay_failure is None


async def test_h3_without_a_cache_the_results_are_the_same(server: DevServer, tmp_path: Path) -> None:
    """Every workflow task replays the session from its first event."""
    found = []
    for place, cached in enumerate((0, 1000)):
        rig = await Rig.make(server.address, tmp_path / str(place), max_cached_workflows=cached)
        async with rig.worker():
            session = await every_kind(rig, f"cached-{cached}-{place}")
            outcome = await session.result()
            history = await rig.client.temporal.get_workflow_handle(session.session_id).fetch_history()
        check_once(rig, session.session_id)
        events = rig.bus(session.session_id)
        assert outcome.receipt is not None
        assert outcome.receipt["subject"]["chain_head"] == proof.chain_head(session.session_id, events)
        assert not [event for event in history.events if event.HasField("workflow_task_failed_event_attributes")]
        assert (await replayer().replay_workflow(history)).replay_failure is None
        found.append((actions(events), outcome.totals, outcome.steps, outcome.rejected, outcome.stop_reason_id))
    assert found[0] == found[1]
    expected = ["opened", "model_request", "model_response", "tool_call"] + ["message_rejected"] * 3
    assert found[0][0][: len(expected)] == expected
    assert found[0][0][-2:] == ["receipt", "closed"]
