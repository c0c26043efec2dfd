"""F10: the signer reads the whole journal and signs only what it has found there."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from affidavit.client import SessionHandle
from affidavit.contract import SessionOutcome, SessionSpec, registration_hash, signing_queue
from affidavit.evidence.keys import Signer, generate
from affidavit.evidence.receipt import issue, to_bytes
from tests.support import proof
from tests.support.halves import check_once, journaling, signing, store_of, until
from tests.support.rig import AGENT, Rig, actions
from tests.support.taps import Outage, TapStore

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}}
RESPONSE = {"kind": "model_response", "text": "done", "finish_reason": "stop", "usage": {"prompt_tokens": 7}}


@dataclass
class Evidence:
    """The files of a session that is about to be sealed, and the key that opens them."""

    folder: Path
    session_id: str
    key: bytes

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def domain(self) -> str:
        return f"{self.session_id}#{self.folder.name}:active"

    def flip(self, name: str, needle: bytes, into: bytes) -> None:
        data = (self.folder / name).read_bytes()
        assert data.count(needle) >= 1
        (self.folder / name).write_bytes(data.replace(needle, into, 1))

    def lines(self, name: str) -> list[bytes]:
        return (self.folder / name).read_bytes().splitlines()

    def rewrite(self, name: str, lines: list[bytes]) -> None:
        (self.folder / name).write_bytes(b"\n".join(lines) + b"\n")

    def record(self, name: str, place: int) -> tuple[int, Any]:
        envelope = json.loads(self.lines(name)[place])
        return envelope["index"], envelope["payload"]

    def replace(self, name: str, place: int, key: bytes, change: Callable[[Any], None]) -> None:
        """Put a changed record into a segment, under a MAC of `key`."""
        index, payload = self.record(name, place)
        change(payload)
        lines = self.lines(name)
        lines[place] = proof.envelope(key, self.domain, index, payload)
        self.rewrite(name, lines)


async def stopped_before_its_seal(rig: Rig, **spec: Any) -> tuple[SessionHandle, asyncio.Task[SessionOutcome]]:
    """A session whose journal is 0 | 1 2 | 3 4 and which waits for a signer."""
    session = await rig.open(**spec)
    await session.record(CALL, {**CALL, "call_id": "c2"})
    await session.flush()
    await session.record({**CALL, "call_id": "c3"}, RESPONSE)
    closing = asyncio.create_task(session.close())
    await until(session, "sealing")
    files = sorted(file.name for file in (rig.folder(session.session_id) / "journal").iterdir())
    assert files == ["000000000000.ndjson", "000000000001.ndjson", "000000000003.ndjson"]
    return session, closing


def check_refused(rig: Rig, session: SessionHandle, outcome: SessionOutcome, reason: str) -> None:
    reason = f"sealing: IntegrityError: {reason}"
    assert (outcome.status, outcome.reason) == ("quarantined", reason)
    assert (outcome.receipt, outcome.receipt_id) == (None, None)
    folder = rig.folder(session.session_id)
    (event,) = proof.lifecycle(folder)
    assert event["payload"]["action"] == "quarantined"
    assert event["payload"]["reason"] == reason
    assert (event["severity_id"], event["status_id"], event["class_name"]) == (5, 2, "agent.session")
    assert event["metadata"]["sequence"] == 5
    assert rig.bus(session.session_id)[-1] == event
    assert actions(rig.bus(session.session_id)).count("receipt") == 0


def _no_change(_: Any) -> None: ...


def _other_digit(digit: bytes) -> bytes:
    """A hex digit that is not the one given: a MAC has any of the sixteen at any place."""
    return b"0" if digit != b"0" else b"1"


def _other_mac(evidence: Evidence) -> None:
    first, second = evidence.lines(J3)
    evidence.rewrite(J3, [first[:-3] + _other_digit(first[-3:-2]) + first[-2:], second])


def _shorten(evidence: Evidence, segment: str) -> None:
    for name in (f"journal/{segment}", f"captures/{segment}"):
        evidence.rewrite(name, evidence.lines(name)[:1])


def _other_domain(evidence: Evidence) -> None:
    lines = evidence.lines(J1)
    domain = evidence.domain.replace(":active", ":lifecycle")
    lines[0] = proof.envelope(evidence.key, domain, 1, evidence.record(J1, 0)[1])
    evidence.rewrite(J1, lines)


def _swap(evidence: Evidence) -> None:
    first, second = evidence.lines("journal/000000000001.ndjson")
    evidence.rewrite("journal/000000000001.ndjson", [second, first])


def _surplus(index: int) -> Callable[[Evidence], None]:
    def write(evidence: Evidence) -> None:
        _, payload = evidence.record("journal/000000000003.ndjson", 0)
        payload["event"]["metadata"] |= {"sequence": index, "uid": str(uuid.uuid4())}
        line = proof.envelope(evidence.key, evidence.domain, index, payload)
        evidence.rewrite(f"journal/{index:012d}.ndjson", [line])
        capture = evidence.lines("captures/000000000003.ndjson")[0]
        evidence.rewrite(f"captures/{index:012d}.ndjson", [capture])

    return write


def _say_less(payload: Any) -> None:
    payload["tool_calls"] = payload["tool_allowed"] = 0


def _forge_event(payload: Any) -> None:
    payload["event"]["payload"]["tool"] = "other"


def _forge_generation(payload: Any) -> None:
    payload["event"]["payload"]["generation"] = "another"


def _forge_session(payload: Any) -> None:
    payload["event"]["session_uid"] = "another"


def _empty_event(payload: Any) -> None:
    payload["event"] = {key: payload["event"][key] for key in ("metadata", "session_uid")}


J1, J3 = "journal/000000000001.ndjson", "journal/000000000003.ndjson"

TAMPERING: dict[str, tuple[Callable[[Evidence], object], str]] = {
    "a changed byte in a journal payload": (
        lambda e: e.flip(J1, b'"tool":"search"', b'"tool":"sea4ch"'),
        "journal record 1: authentication failed",
    ),
    "a changed digit in a MAC": (_other_mac, "journal record 3: authentication failed"),
    "a changed index": (
        lambda e: e.flip(J1, b'{"index":2', b'{"index":7'),
        "journal record 2: authentication failed",
    ),
    "a record dropped from a segment's end": (
        lambda e: _shorten(e, "000000000001.ndjson"),
        "journal segment 000000000003.ndjson where 2 was expected",
    ),
    "a record dropped, its capture kept": (
        lambda e: e.rewrite(J1, e.lines(J1)[:1]),
        "a captures segment does not have a line for each event",
    ),
    "a record dropped from a segment's start": (
        lambda e: e.rewrite(J1, e.lines(J1)[1:]),
        "journal record 1: position mismatch",
    ),
    "the last record dropped": (
        lambda e: _shorten(e, "000000000003.ndjson"),
        "the journal does not have the claimed event count, chain head, totals, stop reason",
    ),
    "records swapped": (_swap, "journal record 1: position mismatch"),
    "an empty line": (
        lambda e: e.rewrite(J3, [*e.lines(J3), b""]),
        "journal record 5: Expecting value, line 1 column 1",
    ),
    "a segment removed in the middle": (
        lambda e: (e.folder / J1).unlink(),
        "journal segment 000000000003.ndjson where 1 was expected",
    ),
    "the last segment removed": (
        lambda e: (e.folder / J3).unlink(),
        "captures segment 000000000003.ndjson goes with no journal segment",
    ),
    "the whole journal removed": (
        lambda e: [file.unlink() for file in e.journal.iterdir()],
        "captures segment 000000000000.ndjson goes with no journal segment",
    ),
    "a record under another key": (
        lambda e: e.replace(J1, 1, b"k" * 32, _no_change),
        "journal record 2: authentication failed",
    ),
    "a record of another domain": (_other_domain, "journal record 1: authentication failed"),
    "a surplus segment that continues the journal": (
        _surplus(5),
        "the journal does not have the claimed event count, chain head, totals",
    ),
    "a surplus segment behind a gap": (_surplus(9), "journal segment 000000000009.ndjson where 5 was expected"),
    "a foreign file among the segments": (
        lambda e: (e.journal / "notes.txt").write_text("x"),
        "journal segment notes.txt where 5 was expected",
    ),
    "an event forged by a holder of the journal key": (
        lambda e: e.replace(J1, 0, e.key, _forge_event),
        "the journal does not have the claimed chain head",
    ),
    "counts forged by a holder of the journal key": (
        lambda e: e.replace(J1, 0, e.key, _say_less),
        "events and records disagree on tool_total, tool_allowed",
    ),
    "an event of another session": (
        lambda e: e.replace(J1, 0, e.key, _forge_session),
        "event 1 is of another session",
    ),
    "an opening of another generation": (
        lambda e: e.replace("journal/000000000000.ndjson", 0, e.key, _forge_generation),
        "the journal does not start with the opening of this generation",
    ),
    "an event that is none": (lambda e: e.replace(J1, 0, e.key, _empty_event), "event 1 is no valid event: "),
    "a changed byte in a capture": (
        lambda e: e.flip("captures/000000000001.ndjson", b"needle", b"noodle"),
        "the capture of event 1 is not the one digested",
    ),
    "a capture dropped": (
        lambda e: e.rewrite("captures/000000000001.ndjson", e.lines("captures/000000000001.ndjson")[:1]),
        "a captures segment does not have a line for each event",
    ),
    "a captures segment removed": (
        lambda e: (e.folder / "captures/000000000001.ndjson").unlink(),
        "000000000001.ndjson is not in the evidence store",
    ),
    "a surplus captures segment": (
        lambda e: e.rewrite("captures/000000000005.ndjson", [b"{}"]),
        "captures segment 000000000005.ndjson goes with no journal segment",
    ),
    "a capture where nothing was reported": (
        lambda e: e.rewrite("captures/000000000000.ndjson", [b'{"kind":"tool_call"}']),
        "the capture of event 0 is not the one digested",
    ),
    "a changed byte in the metadata": (
        lambda e: e.flip("metadata.json", b'"content":"store"', b'"content":"stare"'),
        "metadata.json: authentication failed",
    ),
    "the metadata of nobody": (
        lambda e: (e.folder / "metadata.json").unlink(),
        "metadata.json is not in the evidence store",
    ),
    "a metadata file that is no envelope": (
        lambda e: (e.folder / "metadata.json").write_bytes(b"\xff{}"),
        "metadata.json: not UTF-8: byte 0",
    ),
}


@pytest.fixture
def key(rig: Rig) -> bytes:
    return (rig.data.keys / "journal.key").read_bytes()


@pytest.mark.crowded
@pytest.mark.timeout(200)
async def test_f10_whatever_is_changed_in_the_evidence_there_is_no_receipt(rig: Rig, key: bytes) -> None:
    """All ways of tampering at once, one session each: every one of them is quarantined with its own reason."""
    rig.client.admit_timeout = 120  # they all open at the same moment
    async with journaling(rig):
        stopped = dict(
            zip(
                TAMPERING,
                await asyncio.gather(*(stopped_before_its_seal(rig) for _ in TAMPERING)),
                strict=True,
            )
        )
        untouched, closing = await stopped_before_its_seal(rig)
        for name, (session, _) in stopped.items():
            TAMPERING[name][0](Evidence(rig.folder(session.session_id), session.session_id, key))
        async with signing(rig):
            assert (await closing).status == "closed"
            for name, (session, ending) in stopped.items():
                outcome = await ending
                _, reason = TAMPERING[name]
                if reason.endswith(": "):  # the rest is the JSON library's word
                    assert str(outcome.reason).startswith(f"sealing: IntegrityError: {reason}"), name
                    reason = str(outcome.reason).removeprefix("sealing: IntegrityError: ")
                assert outcome.reason == f"sealing: IntegrityError: {reason}", name
                assert not (rig.folder(session.session_id) / "receipt.json").exists(), name
                check_refused(rig, session, outcome, reason)
    check_once(rig, untouched.session_id)
    proof.check_signature(
        json.loads((rig.folder(untouched.session_id) / "receipt.json").read_text()),
        json.loads((rig.data.evidence / "public.json").read_text()),
    )


async def test_f10_a_session_without_captures_may_have_none(rig: Rig, key: bytes) -> None:
    async with journaling(rig):
        good, closing = await stopped_before_its_seal(rig, content="digest")
        bad, ending = await stopped_before_its_seal(rig, content="digest")
        evidence = Evidence(rig.folder(bad.session_id), bad.session_id, key)
        (evidence.folder / "captures").mkdir()
        evidence.rewrite("captures/000000000000.ndjson", [b"{}"])
        async with signing(rig):
            assert (await closing).status == "closed"
            outcome = await ending
    assert not (rig.folder(good.session_id) / "captures").exists()
    check_refused(rig, bad, outcome, "captures segment 000000000000.ndjson goes with no journal segment")


async def test_f10_a_journal_under_two_keys_is_read_where_both_are_known(rig: Rig, key: bytes) -> None:
    """The journal key was rotated in the middle; whoever knows the new one alone signs nothing."""
    new = generate(rig.data.root / "new-keys").journal_key
    both = (new, *rig.settings.journal_key_files)
    rotated = Rig(rig.client, rig.data, rig.settings.model_copy(update={"journal_key_files": both}))
    async with journaling(rig):
        sessions = [await rig.open() for _ in range(2)]
        for session in sessions:
            await session.submit(CALL)
    async with journaling(rotated):
        for session in sessions:
            await session.submit(RESPONSE)
        endings = [asyncio.create_task(session.close()) for session in sessions]
        for session in sessions:
            await until(session, "sealing")
        for session in sessions:
            folder = rig.folder(session.session_id)
            evidence = Evidence(folder, session.session_id, key)
            for place, secret in ((1, key), (2, new.read_bytes())):
                name = f"journal/{place:012d}.ndjson"
                assert evidence.lines(name) == [proof.envelope(secret, evidence.domain, *evidence.record(name, 0))]
        # The second one's last record is put under a key that was never the product's.
        evidence.replace("journal/000000000002.ndjson", 0, b"k" * 32, _no_change)
        async with signing(rotated):
            outcomes = [await ending for ending in endings]
    assert [outcome.status for outcome in outcomes] == ["closed", "quarantined"]
    assert outcomes[1].reason == "sealing: IntegrityError: journal record 2: authentication failed"


# -- who asks, and for what ---------------------------------------------------------------------------------------

ONCE = RetryPolicy(maximum_attempts=1)
LIMIT = timedelta(seconds=20)
UID = "0198e1f0-0000-7000-8000-{:012d}"
T = 1_786_320_000_000


def open_request(spec: SessionSpec, generation: str) -> dict[str, Any]:
    form = spec.registration()
    return {
        "generation": generation,
        "mode": spec.mode,
        "content": spec.content,
        "agent": AGENT.model_dump(),
        "product_version": "9.9",
        "trajectory_id": UID.format(1),
        "registration": form,
        "registration_sha256": registration_hash(form),
        "entry": {
            "action": "opened",
            "sequence": 0,
            "uid": UID.format(2),
            "time": T,
            "class_name": "agent.session",
            "status_id": 1,
            "severity_id": 1,
            "payload": {
                "mode": spec.mode,
                "content": spec.content,
                "generation": generation,
                "registration_sha256": registration_hash(form),
            },
        },
    }


async def act(request: dict[str, Any], opens: bool) -> Any:
    """Open the caller's own generation if it is to, then ask for a seal; the error's text, or the receipt."""
    info = workflow.info()
    queue = workflow.memo_value("queue", type_hint=str)
    caller = {"generation": info.first_execution_run_id, "run_id": info.run_id}
    asked = {**caller, "head": "00" * 32, "count": 1, "stop_reason_id": 4}
    asked |= {"receipt_id": UID.format(3), "issued_at": T, "totals": {}}
    try:
        if opens:
            opening = {**open_request(SessionSpec(agent=AGENT), info.first_execution_run_id), **caller}
            opened = await workflow.execute_activity(
                "open", opening, task_queue=queue, start_to_close_timeout=LIMIT, retry_policy=ONCE
            )
            asked["head"] = opened["head"]
        sealed = await workflow.execute_activity(
            "seal",
            {**asked, **request},
            task_queue=signing_queue(queue),
            start_to_close_timeout=LIMIT,
            retry_policy=ONCE,
        )
    except ActivityError as error:
        cause = cast(ApplicationError, error.cause)
        return f"{cause.type}: {cause.message}"
    return sealed["receipt"]


@workflow.defn(name="AgentSession")
class FalseSession:
    """Calls itself a session."""

    @workflow.run
    async def run(self, request: dict[str, Any], opens: bool) -> Any:
        return await act(request, opens)


@workflow.defn(name="AgentSession")
class FalseSecondRun:
    """Calls itself a session, and asks in its second run."""

    @workflow.run
    async def run(self, request: dict[str, Any], opens: bool) -> Any:
        if workflow.info().continued_run_id is None:
            workflow.continue_as_new(args=[request, opens])
        return await act(request, opens)


@workflow.defn
class Stranger:
    """Another workflow that knows the queues."""

    @workflow.run
    async def run(self, request: dict[str, Any], opens: bool) -> Any:
        return await act(request, opens)


async def ask(
    rig: Rig,
    type_: str,
    request: dict[str, Any],
    *,
    opens: bool,
    session_id: str | None = None,
    session: type = FalseSession,
) -> Any:
    """Run a false workflow on a queue of its own, which uses the product's activities."""
    queue = f"{rig.settings.task_queue}-false"
    client = rig.client.temporal
    async with Worker(
        client, task_queue=queue, workflows=[session, Stranger], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        return await client.execute_workflow(
            type_,
            args=[request, opens],
            id=session_id or f"false-{uuid.uuid4()}",
            task_queue=queue,
            memo={"queue": rig.settings.task_queue},
            execution_timeout=timedelta(seconds=60),
        )


async def test_f10_a_session_by_that_name_gets_a_receipt_for_what_is_true(running: Rig) -> None:
    """The control of the refusals below: the same request with the right numbers is granted."""
    sid = f"true-{uuid.uuid4()}"
    receipt = await ask(running, "AgentSession", {}, opens=True, session_id=sid)
    assert receipt["subject"] == {
        "kind": "event_chain",
        "chain_head": proof.chain_head(sid, running.journal(sid)),
        "event_count": 1,
    }


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        ({"head": "11" * 32}, "the journal does not have the claimed chain head"),
        ({"count": 2}, "the journal does not have the claimed event count"),
        ({"count": 0}, "the journal does not have the claimed event count"),
        ({"stop_reason_id": 1}, "the journal does not have the claimed stop reason"),
        ({"stop_reason_id": 99}, "the journal does not have the claimed stop reason"),
        *(
            ({"totals": {name: 1}}, "the journal does not have the claimed totals")
            for name in (
                "tool_calls",
                "tool_allowed",
                "tool_blocked",
                "prompt_tokens",
                "completion_tokens",
                "cached_tokens",
                "cost_usd_micros",
            )
        ),
    ],
)
async def test_f10_numbers_off_by_one_are_refused(running: Rig, request_: dict[str, Any], refusal: str) -> None:
    sid = f"wrong-{uuid.uuid4()}"
    assert await ask(running, "AgentSession", request_, opens=True, session_id=sid) == f"IntegrityError: {refusal}"
    assert not (running.folder(sid) / "receipt.json").exists()


async def test_f10_a_later_run_gets_a_receipt_for_its_own_chain_of_runs_alone(running: Rig) -> None:
    """The generation of a session that was handed on is its first run; the activities ask Temporal for that."""
    sid, other = f"handed-on-{uuid.uuid4()}", f"other-{uuid.uuid4()}"
    receipt = await ask(running, "AgentSession", {}, opens=True, session_id=sid, session=FalseSecondRun)
    events = running.journal(sid)
    assert receipt["subject"] == {
        "kind": "event_chain",
        "chain_head": proof.chain_head(sid, events),
        "event_count": 1,
    }
    generation = events[0]["payload"]["generation"]
    assert generation == running.folder(sid).name

    request = {"generation": generation, "head": receipt["subject"]["chain_head"]}
    refusal = "IntegrityError: the generation is not the caller's own"
    for session_id in (other, sid):  # another session, and a later life of the same one
        for session in (FalseSession, FalseSecondRun):
            answer = await ask(running, "AgentSession", request, opens=False, session_id=session_id, session=session)
            assert answer == refusal


async def test_f10_a_run_that_is_not_the_one_it_was_started_as_was_reset(running: Rig) -> None:
    """A reset run still gives the id of the run that it took its history from."""
    reset = "IntegrityError: the session was reset; its capture cannot be continued"
    for session in (FalseSession, FalseSecondRun):
        for run_id in (str(uuid.uuid4()), ""):
            request = {"run_id": run_id}
            assert await ask(running, "AgentSession", request, opens=False, session=session) == reset
    assert not (running.data.evidence / "sessions").exists()


async def test_f10_a_foreign_workflow_gets_no_receipt(rig: Rig) -> None:
    """Not for a made-up head, and not for the true numbers of a session that is about to be sealed."""
    async with journaling(rig):
        victim, closing = await stopped_before_its_seal(rig)
        view = await victim.view()
        folder = rig.folder(victim.session_id)
        true = {
            "generation": view.generation,
            "head": view.chain_head,
            "count": view.event_count,
            "totals": view.totals.model_dump(),
            "stop_reason_id": 1,
        }
        async with signing(rig, settings={"task_queue": f"{rig.settings.task_queue}-x"}):
            stranger = Rig(
                rig.client, rig.data, rig.settings.model_copy(update={"task_queue": f"{rig.settings.task_queue}-x"})
            )
            for request in ({}, true, {"head": "11" * 32}):
                refusal = "IntegrityError: only a session reaches its evidence"
                assert await ask(stranger, "Stranger", request, opens=False) == refusal
            # One that calls itself a session has its own id, whatever generation it names.
            refusal = "IntegrityError: the generation is not the caller's own"
            assert await ask(stranger, "AgentSession", true, opens=False) == refusal
            # And it has no evidence under its own.
            refusal = "IntegrityError: metadata.json is not in the evidence store"
            own = {key: value for key, value in true.items() if key != "generation"}
            assert await ask(stranger, "AgentSession", own, opens=False) == refusal
        assert not (folder / "receipt.json").exists()
        async with signing(rig):
            assert (await closing).status == "closed"


async def test_f10_a_later_workflow_of_the_same_id_gets_no_receipt_for_the_former_one(rig: Rig) -> None:
    """A quarantined generation stays without a receipt, even when its journal is whole again."""
    sid = f"twice-{uuid.uuid4()}"
    async with journaling(rig):
        session, closing = await stopped_before_its_seal(rig, session_id=sid)
        view = await session.view()
        segment = rig.folder(sid) / J3
        kept = segment.read_bytes()
        segment.write_bytes(kept[:-5] + _other_digit(kept[-5:-4]) + kept[-4:])
        async with signing(rig):
            assert (await closing).status == "quarantined"
        segment.write_bytes(kept)
    request = {
        "generation": view.generation,
        "head": view.chain_head,
        "count": view.event_count,
        "totals": view.totals.model_dump(),
        "stop_reason_id": 1,
    }
    async with signing(rig):
        answer = await ask(rig, "AgentSession", request, opens=False, session_id=sid)
    assert answer == "IntegrityError: the generation is not the caller's own"
    assert not (rig.folder(sid) / "receipt.json").exists()


async def test_f10_a_foreign_workflow_writes_no_evidence(running: Rig) -> None:
    answer = await ask(running, "Stranger", {}, opens=True)
    assert answer == "IntegrityError: only a session reaches its evidence"
    assert list((running.data.evidence / "sessions").glob("*")) == []


# -- a receipt that stands already --------------------------------------------------------------------------------


async def test_f10_a_retry_after_the_receipt_was_written_returns_the_same(rig: Rig) -> None:
    outage = Outage(lambda: OSError(5, "Input/output error"))
    store = TapStore(store_of(rig), after=lambda name: outage.strike() if name.endswith("receipt.json") else None)
    async with journaling(rig):
        session, closing = await stopped_before_its_seal(rig)
        async with signing(rig, store=store):
            await outage.met_times(2)
            written = (rig.folder(session.session_id) / "receipt.json").read_bytes()
            assert not closing.done()
            outage.end()
            outcome = await closing
    assert (rig.folder(session.session_id) / "receipt.json").read_bytes() == written
    assert outcome.receipt == json.loads(written)
    check_once(rig, session.session_id)


def two_signers(rig: Rig) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Settings of the former and the present signer, which share one keyring."""
    other = generate(rig.data.root / "other-keys")
    ring = rig.data.root / "ring.json"
    entries = [*json.loads((rig.data.keys / "public.json").read_text()), *json.loads(other.public_keys.read_text())]
    ring.write_text(json.dumps(entries))
    former = {"public_keys": ring}
    return former, {"public_keys": ring, "signing_seed_file": other.seed}, other.public_keys


async def test_f10_a_receipt_signed_under_a_key_rotated_out_since_is_adopted(rig: Rig) -> None:
    former, present, _ = two_signers(rig)
    outage = Outage(lambda: OSError(5, "Input/output error"))
    store = TapStore(store_of(rig), after=lambda name: outage.strike() if name.endswith("receipt.json") else None)
    async with journaling(rig):
        session, closing = await stopped_before_its_seal(rig)
        async with signing(rig, settings=former, store=store):
            await outage.met_times(1)
        written = (rig.folder(session.session_id) / "receipt.json").read_bytes()
        async with signing(rig, settings=present):
            outcome = await closing
    assert (rig.folder(session.session_id) / "receipt.json").read_bytes() == written
    assert (outcome.status, outcome.receipt) == ("closed", json.loads(written))
    assert outcome.key_id == Signer((rig.data.keys / "signing.seed").read_bytes()).key_id
    check_once(rig, session.session_id)


async def test_f10_a_receipt_signed_under_a_key_that_the_signer_does_not_trust_is_refused(rig: Rig) -> None:
    former, present, own_ring = two_signers(rig)
    outage = Outage(lambda: OSError(5, "Input/output error"))
    store = TapStore(store_of(rig), after=lambda name: outage.strike() if name.endswith("receipt.json") else None)
    async with journaling(rig):
        session, closing = await stopped_before_its_seal(rig)
        async with signing(rig, settings=former, store=store):
            await outage.met_times(1)
        async with signing(rig, settings={**present, "public_keys": own_ring}):
            outcome = await closing
    former_id = Signer((rig.data.keys / "signing.seed").read_bytes()).key_id
    reason = f"receipt.json: untrusted key: key id {former_id} is not in the keyring"
    check_refused(rig, session, outcome, reason)


@pytest.mark.parametrize("kind", ["another receipt", "a changed one", "no receipt"])
async def test_f10_a_different_receipt_is_refused(rig: Rig, kind: str) -> None:
    async with journaling(rig):
        session, closing = await stopped_before_its_seal(rig)
        view = await session.view()
        body = {
            "receipt_version": 1,
            "receipt_id": UID.format(7),
            "session_id": session.session_id,
            "issued_at": T,
            "issued_at_iso": "2026-08-10T00:00:00.000Z",
            "ai_agent": {
                "version": "1",
                "charter": {"name": "triage", "type_id": 1},
                "instance_uid": "agent-7",
                "ttl_remaining_s": 600,
            },
            "subject": {"kind": "event_chain", "chain_head": view.chain_head, "event_count": 5},
            "tool_calls": {"total": 3, "allowed": 3, "blocked": 0},
            "cost": {"prompt_tokens": 7, "completion_tokens": 0, "cached_tokens": 0, "cost_usd_micros": 0},
            "stop_reason_id": 1,
            "stop_reason": "Stop",
        }
        document = issue(body, Signer((rig.data.keys / "signing.seed").read_bytes()))
        reason = "receipt.json is another receipt"
        if kind == "a changed one":
            document["cost"]["prompt_tokens"] = 8
            reason = "receipt.json: the signature does not match: a field was changed or another key signed"
        planted = to_bytes(document)
        if kind == "no receipt":
            planted, reason = base64.b64encode(planted), "receipt.json: "
        path = rig.folder(session.session_id) / "receipt.json"
        path.write_bytes(planted)
        async with signing(rig):
            outcome = await closing
    if kind == "no receipt":
        assert str(outcome.reason).startswith(f"sealing: IntegrityError: {reason}")
        reason = str(outcome.reason).removeprefix("sealing: IntegrityError: ")
    check_refused(rig, session, outcome, reason)
    assert path.read_bytes() == planted
