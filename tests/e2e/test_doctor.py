"""`affidavit doctor` and `affidavit setup` against a real server, each check in order and out of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from affidavit import registering
from affidavit.client import SessionClient
from affidavit.doctor import sessions as asked
from affidavit.doctor.places import Places
from affidavit.doctor.report import Finding, Verdict, examine
from affidavit.doctor.server import ServerChecks
from affidavit.doctor.sessions import SessionChecks
from affidavit.registering import RegistrationRefused, register
from affidavit.stores.local import DirectoryStore
from tests.e2e.test_operating import COMMAND, ran
from tests.support.bare import call
from tests.support.halves import journaling, store_of
from tests.support.processes import environment
from tests.support.rig import Rig
from tests.support.taps import Outage, TapStore
from tests.support.waiting import eventually
from workers.devserver import DevServer
from workflows import attributes

Checked = Callable[[], Awaitable[Verdict]]


async def of(check: Checked) -> Finding:
    (finding,) = await examine({"it": check})
    return finding


def places(rig: Rig) -> Places:
    return Places.told({"AFFIDAVIT_STORE": str(rig.data.evidence)}, rig.data.root)


# -- the command -----------------------------------------------------------------------------------------


async def test_all_is_well_and_no_secret_is_told(running: Rig, server: DevServer, tmp_path: Path) -> None:
    session = await running.open()
    await session.record(call("c1"))
    await session.flush()
    env = environment(running, server.address, AFFIDAVIT_DATA_DIR=str(tmp_path / "none"))
    code, output, errors = await ran((*COMMAND, "doctor", "--json"), env, tmp_path / "log")
    found = json.loads(output)
    wrong = [each for each in found["checks"] if each["status"] not in ("ok", "warning")]
    assert (code, wrong, errors) == (0, [], "")
    assert found["ok"] is True
    assert [each["check"] for each in found["checks"]] == [
        "server",
        "namespace",
        "search attributes",
        "session workers",
        "signing workers",
        "sessions",
        "session payloads",
        "store of sessions",
        "clock",
        "evidence store",
        "event bus",
        "journal key",
        "codec keys",
        "signing key",
        "public keys",
        "versions",
    ]
    for name in ("signing.seed", "journal.key"):
        secret = (running.data.keys / name).read_bytes()
        assert secret.hex() not in output
    code, output, _ = await ran((*COMMAND, "doctor"), env, tmp_path / "log")
    assert code == 0
    assert output.splitlines()[-1].startswith("doctor: ")
    assert "FAILED" not in output


async def test_what_failed_is_told_line_by_line_and_by_the_exit_code(
    rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    """Without a worker, and with a key that others can read."""
    (rig.data.keys / "journal.key").chmod(0o644)
    env = environment(rig, server.address)
    code, output, errors = await ran((*COMMAND, "doctor"), env, tmp_path / "log")
    assert (code, errors) == (1, "")
    failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
    assert [" ".join(line.split()[1:3]) for line in failed] == ["session workers", "signing workers", "journal key"]
    assert all(" → " in line for line in failed)
    assert output.splitlines()[-1].startswith("doctor: ")
    assert "3 FAILED" in output.splitlines()[-1]


async def test_without_a_server_this_machine_is_looked_at_all_the_same(rig: Rig, tmp_path: Path) -> None:
    env = environment(rig, "127.0.0.1:1")
    code, output, _ = await ran((*COMMAND, "doctor", "--json"), env, tmp_path / "log")
    status = {each["check"]: each["status"] for each in json.loads(output)["checks"]}
    assert code == 1
    assert status["server"] == "failed"
    assert {status[name] for name in ("namespace", "session workers", "sessions", "clock")} == {"not checked"}
    assert {status[name] for name in ("journal key", "signing key", "public keys")} == {"ok"}


async def test_i6_a_bad_codec_key_is_found_as_one_and_not_as_a_missing_server(
    rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    env = environment(rig, server.address, AFFIDAVIT_CODEC_KEY="planted-nonsense")
    code, output, errors = await ran((*COMMAND, "doctor", "--json"), env, tmp_path / "log")
    found = {each["check"]: each for each in json.loads(output)["checks"]}
    assert [name for name, each in found.items() if each["status"] == "failed"] == ["codec keys"]
    assert found["codec keys"]["what"] == "AFFIDAVIT_CODEC_KEY is not 32 bytes as hex or base64"
    assert "keygen --codec" in found["codec keys"]["do"]
    assert (found["server"]["status"], found["server"]["do"]) == ("not checked", "")
    assert (code, errors) == (1, "")
    assert "planted" not in output


async def test_a_missing_namespace_is_one_failure_and_the_rest_is_not_checked(
    server: DevServer, rig: Rig, tmp_path: Path
) -> None:
    env = environment(rig, server.address, TEMPORAL_NAMESPACE="nowhere")
    code, output, _ = await ran((*COMMAND, "doctor", "--json"), env, tmp_path / "log")
    checks = json.loads(output)["checks"]
    assert code == 1
    assert [each["check"] for each in checks if each["status"] == "failed"] == ["namespace"]
    assert [each["check"] for each in checks if each["what"] == "no namespace"] == [
        "search attributes",
        "session workers",
        "signing workers",
        "sessions",
        "session payloads",
        "store of sessions",
        "clock",
    ]


async def test_setup_registers_once_and_says_so(server: DevServer, rig: Rig, tmp_path: Path) -> None:
    env = environment(rig, server.address)
    code, output, errors = await ran((*COMMAND, "setup"), env, tmp_path / "log")
    assert (code, output, errors) == (0, "namespace default: all search attributes were registered already\n", "")
    env = environment(rig, server.address, TEMPORAL_NAMESPACE="nowhere")
    code, output, errors = await ran((*COMMAND, "setup"), env, tmp_path / "log")
    assert (code, output) == (4, "")
    assert errors == "error: namespace nowhere is not found on the Temporal server\n"


# -- what the server is asked ----------------------------------------------------------------------------


async def test_a_namespace_that_is_not_there_fails(server: DevServer) -> None:
    there = ServerChecks(await SessionClient.connect(address=server.address))
    assert (await of(there.namespace)).what == "default, retention 1 day"
    gone = ServerChecks(await SessionClient.connect(address=server.address, namespace="nowhere"))
    finding = await of(gone.namespace)
    assert (finding.status, finding.what) == ("failed", "nowhere does not exist")


async def test_queues_that_nobody_polls_fail(rig: Rig) -> None:
    asking = ServerChecks(rig.client)
    queue = rig.settings.task_queue
    finding = await of(asking.session_workers)
    assert (finding.status, finding.what) == ("failed", f"nobody polls {queue} for workflows")
    async with journaling(rig):
        await eventually(lambda: of(asking.session_workers), lambda finding: finding.status == "ok")
        finding = await of(asking.signing_workers)
        assert (finding.status, finding.what) == ("failed", f"nobody polls {queue}-signing for activities")
    async with rig.worker():
        await eventually(lambda: of(asking.signing_workers), lambda finding: finding.status == "ok")


async def test_a_queue_whose_workers_have_gone_silent_is_a_warning(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = ServerChecks(running.client)
    await eventually(lambda: of(asking.session_workers), lambda finding: finding.status == "ok")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 400)
    finding = await of(asking.session_workers)
    assert finding.status == "warning"
    assert "but not for 4" in finding.what


@pytest.mark.parametrize(
    ("off", "status", "what"),
    [
        (0.0, "ok", "within "),
        (30.0, "warning", "30 s ahead of the server's"),
        (-30.0, "warning", "30 s behind the server's"),
        (900.0, "failed", "900 s ahead of the server's"),
    ],
)
async def test_the_clock_is_compared_with_the_servers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, off: float, status: str, what: str
) -> None:
    real = time.time
    monkeypatch.setattr("affidavit.doctor.server.time.time", lambda: real() + off)
    finding = await of(ServerChecks(rig.client).clock)
    monkeypatch.undo()
    assert finding.status == status
    if off == 0:
        assert finding.what.startswith(what)
    else:
        seconds = int(finding.what.split()[0])
        assert abs(seconds - abs(off)) <= 5  # a loaded machine takes a while to ask
        assert finding.what.split(" ", 1)[1] == what.split(" ", 1)[1]


# -- search attributes -----------------------------------------------------------------------------------


async def test_search_attributes_are_registered_only_where_that_does_no_harm(tmp_path: Path) -> None:
    server = await DevServer.start(log=tmp_path / "server.log", headless=True)
    try:
        client = await SessionClient.connect(address=server.address)
        asking = ServerChecks(client)
        finding = await of(asking.search_attributes)
        assert finding.status == "warning"
        assert finding.what.startswith("missing: AffidavitMode, AffidavitAgent, ")
        assert "`affidavit setup`" in finding.do
        await added(client.temporal, AffidavitSteps=IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
        finding = await of(asking.search_attributes)
        assert finding.status == "failed"
        assert "AffidavitSteps is Keyword, not Int" in finding.what
        with pytest.raises(RegistrationRefused, match="AffidavitSteps is Keyword, not Int"):
            await register(client.temporal)
        assert len((await registering.registered(client.temporal)).missing) == 8
    finally:
        await server.stop()


async def added(client: Client, **types: Any) -> None:
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
    )

    async def there() -> registering.Registered:
        return await registering.registered(client)

    await eventually(there, lambda found: set(types) <= {*found.right, *found.wrong})


class Refusing:
    """An operator service that answers every call with one error."""

    def __init__(self, status: RPCStatusCode) -> None:
        self._error = RPCError("Request unauthorized.", status, b"")

    async def list_search_attributes(self, *_: object, **__: object) -> None:
        raise self._error


class Refused:
    """A client that has no rights."""

    namespace = "production"

    def __init__(self, status: RPCStatusCode) -> None:
        self.operator_service = Refusing(status)


async def test_missing_rights_are_named_with_what_somebody_else_has_to_do(rig: Rig) -> None:
    refused: Any = Refused(RPCStatusCode.PERMISSION_DENIED)
    with pytest.raises(RegistrationRefused) as caught:
        await register(refused)
    said = str(caught.value)
    assert said.startswith("no right to register search attributes in namespace production (Request unauthorized.)")
    assert "AffidavitCost=Keyword" in said
    assert "AffidavitBreakerTripped=Bool" in said
    asking = ServerChecks(rig.client)
    asking._temporal = refused
    finding = await of(asking.search_attributes)
    assert finding.status == "warning"
    assert finding.what.startswith("cannot be listed (Request unauthorized.)")


async def test_what_does_not_become_visible_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Client) -> bool:
        return False

    monkeypatch.setattr(registering, "_queried", never)
    with pytest.raises(RegistrationRefused, match=r"not visible after 0\.5 s"):
        await register(rig.client.temporal, within=0.5)


# -- sessions --------------------------------------------------------------------------------------------


@pytest.mark.failed_tasks
async def test_sessions_with_failing_tasks_are_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = SessionChecks(rig.client)
    assert (await of(sessions.progress)).what.startswith("0 open")
    async with rig.worker():
        session = await rig.open()
        assert (await of(sessions.progress)).status == "ok"

        def bug(*_: object) -> str:
            raise RuntimeError("a bug")

        monkeypatch.setattr(attributes, "terminal_facts", bug)
        closing = asyncio.create_task(session.close())
        finding = await eventually(lambda: of(sessions.progress), lambda finding: finding.status == "failed")
        assert finding.what == f"failing workflow tasks: {session.session_id}"
        monkeypatch.undo()
        assert (await closing).status == "closed"
    assert (await of(sessions.progress)).status == "ok"


async def test_sessions_that_are_stalled_are_a_warning_with_what_they_met(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "STALLED_ATTEMPTS", 3)
    sessions = SessionChecks(rig.client)
    outage = Outage(lambda: OSError(28, "No space left on device"))
    full = TapStore(store_of(rig), before=lambda name: outage.strike() if "journal/" in name else None)
    async with journaling(rig, store=full):
        opening = asyncio.create_task(rig.open(session_id="stalled"))
        await outage.met_times(3)
        finding = await eventually(lambda: of(sessions.progress), lambda finding: finding.status == "warning")
        assert finding.what.startswith("stalled: stalled; stalled: open tried ")
        assert "No space left on device" in finding.what
        outage.end()
        await opening


async def test_the_store_of_this_machine_is_compared_with_the_sessions(rig: Rig, tmp_path: Path) -> None:
    sessions = SessionChecks(rig.client)
    finding = await of(lambda: sessions.same_store(places(rig)))
    assert (finding.status, finding.what) == ("not checked", "no session tells in which store it was opened")
    async with rig.worker():
        session = await rig.open(session_id="opened-here")
        await session.record(call("c1"))

        async def compared() -> Finding:
            return await of(lambda: sessions.same_store(places(rig)))

        finding = await eventually(compared, lambda finding: finding.status != "not checked")
        assert (finding.status, finding.what) == ("ok", "session opened-here was opened in this one")
        other = DirectoryStore(tmp_path / "other").store_id
        told = Places.told({"AFFIDAVIT_STORE": str(tmp_path / "other")}, rig.data.root)
        finding = await of(lambda: sessions.same_store(told))
        assert finding.status == "failed"
        assert finding.what == (
            f"session opened-here was opened in store {store_of(rig).store_id}, this one is {other}"
        )
        await session.close()
    nowhere = Places.told({}, tmp_path / "none")
    assert (await of(lambda: sessions.same_store(nowhere))).status == "not checked"
