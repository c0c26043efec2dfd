"""Stops a worker dead at a stage, from outside: the product has no switch for it and does not know of it.

`Failpoint` waits for its stage, says `at STAGE SESSION` on standard output and holds the thread that got there until a
file appears, which is never where the process is to be killed. Then the next stage is waited for.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from temporalio import activity, workflow

import activities.buses.sqlite
import affidavit.stores.local
import workflows.attempts
import workflows.consumer
import workflows.embedding
import workflows.handover
import workflows.session
import workflows.stages
from activities.buses.base import BusRecord, EventBus
from activities.embedders import Counts, HashEmbedder
from affidavit.stores.base import EvidenceStore
from tests.support.taps import TapBus, TapStore

_POLL_S = 0.005


class Failpoint:
    """Waits for one stage after the other; each is met at its n-th passage, on whichever thread comes first."""

    def __init__(self, stages: Sequence[tuple[str, int]], release: Path) -> None:
        """`stages`: what to wait for, and how many passages are let through before. `release`: prefix of the files
        that let go of the first, the second, … stage that was met."""
        self._stages = list(stages)
        self._release = release
        self._met = 0
        self._lock = threading.Lock()

    def passing(self, stage: str, session_id: str) -> None:
        """Tell that a stage is passed; returns at once unless it is the one that is waited for."""
        with self._lock:
            if not self._stages or self._stages[0][0] != stage:
                return
            passages = self._stages[0][1]
            if passages > 0:
                self._stages[0] = (stage, passages - 1)
                return
            self._stages.pop(0)
            released = f"{self._release}{self._met}"
            self._met += 1
        # By descriptor, so that nothing is left in a buffer.
        os.write(1, f"at {stage} {session_id}\n".encode())
        while not os.path.exists(released):  # noqa: PTH110 - a string is enough
            time.sleep(_POLL_S)


class FailingEmbedder(HashEmbedder):
    """The product's embedder with a stage before and after each text; whoever is given one asks it in an activity."""

    def __init__(self, failpoint: Failpoint) -> None:
        self._failpoint = failpoint

    def counts(self, text: str) -> Counts:
        session_id = activity.info().workflow_id or ""
        self._failpoint.passing("embed before", session_id)
        found = super().counts(text)
        self._failpoint.passing("embed after", session_id)
        return found


def failing_store(store: EvidenceStore, failpoint: Failpoint) -> TapStore:
    """A store with a stage before, after and in the middle of each write."""
    writing = threading.local()

    def place(name: str) -> str:
        parts = name.split("/")
        folder = parts[3] if len(parts) > 4 else parts[-1]
        return "opening" if folder == "journal" and parts[-1].startswith("000000000000.") else folder

    def passing(moment: str, name: str) -> None:
        if name.startswith("sessions/"):
            failpoint.passing(f"{place(name)} {moment}", name.split("/")[1])

    def before(name: str) -> None:
        writing.name = name
        passing("before", name)

    def after(name: str) -> None:
        writing.name = ""
        passing("after", name)

    def reading(name: str) -> None:
        info = activity.info() if activity.in_activity() else None
        if info is not None and info.activity_type == "seal":
            failpoint.passing("seal before", info.workflow_id or "")

    link = os.link

    def link_after_half(*args: Any, **kwargs: Any) -> None:
        passing("half", getattr(writing, "name", ""))
        link(*args, **kwargs)

    affidavit.stores.local.os.link = link_after_half
    return TapStore(store, before=before, after=after, reading=reading)


def failing_bus(bus: EventBus, failpoint: Failpoint) -> TapBus:
    """A bus with a stage before, after and in the middle of each call."""
    append = activities.buses.sqlite._append

    def append_and_pass(connection: Any, records: Sequence[BusRecord]) -> Any:
        found = append(connection, records)
        failpoint.passing("publish half", records[0].session_id)
        return found

    async def passing(moment: str, records: Sequence[BusRecord]) -> None:
        for place in ("publish", records[0].topic):
            await asyncio.to_thread(failpoint.passing, f"{place} {moment}", records[0].session_id)

    activities.buses.sqlite._append = append_and_pass
    return TapBus(
        bus, before=lambda records: passing("before", records), after=lambda records: passing("after", records)
    )


def fail_in_workflow_code(failpoint: Failpoint) -> None:
    """Put the stages of workflow code into its modules."""

    def around(module: Any, name: str, *, before: str = "", after: str = "") -> None:
        real = getattr(module, name)

        def passing(*args: Any, **kwargs: Any) -> Any:
            _pass(failpoint, before)
            found = real(*args, **kwargs)
            _pass(failpoint, after)
            return found

        setattr(module, name, passing)

    def awaited(name: str, after: str) -> None:
        real: Callable[..., Any] = getattr(workflows.stages, name)

        async def passing(*args: Any, **kwargs: Any) -> Any:
            found = await real(*args, **kwargs)
            _pass(failpoint, after)
            return found

        setattr(workflows.stages, name, passing)

    around(workflows.session, "message", before="receive")
    around(workflows.embedding, "assess", before="measure before", after="measure after")
    around(workflows.consumer, "decide", before="number before", after="number after")
    around(workflows.attempts.Attempts, "end", after="attempt closed")
    around(workflows.handover, "pack", after="rollover")
    awaited("journal", "totals")
    awaited("publish", "acknowledge")
    awaited("seal", "sealed")


def _pass(failpoint: Failpoint, stage: str) -> None:
    if stage:
        failpoint.passing(stage, workflow.info().workflow_id)
