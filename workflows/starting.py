"""How a run of a session starts: what it refuses, and the state of a life's first run."""

from __future__ import annotations

from temporalio import workflow

from affidavit import contract
from affidavit.evidence.text import printable
from affidavit.version import VERSION
from workflows.clock import new_id, now_ms
from workflows.process import ProcessState
from workflows.registration import Refused, Registration
from workflows.state import Ledger, SessionState
from workflows.wakes import Wakes


def check_type() -> None:
    """That this is a session at all: a dynamic definition is run for any type.

    Raises:
        RuntimeError: as the SDK does for a type that no worker has registered: the task fails until one has.
    """
    if (name := workflow.info().workflow_type) != contract.SESSION_WORKFLOW:
        raise RuntimeError(f"workflow type {printable(name)} is not registered on this worker")


def refuse_restarts(handed_on: bool) -> None:
    """That no second run comes under the same generation: it would write over the first one's evidence.

    Raises:
        Refused: one would.
    """
    info = workflow.info()
    if info.retry_policy is not None or info.cron_schedule or (info.continued_run_id and not handed_on):
        raise Refused(contract.REFUSED_BAD_SPEC, "a session takes no retry policy and no cron schedule")


def fresh_state(registration: Registration) -> SessionState:
    """The state of a life that begins."""
    now = now_ms()
    return SessionState(
        generation=workflow.info().first_execution_run_id,
        product_version=VERSION,
        trajectory_id=new_id(),
        registration_sha256=registration.sha256,
        ledger=Ledger(agent=registration.spec.agent),
        wakes=Wakes(target=registration.spec.wake_target),
        last_admitted_ms=now,
        last_report_ms=now,
        process=ProcessState(external_ref=registration.spec.external_ref),
    )
