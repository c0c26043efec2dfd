"""Running checks: beside each other, each within its time, and whatever happens to one is its own finding."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from affidavit.buslog import BusLogError
from affidavit.errors import AffidavitError
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable
from affidavit.stores.errors import IntegrityError, StorePlaceError, StoreUnfit, TransientError

LIMIT_S: Final = 10.0
TEXT_CHARS: Final = 400

Status = Literal["ok", "warning", "failed", "not checked"]
T = TypeVar("T")

_WORDED: Final = (
    AffidavitError,
    EvidenceError,
    BusLogError,
    IntegrityError,
    StorePlaceError,
    StoreUnfit,
    TransientError,
)
"""Errors of our own: one line each, foreign text escaped, and never a secret in it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found, and what there is to do about it; both one line."""

    status: Status
    what: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict under the name of its check."""

    check: str
    status: Status
    what: str
    do: str


Check = Callable[[], Awaitable[Verdict]]


async def examine(checks: Mapping[str, Check], limit_s: float = LIMIT_S) -> list[Finding]:
    """Run all checks at once; the findings come in the order of the checks.

    Args:
        limit_s: seconds that each may take; one that takes longer has failed.
    """
    verdicts = await asyncio.gather(*(_bounded(check, limit_s) for check in checks.values()))
    return [
        Finding(name, verdict.status, printable(verdict.what, TEXT_CHARS), printable(verdict.do, TEXT_CHARS))
        for name, verdict in zip(checks, verdicts, strict=True)
    ]


async def _bounded(check: Check, limit_s: float) -> Verdict:
    try:
        async with asyncio.timeout(limit_s):
            return await check()
    except TimeoutError:
        return Verdict("failed", f"no answer within {limit_s:g} s")
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, and the others go on
        return Verdict("failed", worded(error))


def worded(error: Exception) -> str:
    """An error without what it may quote: our own texts, the system's and the server's, else no more than its type."""
    if isinstance(error, _WORDED):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if type(error).__name__ == "RPCError":  # of an extra that may not be installed
        return f"the Temporal server answered: {printable(str(error), 200)}"
    return f"internal error: {type(error).__name__}"


async def in_thread(work: Callable[[], T]) -> T:
    """Run work that may block in a thread that nobody waits for: a dead mount may never let go of it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = work(), None
        except Exception as caught:  # noqa: BLE001 - raised where it is awaited
            result, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="check", daemon=True).start()
    return await future


def blocking(work: Callable[[], Verdict]) -> Check:
    """A check of work that may block."""
    return lambda: in_thread(work)


def always(verdict: Verdict) -> Check:
    """A check whose verdict is known."""

    async def check() -> Verdict:
        return verdict

    return check
