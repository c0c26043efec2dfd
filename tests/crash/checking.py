"""Whether a session that was disturbed is what it should be: against itself, and against an undisturbed twin.

The evidence is recomputed without the product's code (tests/support/oracle.py, proof.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from temporalio.api.enums.v1 import WorkflowTaskFailedCause

from affidavit.contract import PLAYED_AHEAD, SessionOutcome
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.verify import verify_with_events
from tests.replay.record import runs
from tests.support.comparing import comparable
from tests.support.failed_tasks import SLOW
from tests.support.oracle import attested
from tests.support.proof import chain_heads, check_signature, lifecycle, uids
from tests.support.rig import Rig

COMPARED: Final = (
    "status",
    "steps",
    "rejected",
    "event_count",
    "late_steps",
    "unprocessed",
    "stop_reason_id",
    "totals",
)
"""Of an outcome. `repeated` is not: a message whose answer was lost is sent again, and counted as what it is."""

NORMAL: Final = frozenset(
    {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,  # a signal came as it was to end
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    }
)
"""Why a workflow task may fail; anything else, non-determinism first, is a bug."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A session that has ended, and which script it ran."""

    script: str
    outcome: SessionOutcome


async def differences(rig: Rig, ended: Ended, twin: Ended) -> list[str]:
    """What is wrong with a session, one line each; nothing if it is as it should be."""
    found = []
    checks: list[tuple[str, Callable[[], object]]] = [
        ("itself", lambda: _agrees_with_itself(rig, ended.outcome)),
        ("its twin", lambda: _agrees_with_twin(rig, ended.outcome, twin.outcome)),
    ]
    for what, check in checks:
        try:
            check()
        except Exception as error:
            found.append(f"{ended.outcome.session_id} ({ended.script}) against {what}: {_first_line(error)}")
    for cause in await failed_tasks(rig, ended.outcome.session_id):
        found.append(f"{ended.outcome.session_id} ({ended.script}): a workflow task failed, {cause}")
    return found


async def failed_tasks(rig: Rig, session_id: str) -> list[str]:
    """Causes of failed workflow tasks of all its runs, but for the normal ones."""
    causes = []
    for run_id in await runs(rig, session_id):
        history = await rig.client.temporal.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        for event in history.events:
            if event.HasField("workflow_task_failed_event_attributes"):
                failed = event.workflow_task_failed_event_attributes
                if failed.cause not in NORMAL and not failed.failure.message.startswith((SLOW, PLAYED_AHEAD)):
                    causes.append(f"{WorkflowTaskFailedCause.Name(failed.cause)}: {failed.failure.message[:200]}")
    return causes


def _agrees_with_itself(rig: Rig, outcome: SessionOutcome) -> None:
    assert outcome.published
    if outcome.mode == "signed":
        attested(rig, outcome)
        assert rig.bus(outcome.session_id)[-2:] == lifecycle(rig.folder(outcome.session_id))
    else:
        _promoted(rig, outcome)
    _accepted_by_an_auditor(rig, outcome)


def _accepted_by_an_auditor(rig: Rig, outcome: SessionOutcome) -> None:
    """The product's own word, on the folder as the kills have left it, scraps and all."""
    ring = Keyring.parse((rig.data.keys / "public.json").read_bytes())
    keys = [(rig.data.keys / "journal.key").read_bytes()]
    assert verify_with_events(None, rig.folder(outcome.session_id), ring, keys).trusted


def _promoted(rig: Rig, outcome: SessionOutcome) -> None:
    """Of an unsigned session: journal, bus, trajectory and the receipt of its promotion."""
    session_id, folder = outcome.session_id, rig.folder(outcome.session_id)
    journal, published = rig.journal(session_id), rig.bus(session_id)
    assert published == journal + lifecycle(folder)
    assert [event["metadata"]["sequence"] for event in published] == list(range(len(journal) + 2))
    assert [event["payload"]["action"] for event in published[-2:]] == ["closed", "receipt"]
    assert len(set(uids(published))) == len(published)
    assert outcome.chain_head == chain_heads(session_id, journal)[-1]
    digest = hashlib.sha256((folder / "trajectory.json").read_bytes()).hexdigest()
    assert outcome.trajectory_digest == digest
    receipt = json.loads((folder / "receipt.json").read_bytes())
    check_signature(receipt, json.loads((rig.data.keys / "public.json").read_bytes()))
    assert receipt["subject"]["trajectory_digest"] == digest


def _agrees_with_twin(rig: Rig, outcome: SessionOutcome, twin: SessionOutcome) -> None:
    for name in COMPARED:
        one, other = getattr(outcome, name), getattr(twin, name)
        assert one == other, f"{name} is {one!r}, of the twin {other!r}"
    own, others = (_comparable(rig, each.session_id) for each in (outcome, twin))
    assert len(own) == len(others), f"{len(own)} events, of the twin {len(others)}"
    for sequence, (one, other) in enumerate(zip(own, others, strict=True)):
        assert one == other, f"event {sequence} is {one!r}, of the twin {other!r}"


def _comparable(rig: Rig, session_id: str) -> list[dict[str, Any]]:
    return [comparable(event) for event in rig.bus(session_id)]


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:2000] if lines else ''} at line {_line(error)}"


def _line(error: Exception) -> str:
    trace, where = error.__traceback__, ""
    while trace is not None:
        where = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
