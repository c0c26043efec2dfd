"""Checks are bounded and independent: whatever one of them does, the others are told and nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time

from affidavit.doctor.report import Check, Verdict, always, blocking, examine
from affidavit.stores.errors import IntegrityError

GOOD = always(Verdict("ok", "fine"))


def raising(error: Exception) -> Check:
    async def check() -> Verdict:
        raise error

    return check


async def test_a_check_that_breaks_is_a_finding_and_the_others_go_on() -> None:
    findings = await examine(
        {
            "first": GOOD,
            "system": raising(PermissionError(13, "Permission denied", "/secret/place")),
            "own": raising(IntegrityError("store.id is not a store id")),
            "bug": raising(KeyError("a secret")),
            "last": GOOD,
        }
    )
    assert [(each.check, each.status, each.what) for each in findings] == [
        ("first", "ok", "fine"),
        ("system", "failed", "Permission denied"),
        ("own", "failed", "store.id is not a store id"),
        ("bug", "failed", "internal error: KeyError"),
        ("last", "ok", "fine"),
    ]


async def test_a_check_that_hangs_is_left_behind() -> None:
    """A dead mount never answers; its thread is not waited for, not even by the program's end."""
    let_go = threading.Event()
    hanging = [thread for thread in threading.enumerate() if thread.name == "check"]

    def hang() -> Verdict:
        let_go.wait()
        return Verdict("ok", "too late")

    async def wait() -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError

    started = time.monotonic()
    findings = await examine({"mount": blocking(hang), "server": wait, "other": GOOD}, limit_s=0.2)
    assert time.monotonic() - started < 5
    assert [(each.status, each.what) for each in findings] == [
        ("failed", "no answer within 0.2 s"),
        ("failed", "no answer within 0.2 s"),
        ("ok", "fine"),
    ]
    (thread,) = (each for each in threading.enumerate() if each.name == "check" and each not in hanging)
    assert thread.daemon
    let_go.set()
    await asyncio.to_thread(thread.join, 10)


async def test_foreign_text_in_a_finding_is_escaped_and_cut() -> None:
    findings = await examine({"a": always(Verdict("ok", "x\x1b[31m\n" + "y" * 1000, "z\n"))})
    assert findings[0].what.startswith("x\\x1b[31m\\x0ay")
    assert len(findings[0].what) == 400
    assert findings[0].do == "z\\x0a"
