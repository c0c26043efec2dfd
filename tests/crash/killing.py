"""The two ways to kill: the process that works, or the server that it works for."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.crash.stages import AT_RANDOM, EMBEDDING
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig
from workers.devserver import DevServer

CRASH_WORKER: Final = ("-m", "tests.crash.worker")
PATIENCE_S: Final = 30.0
"""How long a worker may take to get to its stage; then it is killed where it is, and the stage is tried again."""
TRIES: Final = 5
LOWERED: Final = {"limit.historyCount.suggestContinueAsNew": "120"}
"""So that sessions of twenty events are handed on to a next run as well."""
PASSAGES: Final = 3
"""A worker is let through its stage up to so many times before it dies there, so that sessions get on."""


@dataclass
class Kills:
    """What is to be killed, the next one last, and what was, by stage."""

    left: list[str]
    done: Counter[str] = field(default_factory=Counter)
    unmet: Counter[str] = field(default_factory=Counter)

    def take(self) -> str | None:
        """The next stage to kill at; None when there is none left."""
        return self.left.pop() if self.left else None

    def missed(self, stage: str) -> None:
        """A stage was not reached in time: it is tried again later, but not for ever."""
        self.unmet[stage] += 1
        if self.unmet[stage] < TRIES:
            self.left.insert(0, stage)

    def for_one_worker(self) -> list[str]:
        """The next stages that one worker can stop at, which is given an embedder or is not; in order."""
        stages = [stage for stage in reversed(self.left) if stage != AT_RANDOM]
        return list(itertools.takewhile(lambda stage: (stage in EMBEDDING) == (stages[0] in EMBEDDING), stages))


def plan(stages: Sequence[str], kills: int, chance: random.Random) -> list[str]:
    """`kills` stages in a random order, the next one last, each as often as the others; a sixth are none in particular.

    Where there are too few for that, every stage has one before there are any at random.
    """
    at_random = min(math.ceil(kills / 6), max(kills - len(stages), 0))
    rounds = itertools.chain.from_iterable(chance.sample(stages, len(stages)) for _ in range(kills))
    wanted = list(itertools.islice(rounds, kills - at_random))
    for _ in range(at_random):
        wanted.insert(chance.randrange(len(wanted) + 1), AT_RANDOM)
    return wanted


async def kill_workers(rig: Rig, address: str, kills: Kills, chance: random.Random, folder: Path, which: int) -> None:
    """Run one worker after the other, each until it is killed, while there are stages left."""
    for number in range(1_000_000):
        stage = kills.take()
        if stage is None:
            return
        if stage == AT_RANDOM:
            await _kill_a_plain_worker(rig, address, chance, folder)
            kills.done[AT_RANDOM] += 1
            continue
        at = json.dumps([(stage, chance.randrange(PASSAGES))])
        env = environment(rig, address, CRASH_AT=at, CRASH_RELEASE=str(folder / f"never-{which}-{number}-"))
        async with process(CRASH_WORKER, env, folder / "worker.log") as worker:
            reached = await _reached(worker)
            worker.kill()
        if reached:
            kills.done[stage] += 1
        else:
            kills.done[AT_RANDOM] += 1
            kills.missed(stage)


async def _kill_a_plain_worker(rig: Rig, address: str, chance: random.Random, folder: Path) -> None:
    async with process(WORKERS, environment(rig, address), folder / "worker.log") as worker:
        await asyncio.sleep(chance.uniform(3, 9))  # past its start, which takes two seconds or so
        assert worker.returncode is None, "a worker has ended by itself; its log says why"
        worker.kill()


async def _reached(worker: asyncio.subprocess.Process) -> str | None:
    """The line that a worker says when it is at its stage; None if it is not there in time."""
    assert worker.stdout is not None
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            line = await worker.stdout.readline()
            assert line, "a worker has ended by itself; its log says why"
            return line.decode().rstrip("\n")
    return None


class Server:
    """A dev server on a file, which comes back at the same address when it was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: DevServer | None = None

    async def start(self) -> str:
        """Start it; returns its address."""
        port = None if self._running is None else int(self._running.address.rpartition(":")[2])
        self._running = await DevServer.start(
            log=self._folder / "server.log",
            database=self._folder / "temporal.db",
            port=port,
            headless=True,
            dynamic_config=LOWERED,
        )
        return self._running.address

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._running is not None
        self._running.process.kill()
        await asyncio.to_thread(self._running.process.wait)

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.stop()


async def kill_server(
    rig: Rig, address: str, server: Server, kills: Kills, chance: random.Random, folder: Path
) -> None:
    """Kill the server whenever a worker is at a stage, let the worker go on without it, and start it again.

    The worker lives through all of it; one that does not come to its stage is replaced by one that waits for the next,
    and so is one without an embedder by one that has it, for the stages of embedding: they come last.
    """
    kills.left.sort(key=lambda stage: stage not in EMBEDDING)
    number = 0
    while kills.left:
        number += 1
        release = folder / f"go-{number}-"
        stages = kills.for_one_worker()
        at = json.dumps([(stage, chance.randrange(PASSAGES)) for stage in stages])
        env = environment(rig, address, CRASH_AT=at, CRASH_RELEASE=str(release))
        async with process(CRASH_WORKER, env, folder / "worker.log") as worker:
            met = 0
            while kills.left:
                if kills.left[-1] == AT_RANDOM:
                    kills.take()
                    await asyncio.sleep(chance.uniform(0.5, 3))
                    await _strike(server, None)
                    kills.done[AT_RANDOM] += 1
                    continue
                if met == len(stages):
                    await _ended(worker)
                    break
                stage = kills.left.pop()
                if await _reached(worker) is None:
                    kills.missed(stage)
                    break
                await _strike(server, Path(f"{release}{met}"))
                kills.done[stage] += 1
                met += 1
                await asyncio.sleep(chance.uniform(1, 4))  # or nobody would get on at all


async def _ended(worker: asyncio.subprocess.Process) -> None:
    """Have a worker hand back what it has; it is killed soon if it does not."""
    worker.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(worker.wait(), PATIENCE_S)


async def _strike(server: Server, release: Path | None) -> None:
    await server.kill()
    if release is not None:
        await asyncio.to_thread(release.touch)
    await server.start()
