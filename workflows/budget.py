"""How much a run has taken of what Temporal lets one take (design.md 4)."""

from __future__ import annotations

from temporalio import workflow

from affidavit import contract


class RunBudget:
    """Counts messages, and notes Temporal's suggestion to continue as new.

    The suggestion is looked at only where a command is given. A replay plays tasks without commands together with the
    next one, with what that one suggests; a task with a command it plays as it was. Between two looks messages are
    counted instead: while bus and store are away no stage begins, and signals come all the same.
    """

    def __init__(self) -> None:
        self._suggested = False
        self._signals = 0
        self._updates = 0
        self._events = 0
        self._bytes = 0

    def look(self) -> None:
        """A command is being given: note whether the run should end, as Temporal sees it or because new builds have
        taken the place of the one that it is pinned to."""
        info = workflow.info()
        if info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed():
            self._suggested = True
        self._events = self._bytes = 0

    def take_signal(self, size: int) -> None:
        """A signal of so many bytes came."""
        self._signals += 1
        self._events += 4  # its own, and at worst three of a task
        self._bytes += size

    def take_update(self) -> int:
        """An update was accepted. Returns how many this makes."""
        self._updates += 1
        self._events += 5
        return self._updates

    def is_spent(self) -> bool:
        """Whether the run should end."""
        return (
            self._suggested
            or self._signals >= contract.ROLLOVER_SIGNALS
            or self._updates >= contract.ROLLOVER_UPDATES
            or self._events >= contract.ROLLOVER_EVENTS
            or self._bytes >= contract.ROLLOVER_BYTES
        )
