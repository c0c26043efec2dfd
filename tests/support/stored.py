"""A session as it lies in an evidence store, written by the product's own activities but with no server about."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.testing import ActivityEnvironment

from activities.journaling import JournalingActivity
from activities.sealed import Life, SealedEvidence
from affidavit.activity_api import (
    Entry,
    JournalRequest,
    LifecycleRequest,
    OpenRequest,
    OutcomeRequest,
    TrajectoryRequest,
)
from affidavit.contract import SessionOutcome, SessionSpec, registration_hash
from affidavit.converter import encode_json, raw_json
from affidavit.evidence.stops import CAPTIONS
from affidavit.evidence.totals import Totals, final_stop_reason
from affidavit.steps import STEP
from tests.support.rig import AGENT
from workflows.accounting import own_row
from workflows.attempts import Attempts
from workflows.decide import decide
from workflows.inbox import Item
from workflows.state import Ledger

T = TypeVar("T")
T0 = 1_786_320_000_000
VERSION = "0.0.1"


def environment(workflow_type: str, workflow_id: str, run_id: str) -> ActivityEnvironment:
    """Runs an activity as if that workflow had called it."""
    made = ActivityEnvironment()
    made.info = dataclasses.replace(
        ActivityEnvironment.default_info(),
        workflow_type=workflow_type,
        workflow_id=workflow_id,
        workflow_run_id=run_id,
        start_to_close_timeout=timedelta(seconds=30),
    )
    return made


class StoredSession:
    """One life of a session; `report` journals, `end` writes what a session writes at its end."""

    def __init__(self, evidence: SealedEvidence, session_id: str = "session-1", **spec: Any) -> None:
        self.evidence = evidence
        self.life = Life(session_id, str(uuid.uuid4()))
        self.spec = SessionSpec(**{"agent": AGENT, "mode": "unsigned", **spec})
        self.heartbeats: list[Any] = []
        self._env = environment("AgentSession", session_id, self.life.generation)
        self._env.on_heartbeat = lambda *details: self.heartbeats.append(details)
        self._journaling = JournalingActivity(evidence)
        self._ledger = Ledger(agent=self.spec.agent)
        self._attempts = Attempts()
        self._caller = {"generation": self.life.generation, "run_id": self.life.generation}
        self._open()

    def run(self, activity: Callable[..., T], *args: Any) -> T:
        """Have this session call an activity."""
        return self._env.run(activity, *args)

    @property
    def count(self) -> int:
        return self._ledger.count

    def report(self, *steps: Mapping[str, Any]) -> None:
        """Journal steps as one batch."""
        self._batch([Item(s["kind"], self._now(), STEP.validate_python(dict(s)), s, _text(s)) for s in steps])

    def own(self, action: str, **payload: Any) -> None:
        """Journal an event of the session's own."""
        self._batch([Item(action, self._now(), payload=payload)])

    def claims(self, **wrong: Any) -> TrajectoryRequest:
        """What a session says of itself when it ends."""
        ledger = self._ledger
        stop_reason_id = final_stop_reason(Totals(stop_reason_id=ledger.stop_reason_id, abort_tripped=ledger.aborted))
        said = {"head": ledger.head, "count": ledger.count, "totals": ledger.totals, "stop_reason_id": stop_reason_id}
        return TrajectoryRequest(**{**self._caller, **said, **wrong})

    def end(self, status: str = "closed", *, receipt: dict[str, Any] | None = None, **more: Any) -> None:
        """Write the closing event, if it ends well, behind that of the receipt, if there is one; seal the outcome."""
        ledger, claims = self._ledger, self.claims()
        if status in ("closed", "cancelled"):
            said = {"mode": self.spec.mode, "outcome": status, "chain_head": ledger.head, "event_count": ledger.count}
            events = [("closed", said)]
            if receipt is not None:
                announced = {key: receipt[key] for key in ("receipt_id", "key_id", "subject")}
                events.insert(0, ("receipt", {**announced, "receipt": receipt}))
            self.run(
                self._journaling.lifecycle,
                LifecycleRequest(
                    **self._caller,
                    product_version=VERSION,
                    agent=ledger.agent,
                    entries=[self._entry(*event, sequence) for sequence, event in enumerate(events, ledger.count)],
                ),
            )
        fields: dict[str, Any] = {
            "session_id": self.life.session_id,
            "generation": self.life.generation,
            "mode": self.spec.mode,
            "status": status,
            "stop_reason_id": claims.stop_reason_id,
            "totals": ledger.totals,
            "steps": ledger.steps,
            "event_count": ledger.count,
            "chain_head": ledger.head,
            "published": True,
            **more,
        }
        fields["stop_reason"] = CAPTIONS[fields["stop_reason_id"]]
        self.run(self._journaling.outcome, OutcomeRequest(**self._caller, outcome=SessionOutcome(**fields)))

    def _open(self) -> None:
        form = self.spec.registration()
        digest = registration_hash(form)
        said = {
            "mode": self.spec.mode,
            "content": self.spec.content,
            "generation": self.life.generation,
            "registration_sha256": digest,
        }
        decision = decide(
            self._ledger, self.spec, [Item("opened", T0, payload=said)], {}, self._attempts, lambda: str(uuid.uuid4())
        )
        opened = self.run(
            self._journaling.open,
            OpenRequest(
                **self._caller,
                mode=self.spec.mode,
                content=self.spec.content,
                agent=self.spec.agent,
                product_version=VERSION,
                trajectory_id="0198e1f0-0000-7000-8000-000000000001",
                registration=form,
                registration_sha256=digest,
                entry=decision.entries[0],
            ),
        )
        self._ledger = decision.ledger
        self._ledger.head = opened.head

    def _batch(self, items: Sequence[Item]) -> None:
        decision = decide(self._ledger, self.spec, items, {}, self._attempts, lambda: str(uuid.uuid4()))
        assert decision.fault is None
        request = JournalRequest(
            **self._caller,
            content=self.spec.content,
            product_version=VERSION,
            agent=self.spec.agent,
            head=self._ledger.head,
            entries=decision.entries,
        )
        steps = raw_json(('{"steps":[' + ",".join(decision.steps) + "]}").encode())
        journaled = self.run(self._journaling.journal, request, steps)
        self._ledger = decision.ledger
        self._ledger.head = journaled.head

    def _entry(self, action: str, payload: dict[str, Any], sequence: int) -> Entry:
        row = own_row(action, payload)
        return Entry(
            action=action,
            sequence=sequence,
            uid=str(uuid.uuid4()),
            time=self._now(),
            class_name=row.class_name,
            status_id=row.status_id,
            severity_id=row.severity_id,
            payload=row.payload,
        )

    def _now(self) -> int:
        return T0 + 1000 * self._ledger.count


def _text(step: Mapping[str, Any]) -> str:
    return encode_json(step).decode()
