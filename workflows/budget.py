"""How much a run has taken of what Temporal lets one take (design.md 4)."""

from __future__ import annotations

from temporalio import workflow

from affidavit import contract


class RunBudget:
    """Counts messages, and notes Temporal's suggestion to continue as new.

    The suggestion counts from a command on, and nothing waits for it. A replay may play a task without commands
    together with the next one, with what that one suggests, and knows of no updates that were refused; a task with a
    command it plays as it was. Where no command is given, after so many messages one is.
    """

    def __init__(self) -> None:
        self._noted = False
        self._since_look = 0
        self._signals = 0
        self._updates = 0

    def look(self) -> None:
        """Where a command is being given, note whether the run should end: as Temporal sees it in this task, or because
        new builds have taken the place of the one that it is pinned to."""
        self._since_look = 0
        info = workflow.info()
        self._noted |= info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()

    def is_to_look(self) -> bool:
        """Whether a command should be given for it: while bus and store are away no stage begins, and messages come all
        the same."""
        return self._since_look >= contract.ROLLOVER_LOOK

    def take_signal(self) -> None:
        """A signal came."""
        self._signals += 1
        self._since_look += 1

    def take_update(self) -> int:
        """An update was accepted. Returns how many this makes."""
        self._updates += 1
        self._since_look += 1
        return self._updates

    def is_spent(self) -> bool:
        """Whether the run should end."""
        return self._noted or self._signals >= contract.ROLLOVER_SIGNALS or self._updates >= contract.ROLLOVER_UPDATES
