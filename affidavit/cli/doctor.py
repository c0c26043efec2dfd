"""`affidavit doctor`: is this deployment in order? And `affidavit setup`, which registers what a namespace needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from affidavit.cli.connecting import connect
from affidavit.cli.output import DATA_DIR, AsJson, Code, CommandError, DataDir, emit, line, program, table
from affidavit.doctor import keyfiles, local
from affidavit.doctor.places import Places
from affidavit.doctor.report import Check, Finding, Verdict, always, blocking, examine, worded
from affidavit.doctor.topics import topics
from affidavit.errors import AffidavitUnavailable
from affidavit.evidence.keys import KeyFileError

if TYPE_CHECKING:
    from affidavit.client import SessionClient
    from affidavit.doctor.server import ServerChecks

CONNECT_S: Final = 15.0
STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red", "not checked": "dim"}
NO_SERVER: Final = "set TEMPORAL_ADDRESS (and TEMPORAL_NAMESPACE, TLS, …) to the server"
OF_SERVER: Final = (
    "namespace",
    "search attributes",
    "session workers",
    "signing workers",
    "sessions",
    "session payloads",
    "store of sessions",
    "clock",
)


def doctor(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """Look whether everything a deployment needs is in order; one line for each check, with what to do.

    Asks the server that Temporal's configuration names, and looks at this machine as a worker with these AFFIDAVIT_*
    variables would, object store and Kafka included, or at the embedded mode's data folder. Changes nothing, leaves
    nothing behind and shows no secret. A warning is something that works less well than it could. Exit 0 without failed
    checks, 1 with any.
    """
    findings = asyncio.run(_examined(data_dir))
    failed = any(each.status == "failed" for each in findings)
    if as_json:
        emit({"checks": [asdict(each) for each in findings], "ok": not failed})
    else:
        _show(findings)
    raise typer.Exit(Code.FAILED if failed else Code.OK)


async def _examined(data_dir: Path) -> list[Finding]:
    places = Places.told(os.environ, data_dir)
    return await examine({**await _of_server(places), **_of_machine(places)})


def _of_machine(places: Places) -> dict[str, Check]:
    return {
        "evidence store": blocking(lambda: local.store(places)),
        "event bus": topics if places.kafka else blocking(lambda: local.bus(places)),
        "journal key": blocking(lambda: keyfiles.journal_key(places)),
        "codec keys": blocking(lambda: keyfiles.codec_keys(os.environ)),
        "signing key": blocking(lambda: keyfiles.signing_key(places)),
        "public keys": blocking(lambda: keyfiles.keyring(places)),
        "versions": blocking(local.versions),
    }


async def _of_server(places: Places) -> dict[str, Check]:
    try:
        async with asyncio.timeout(CONNECT_S):
            client = await connect()
    except TimeoutError:
        return _unasked(Verdict("failed", f"no answer within {CONNECT_S:g} s", NO_SERVER))
    except CommandError as error:  # no client extra: this machine has no business with a server
        return _unasked(Verdict("not checked", str(error)))
    except KeyFileError:  # what is wrong with them is the finding of their own check
        return _unasked(Verdict("not checked", "the codec keys cannot be used, so nothing was asked"))
    except AffidavitUnavailable as error:
        return _unasked(Verdict("failed", str(error), NO_SERVER))
    except Exception as error:  # noqa: BLE001 - a configuration that cannot be read, say; this machine is looked at all the same
        return _unasked(Verdict("failed", worded(error), NO_SERVER))
    return await _asked(client, places)


async def _asked(client: SessionClient, places: Places) -> dict[str, Check]:
    from affidavit.doctor.server import ServerChecks
    from affidavit.doctor.sessions import SessionChecks

    asking, sessions = ServerChecks(client), SessionChecks(client)
    checks: Mapping[str, Check] = {
        "namespace": asking.namespace,
        "search attributes": asking.search_attributes,
        "session workers": asking.session_workers,
        "signing workers": asking.signing_workers,
        "sessions": sessions.progress,
        "session payloads": sessions.payloads,
        "store of sessions": lambda: sessions.same_store(places),
        "clock": asking.clock,
    }
    if await _lacks_namespace(asking):
        # Everything else is asked of the namespace: one fault, told once.
        rest = always(Verdict("not checked", "no namespace"))
        checks = {name: check if name == "namespace" else rest for name, check in checks.items()}
    return {"server": asking.server, **checks}


async def _lacks_namespace(asking: ServerChecks) -> bool:
    try:
        async with asyncio.timeout(CONNECT_S):
            return (await asking.namespace()).status == "failed"
    except Exception:  # noqa: BLE001 - then its own check tells it, in its turn
        return False


def _unasked(verdict: Verdict) -> dict[str, Check]:
    silent = always(Verdict("not checked", "no server" if verdict.status == "failed" else "the server was not asked"))
    return {"server": always(verdict), **dict.fromkeys(OF_SERVER, silent)}


def _show(findings: list[Finding]) -> None:
    rows = []
    for each in findings:
        word = "FAILED" if each.status == "failed" else each.status
        text = f"{each.what} → {each.do}" if each.do else each.what
        rows.append((STYLES[each.status], word, each.check, text.replace("`affidavit ", f"`{program()} ")))
    table(rows)
    counts = {status: sum(each.status == status for each in findings) for status in STYLES}
    told = [f"{number} {'FAILED' if status == 'failed' else status}" for status, number in counts.items() if number]
    line(f"doctor: {', '.join(told)}", "bold red" if counts["failed"] else "bold green")


def setup(as_json: AsJson = False) -> None:
    """Register the search attributes in the namespace, and wait until they can be used. Repeating it changes nothing.

    Run it once for each namespace, before its workers start: sessions that are opened without them set none.
    """
    namespace, added = asyncio.run(_set_up())
    if as_json:
        emit({"namespace": namespace, "registered": list(added)})
    elif added:
        line(f"namespace {namespace}: registered {', '.join(added)}")
    else:
        line(f"namespace {namespace}: all search attributes were registered already")


async def _set_up() -> tuple[str, tuple[str, ...]]:
    client = await connect()
    from affidavit.registering import register

    return client.temporal.namespace, await register(client.temporal)
