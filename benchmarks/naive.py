"""The naive shape: each step goes through one ordinary activity a stage, in sequence."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue

STAGES: Final = ("naive_embed", "naive_journal", "naive_publish")


@workflow.defn
class Naive:
    """Signals wait in a queue; one loop works them off, step by step and stage by stage."""

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._arrived = 0
        self._done = 0
        self._closed = False

    @workflow.run
    async def run(self, _spec: RawValue) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._waiting) or self._closed)
            if not self._waiting:
                return
            step = self._waiting.popleft()
            for stage in STAGES:
                await workflow.execute_activity(stage, step, start_to_close_timeout=timedelta(seconds=30))
            self._done += 1

    @workflow.signal(dynamic=True)
    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """A record of steps."""
        steps = json.loads(args[0].payload.data)["steps"]
        self._waiting.extend(steps)
        self._arrived += len(steps)

    @workflow.update
    async def flush(self) -> None:
        """Answers when everything that came before went through all stages."""
        arrived = self._arrived
        await workflow.wait_condition(lambda: self._done >= arrived)

    @workflow.update
    async def close(self) -> None:
        self._closed = True
