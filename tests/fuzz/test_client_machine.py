"""The client's API against a model of the behaviours, in whatever order hypothesis thinks of.

`AFFIDAVIT_TEST_MACHINES` runs are made, each with up to `AFFIDAVIT_TEST_MACHINE_STEPS` calls; then every session is
ended, and its evidence compared with the model and with itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from affidavit.client import SessionHandle
from affidavit.contract import SessionSpec
from affidavit.errors import SessionNotFound, SessionRefused
from tests.fuzz.session_model import SLOTS, Life, Model
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions
from workers.devserver import DevServer

MACHINES: Final = int(os.environ.get("AFFIDAVIT_TEST_MACHINES", "6"))
STEPS: Final = int(os.environ.get("AFFIDAVIT_TEST_MACHINE_STEPS", "25"))
CHANCE: Final = "AFFIDAVIT_TEST_MACHINES" in os.environ
"""Without the variable every run makes the same calls; with it, others, and a failure is shrunk for minutes."""
CALL_LIMIT_S: Final = 60.0

T = TypeVar("T")

NAMES = st.sampled_from(["one", "two"])
NUMBERS = st.integers(1, 40)  # as many as a producer's memory holds, so that every repeat can be told
VARIANTS = st.sampled_from(["a", "a", "a", "b"])
ATTEMPTS = st.sampled_from([f"attempt-{n}" for n in range(SLOTS + 2)])
SPECS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["signed", "signed", "unsigned"]),
        "content": st.sampled_from(["store", "store", "full"]),
        "agent": st.sampled_from(["agent-7", "agent-7", "agent-7", "another"]),
    }
)


class Loop:
    """An event loop in a thread of its own, for hypothesis calls from where none runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __call__(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(what, CALL_LIMIT_S), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def step_of(kind: str, number: int, variant: str, attempt: str | None) -> dict[str, Any]:
    """A step that is the same whenever number and variant are."""
    if kind == "model_request":
        step: dict[str, Any] = {"messages": [{"role": "user", "content": f"{variant}{number}"}]}
    elif kind == "model_response":
        step = {"text": f"{variant}{number}", "usage": {"completion_tokens": number}}
    elif kind == "model_failure":
        step = {"reason": "timeout", "message": variant}
    elif kind == "tool_call":
        step = {"call_id": f"c{number}", "tool": f"tool-{variant}", "allowed": number % 3 > 0}
    else:
        step = {"content": [variant, number]}
    if attempt is not None:
        step["attempt_id"] = attempt
    return {"kind": kind, **step, "producer": "agent", "producer_seq": number}


class SessionMachine(RuleBasedStateMachine):
    """Each rule makes one call of the client and compares its answer with the model's."""

    rig: Rig
    call: Loop

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.handles: dict[str, list[SessionHandle]] = {}
        self.prefix = f"machine-{uuid.uuid4()}"

    # -- opening ---------------------------------------------------------------------------------------

    @initialize(spec=SPECS)
    def begin(self, spec: dict[str, Any]) -> None:
        self.open("one", spec, reopen=False)

    @rule(name=NAMES, spec=SPECS, reopen=st.booleans(), changed=st.sampled_from(["", "mode", "content", "agent"]))
    def open(self, name: str, spec: dict[str, Any], reopen: bool, changed: str = "") -> None:
        newest = self.model.newest(name)
        if newest is not None and newest.live:
            spec = {**newest.spec, **({changed: spec[changed]} if changed else {})}
        refused = self.model.open(name, spec, reopen=reopen)
        agent = AGENT.model_copy(update={"instance_uid": spec["agent"]})
        limits = {"response_slots": SLOTS, "drain_timeout_s": 1, "gap_grace_s": 86_400, "idle_close_s": 86_400}
        form = SessionSpec(agent=agent, mode=spec["mode"], content=spec["content"], limits=limits)  # type: ignore[arg-type]
        with self.expecting(refused):
            handle = self.call(self.rig.client.open(form, session_id=f"{self.prefix}-{name}", reopen=reopen))
            assert handle.generation is not None
            lives, handles = self.model.lives.setdefault(name, []), self.handles.setdefault(name, [])
            if newest is not None and newest.live:
                assert handle.generation == newest.generation
            else:
                assert handle.generation not in [life.generation for life in lives]
                lives.append(Life(spec, handle.generation))
                handles.append(handle)

    # -- reporting -------------------------------------------------------------------------------------

    @precondition(lambda self: self.living())
    @rule(data=st.data(), numbers=st.lists(NUMBERS, min_size=1, max_size=4), variant=VARIANTS)
    def record(self, data: st.DataObject, numbers: list[int], variant: str) -> None:
        life, handle = self.some(data)
        steps = [step_of("tool_call", number, variant, None) for number in numbers]
        for number, step in zip(numbers, steps, strict=True):
            life.report(number, json.dumps(step), step, by_signal=True)
        self.call(handle.record(*steps))
        self.call(handle.flush())

    @precondition(lambda self: self.living())
    @rule(data=st.data(), number=NUMBERS, variant=VARIANTS, kind=st.sampled_from(["tool_result", "model_response"]))
    def submit(self, data: st.DataObject, number: int, variant: str, kind: str) -> None:
        self._submit(*self.some(data), number, step_of(kind, number, variant, None))

    @precondition(lambda self: self.living())
    @rule(
        data=st.data(),
        attempt=ATTEMPTS,
        kind=st.sampled_from(["model_request", "model_response", "model_failure"]),
        wild=st.integers(0, 9),
    )
    def submit_of_an_attempt(self, data: st.DataObject, attempt: str, kind: str, wild: int) -> None:
        life, handle = self.some(data)
        number = max(life.bodies, default=0) + 1
        if number > 60:
            return
        fits = not life.attempts.get(attempt) if kind == "model_request" else attempt in life.attempts
        if fits or not wild:  # what does not fit poisons; now and then is enough
            self._submit(life, handle, number, step_of(kind, number, "a", attempt))

    def _submit(self, life: Life, handle: SessionHandle, number: int, step: dict[str, Any]) -> None:
        before = len(life.actions)
        became = life.report(number, json.dumps(step), step, by_signal=False)
        refused = {"conflict": "BadRequest", "dropped": "CaptureIncomplete"}.get(became)
        with self.expecting(refused):
            result = self.call(handle.submit(step))
            assert result.repeated == (became == "repeat")
            assert (result.first_sequence is None) == (became == "repeat")
            # Refusals are events too, and not in the list.
            assert result.first_sequence is None or result.first_sequence >= before

    @precondition(lambda self: self.living())
    @rule(data=st.data(), attempt=ATTEMPTS, own=st.integers(0, 4))
    def admit(self, data: st.DataObject, attempt: str, own: int) -> None:
        life, handle = self.some(data)
        other = "agent-7" if life.spec["agent"] == "another" else "another"
        agent = AGENT.model_copy(update={"instance_uid": life.spec["agent"] if own else other})
        with self.expecting(life.admit(attempt, own_agent=own > 0)):
            assert self.call(handle.admit(attempt, agent)).attempt_id == attempt

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        life, handle = self.some(data)
        view = self.call(handle.view())
        assert (view.steps, view.repeated, view.unprocessed) == (life.steps, life.repeated, life.unprocessed)
        assert view.poisoned is None if not life.poisoned else view.poisoned
        assert view.open_attempts == len(life.attempts)
        assert (view.totals.tool_calls, view.totals.tool_allowed) == (life.totals["calls"], life.totals["allowed"])

    # -- the end ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), seldom=st.integers(0, 2))
    def close(self, data: st.DataObject, seldom: int) -> None:
        life, handle = self.some(data, live=seldom > 0)
        if life.live and seldom:
            return
        self._close(life, handle)

    def _close(self, life: Life, handle: SessionHandle) -> None:
        status = life.close()
        outcome = self.call(handle.close())
        assert outcome.generation == life.generation
        assert (outcome.status, outcome.steps, outcome.repeated) == (status, life.steps, life.repeated)
        assert outcome.unprocessed == life.unprocessed
        totals = outcome.totals
        assert (totals.tool_calls, totals.tool_allowed, totals.tool_blocked, totals.completion_tokens) == tuple(
            life.totals.values()
        )
        if life.spec["mode"] == "signed":
            assert (outcome.receipt is not None) == (status == "closed")
            life.receipt = outcome.receipt

    @precondition(lambda self: any(not life.live for lives in self.model.lives.values() for life in lives))
    @rule(data=st.data())
    def report_to_one_that_has_ended(self, data: st.DataObject) -> None:
        _, handle = self.some(data, live=False)
        with pytest.raises(SessionNotFound):
            self.call(handle.submit(step_of("tool_call", 1, "late", None)))

    @precondition(lambda self: any(not life.live for lives in self.model.lives.values() for life in lives))
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        life, handle = self.some(data, live=False)
        if life.status == "quarantined":
            with pytest.raises(SessionRefused):
                self.call(handle.promote())
            return
        receipt = self.call(handle.promote())
        assert life.receipt in (None, receipt)
        life.receipt = receipt

    # -- what is left ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        for name, lives in self.model.lives.items():
            for life, handle in zip(lives, self.handles[name], strict=True):
                if life.live:
                    self._close(life, handle)
                self._check_evidence(life, handle)
        super().teardown()

    def _check_evidence(self, life: Life, handle: SessionHandle) -> None:
        (folder,) = self.rig.data.evidence.glob(f"sessions/*/{life.generation}")
        events = [
            json.loads(line)["payload"]["event"]
            for file in sorted((folder / "journal").glob("*.ndjson"))
            for line in file.read_text().splitlines()
        ]
        assert [action for action in actions(events) if action != "refused"] == life.actions
        refused = [event["payload"]["count"] for event in events if event["payload"]["action"] == "refused"]
        assert sum(refused) == life.refusals or life.poisoned  # what is poisoned tells no last words
        if life.status == "closed":
            gaps = [event["payload"] for event in events if event["payload"]["action"] == "producer_gap"]
            assert sorted((gap["first_missing"], gap["last_missing"]) for gap in gaps) == life.gaps()
        if life.receipt is not None and life.spec["mode"] == "signed" and len(list(folder.parent.iterdir())) == 1:
            outcome = self.call(handle.result())
            attested(self.rig, outcome)

    # -- what rules share ------------------------------------------------------------------------------

    def living(self) -> list[tuple[Life, SessionHandle]]:
        return [pair for pair in self._pairs() if pair[0].live]

    def _pairs(self) -> list[tuple[Life, SessionHandle]]:
        return [
            pair for name, lives in self.model.lives.items() for pair in zip(lives, self.handles[name], strict=True)
        ]

    def some(self, data: st.DataObject, *, live: bool = True) -> tuple[Life, SessionHandle]:
        pairs = [pair for pair in self._pairs() if pair[0].live == live] or self._pairs()
        return pairs[data.draw(st.integers(0, len(pairs) - 1))]

    @contextmanager
    def expecting(self, refused: str | None) -> Iterator[None]:
        if refused is None:
            yield
            return
        with pytest.raises(SessionRefused) as caught:
            yield
        assert caught.value.type == refused


@pytest.mark.timeout(120 + 40 * MACHINES)
def test_the_client_does_what_the_model_of_the_behaviours_does(server: DevServer, tmp_path: Path) -> None:
    call = Loop()
    try:
        rig = call(Rig.make(server.address, tmp_path))
        running = rig.worker()
        call(running.__aenter__())
        try:
            machine = type("Machine", (SessionMachine,), {"rig": rig, "call": staticmethod(call)})
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=MACHINES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    derandomize=not CHANCE,
                    phases=[phase for phase in Phase if CHANCE or phase not in (Phase.shrink, Phase.explain)],
                ),
            )
        finally:
            call(running.__aexit__(None, None, None))
    finally:
        call.close()
