"""What waits to be processed, in the order in which it came (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.common.v1 import Payload

from affidavit.contract import BATCH_BYTES, BATCH_STEPS
from affidavit.steps import AnyStep


@dataclass(slots=True, eq=False)
class Item:
    """One thing that becomes one event: a step with the text it was reported as, or something of our own.

    `admitted_ms` is the workflow's time when it came; `ticket` the place of what brought it among all arrivals.
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
        """Bytes that the item adds to a batch; of a message that could not be read, those it took to find out."""
        if self.step is None:
            return int(self.payload.get("bytes", 0))
        # A character of UTF-8 text takes at least a byte; isascii() makes the common case exact and free.
        return len(self.text) if self.text.isascii() else len(self.text.encode("utf-8"))


@dataclass(slots=True, eq=False)
class Message:
    """A signal as it came, not read yet; `weight` is how many steps it may hold, at least 1."""

    name: str
    payloads: Sequence[Payload]
    admitted_ms: int
    weight: int
    ticket: int = -1

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(len(payload.data) for payload in self.payloads)


class Inbox:
    """First in, first out. Signals are always taken; what is refused, the updates refuse by `depth`.

    A message is read when its turn comes. After an outage thousands may arrive in one workflow task, and reading
    them all there would take longer than a workflow may go without yielding.
    """

    def __init__(self, read: Callable[[Message], list[Item]]) -> None:
        """`read` gives the items of a message, at least one."""
        self._read = read
        self._items: deque[Item] = deque()
        self._waiting: deque[Item | Message] = deque()
        self._weight = 0
        self.arrived = 0

    @property
    def depth(self) -> int:
        """Items waiting; of messages that are not read yet, as many as they may hold."""
        return len(self._items) + self._weight

    @property
    def first_ticket(self) -> int:
        """Everything with a lower ticket has been cut."""
        for queue in (self._items, self._waiting):
            if queue:
                return queue[0].ticket
        return self.arrived

    def put(self, arrivals: Iterable[Item | Message]) -> None:
        """Append, giving each its ticket; the items of a message share it."""
        for arrival in arrivals:
            arrival.ticket = self.arrived
            self.arrived += 1
            self._weight += _weight(arrival)
            self._waiting.append(arrival)

    def cut(self) -> list[Item]:
        """The next batch: at most 64 items and 256 KiB, or one larger item alone. Empty if nothing waits.

        No more is read for it than that, one larger message aside.
        """
        batch: list[Item] = []
        size = 0
        while len(batch) < BATCH_STEPS and self._fetch(BATCH_BYTES - size if batch else None):
            size += self._items[0].size
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._items.popleft())
        return batch

    def drain(self) -> list[Item]:
        """Everything that waits, taken out at once."""
        items: list[Item] = []
        while self._fetch():
            items.extend(self._items)
            self._items.clear()
        return items

    def _fetch(self, room: int | None = None) -> bool:
        """Have the next item at hand; False if nothing waits, or if it is in a message of more than `room` bytes."""
        if self._items:
            return True
        if not self._waiting or (room is not None and self._waiting[0].size > room):
            return False
        arrival = self._waiting.popleft()
        self._weight -= _weight(arrival)
        if isinstance(arrival, Item):
            self._items.append(arrival)
            return True
        for item in self._read(arrival):
            item.ticket = arrival.ticket
            self._items.append(item)
        return True


def _weight(arrival: Item | Message) -> int:
    return 1 if isinstance(arrival, Item) else arrival.weight
