"""Agents that run one scripted session after the other while their workers, or their server, are killed."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Iterator

from tests.crash.checking import Ended
from tests.crash.scripts import SCRIPTS
from tests.support.rig import Rig


async def run_one(rig: Rig, script: str) -> Ended:
    """One session from its opening to its end."""
    run, spec = SCRIPTS[script]
    session = await rig.open(session_id=f"{script}-{uuid.uuid4()}", **spec)
    return Ended(script, await run(session))


class Load:
    """So many sessions at a time, until `stop`; those that run then are brought to their end."""

    def __init__(self, rig: Rig, sessions: int) -> None:
        self.ended: list[Ended] = []
        self.errors: list[str] = []
        self._rig = rig
        self._stopped = asyncio.Event()
        self._scripts: Iterator[str] = itertools.cycle(SCRIPTS)
        self._agents = [asyncio.create_task(self._agent()) for _ in range(sessions)]

    def stop(self) -> None:
        """Open no more sessions."""
        self._stopped.set()

    async def finish(self, within: float) -> None:
        """Wait until every session has ended.

        Raises:
            TimeoutError: one has not in `within` seconds.
        """
        self.stop()
        async with asyncio.timeout(within):
            await asyncio.gather(*self._agents)

    async def abandon(self) -> None:
        """Leave the sessions as they are."""
        for agent in self._agents:
            agent.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)

    def by_script(self) -> Counter[str]:
        """How many sessions of each script have ended."""
        return Counter(ended.script for ended in self.ended)

    async def _agent(self) -> None:
        while not self._stopped.is_set():
            script = next(self._scripts)
            try:
                self.ended.append(await run_one(self._rig, script))
            except Exception as error:
                # What a client is told while nobody serves it is no loss, but a session that it gave up is not
                # brought to its end either: the campaign counts that as a difference.
                self.errors.append(f"{script}: {type(error).__name__}: {error}")
