"""What waits to be processed, in the order in which it came (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from affidavit.contract import BATCH_BYTES, BATCH_STEPS
from affidavit.steps import AnyStep


@dataclass(slots=True, eq=False)
class Item:
    """One thing that becomes one event: a step with the text it was reported as, or something of our own.

    `admitted_ms` is the workflow's time when it came; `ticket` its place among all arrivals of this run.
    `sequence` and `verdict` are known once it was decided.
    """

    action: str
    admitted_ms: int
    step: AnyStep | None = None
    value: Any = None
    """The step as parsed, for what is embedded; `text` is what was reported, to the letter."""
    text: str = ""
    payload: dict[str, Any] = field(default_factory=dict)
    ticket: int = -1
    sequence: int = -1
    verdict: str | None = None

    @property
    def size(self) -> int:
        """Bytes that the item adds to a batch."""
        # A character of UTF-8 text takes at least a byte; isascii() makes the common case exact and free.
        return len(self.text) if self.text.isascii() else len(self.text.encode("utf-8"))


class Inbox:
    """First in, first out. Signals are always taken; what is refused, the updates refuse by `depth`."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self.arrived = 0

    @property
    def depth(self) -> int:
        """Items waiting."""
        return len(self._items)

    def put(self, items: Iterable[Item]) -> None:
        """Append, giving each item its ticket."""
        for item in items:
            item.ticket = self.arrived
            self.arrived += 1
            self._items.append(item)

    def cut(self) -> list[Item]:
        """The next batch: at most 64 items and 256 KiB, or one larger item alone. Empty if nothing waits."""
        batch: list[Item] = []
        size = 0
        while self._items and len(batch) < BATCH_STEPS:
            size += self._items[0].size
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._items.popleft())
        return batch

    def drain(self) -> list[Item]:
        """Everything that waits, taken out at once."""
        items = list(self._items)
        self._items.clear()
        return items
