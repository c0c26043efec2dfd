"""Kills while sessions run, then looks at every one of them (behaviours H1, H2)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.crash.checking import Ended, differences
from tests.crash.killing import Kills, Server, kill_server, kill_workers, plan
from tests.crash.load import Load, run_one
from tests.crash.scripts import SCRIPTS
from tests.crash.stages import AT_RANDOM
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig

Mode = Literal["workers", "server"]

SLOTS = 2
"""Workers at a time, so that while one is away the other, or nobody, goes on."""
LAST_S = 240.0
"""How long the sessions may take to end once nobody is killed any more."""
RETRY_S = 300.0


@dataclass
class Result:
    """What a campaign has found. `stages`: those it was to kill at, besides at random."""

    mode: Mode
    seed: int
    stages: tuple[str, ...]
    planned: Counter[str]
    killed: Counter[str]
    seconds: float
    ended: Counter[str]
    events: int
    differences: list[str] = field(default_factory=list)

    @property
    def untried(self) -> list[str]:
        """Stages for which there were too few kills, in their order; `AT_RANDOM` may be one."""
        return [stage for stage in (*self.stages, AT_RANDOM) if not self.planned[stage] and not self.killed[stage]]

    @property
    def unmet(self) -> list[str]:
        """Stages that were to be killed at and were not once."""
        return sorted(stage for stage in self.planned if not self.killed[stage])

    @property
    def good(self) -> bool:
        return not self.differences and not self.unmet


async def campaign(
    folder: Path, stages: Sequence[str], *, kills: int, seed: int, mode: Mode = "workers", sessions: int = 8
) -> Result:
    """Run one.

    Args:
        folder: empty; evidence, bus, database and logs are put there.
        stages: where to kill, besides at random.
        kills: how many in all; as many as there are stages are enough for each of them.
        seed: fixes the order of the stages and when is killed at random; when which session comes by is chance.
        sessions: how many run at a time.
    """
    chance = random.Random(seed)
    server = Server(folder)
    started = time.monotonic()
    try:
        address = await server.start()
        rig = await Rig.make(address, folder / "data")
        rig.client.admit_timeout = rig.client.retry_timeout = RETRY_S
        async with process(WORKERS, environment(rig, address), folder / "worker.log"):
            twins = {script: await run_one(rig, script) for script in SCRIPTS}
        wanted = plan(stages, kills, chance)
        planned = Counter(wanted)
        left = Kills(wanted)
        load = Load(rig, sessions)
        try:
            if mode == "workers":
                await asyncio.gather(
                    *(kill_workers(rig, address, left, chance, folder, which) for which in range(SLOTS))
                )
            else:
                await kill_server(rig, address, server, left, chance, folder)
            async with process(WORKERS, environment(rig, address), folder / "worker.log"):
                await load.finish(LAST_S)
                found = load.errors + await _all_differences(rig, load.ended, twins)
        except TimeoutError:
            found = [f"{sessions} sessions had {LAST_S:g} s to end, and not all of them did"]
        finally:
            await load.abandon()
    finally:
        await server.stop()
    events = sum(ended.outcome.event_count for ended in load.ended)
    seconds = time.monotonic() - started
    return Result(mode, seed, tuple(stages), planned, left.done, seconds, load.by_script(), events, found)


async def _all_differences(rig: Rig, ended: Sequence[Ended], twins: dict[str, Ended]) -> list[str]:
    found = []
    for each in [*twins.values(), *ended]:
        found += await differences(rig, each, twins[each.script])
    return found
