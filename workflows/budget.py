"""How much a run has taken of what Temporal lets one take (design.md 4)."""

from __future__ import annotations

from temporalio import workflow

from affidavit import contract
from workflows.clock import MOMENT_S


class RunBudget:
    """Counts messages, and notes Temporal's suggestion to continue as new.

    The suggestion counts from a command on. A replay may play a task without commands together with the next one, with
    what that one suggests; a task with a command it plays as it was.
    """

    def __init__(self) -> None:
        self._noted = False
        self._signals = 0
        self._updates = 0

    def look(self) -> None:
        """Note what Temporal suggests, where a command is being given."""
        self._noted = self._noted or self.is_suggested()

    async def look_later(self) -> None:
        """The same where none is: while bus and store are away no stage begins, and signals come all the same."""
        await workflow.sleep(MOMENT_S)
        self.look()

    def take_signal(self) -> None:
        """A signal came."""
        self._signals += 1

    def take_update(self) -> int:
        """An update was accepted. Returns how many this makes."""
        self._updates += 1
        return self._updates

    def is_suggested(self) -> bool:
        """Whether the run should end, as Temporal sees it in this task, or because new builds have taken the place of
        the one that it is pinned to."""
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()

    def is_spent(self) -> bool:
        """Whether the run should end."""
        return self._noted or self._signals >= contract.ROLLOVER_SIGNALS or self._updates >= contract.ROLLOVER_UPDATES
