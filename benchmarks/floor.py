"""The floor: a workflow that takes the same signals and does nothing with them."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue


@workflow.defn
class Floor:
    """Takes every signal, answers every update at once."""

    def __init__(self) -> None:
        self._closed = False

    @workflow.run
    async def run(self, _spec: RawValue) -> None:
        await workflow.wait_condition(lambda: self._closed)

    @workflow.signal(dynamic=True)
    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """Any signal, unread."""

    @workflow.update
    async def flush(self) -> None:
        """Answers when everything that came before was taken, which it was."""

    @workflow.update
    async def submit(self, _steps: RawValue) -> None:
        """The empty update, with the same argument."""

    @workflow.update
    async def close(self) -> None:
        self._closed = True
