"""What waits to be processed, in the order in which it came (pure)."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.common.v1 import Payload

from affidavit.contract import BATCH_BYTES, BATCH_STEPS
from affidavit.steps import AnyStep


@dataclass(slots=True, eq=False)
class Item:
    """One thing that becomes one event: a step with the text it was reported as, or something of our own.

    `admitted_ms` is the workflow's time when it came; `ticket` the place of what brought it among all arrivals.
    `sequence` and `verdict` are known once it was decided; `repeat` and `refused` tell why it will never be.
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
    repeat: bool = False
    refused: str | None = None

    @property
    def size(self) -> int:
        """Bytes that the item adds to a batch; of a message that could not be read, those it took to find out."""
        if self.step is None:
            return int(self.payload.get("bytes", 0))
        # A character of UTF-8 text takes at least a byte; isascii() makes the common case exact and free.
        return len(self.text) if self.text.isascii() else len(self.text.encode("utf-8"))


@dataclass(slots=True, eq=False)
class Reply:
    """What became of a submission, for the update that waits for it: its items, or why it was refused."""

    items: list[Item] = field(default_factory=list)
    refused: str | None = None


@dataclass(slots=True, eq=False)
class Message:
    """A signal, or a large submission, as it came, not read yet; `weight` is how many steps it may hold, at least 1.

    `late`: it came after the session was asked to close. `reply` is there for a submission alone; the update that
    waits for it does not outlive its run.
    """

    name: str
    payloads: Sequence[Payload]
    admitted_ms: int
    weight: int
    late: bool = False
    ticket: int = -1
    reply: Reply | None = None

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(len(payload.data) for payload in self.payloads)

    @property
    def data(self) -> bytes:
        """What was sent, arguments concatenated."""
        return b"".join(payload.data for payload in self.payloads)

    def dump(self) -> dict[str, Any]:
        """As JSON, for the next run."""
        payloads = [
            {
                "metadata": {key: base64.b64encode(value).decode() for key, value in payload.metadata.items()},
                "data": base64.b64encode(payload.data).decode(),
            }
            for payload in self.payloads
        ]
        return {
            "name": self.name,
            "payloads": payloads,
            "admitted_ms": self.admitted_ms,
            "weight": self.weight,
            "late": self.late,
        }

    @classmethod
    def load(cls, form: dict[str, Any]) -> Message:
        """What `dump` gave."""
        payloads = [
            Payload(
                metadata={key: base64.b64decode(value) for key, value in payload["metadata"].items()},
                data=base64.b64decode(payload["data"]),
            )
            for payload in form["payloads"]
        ]
        return cls(form["name"], payloads, form["admitted_ms"], form["weight"], form["late"])


Arrival = Item | Message


class Inbox:
    """First in, first out. Signals are always taken; what is refused, the updates refuse by `depth`.

    A message is read when its turn comes. After an outage thousands may arrive in one workflow task, and reading
    them all there would take longer than a workflow may go without yielding.
    """

    def __init__(self, receive: Callable[[Arrival], list[Item]]) -> None:
        """`receive` gives the items of an arrival that are to be processed, in order; there may be none."""
        self._receive = receive
        self._items: deque[Item] = deque()
        self._waiting: deque[Arrival] = deque()
        self._weight = 0
        self.bytes = 0
        """Bytes of all that waits."""
        self.arrived = 0

    @property
    def depth(self) -> int:
        """Items waiting; of messages that are not read yet, as many as they may hold."""
        return len(self._items) + self._weight

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items and not self._waiting

    @property
    def first_ticket(self) -> int:
        """Everything with a lower ticket has been cut."""
        for queue in (self._items, self._waiting):
            if queue:
                return queue[0].ticket
        return self.arrived

    def put(self, arrivals: Iterable[Arrival]) -> None:
        """Append, giving each its ticket; the items of a message share it."""
        for arrival in arrivals:
            arrival.ticket = self.arrived
            self.arrived += 1
            self._weight += _weight(arrival)
            self.bytes += arrival.size
            self._waiting.append(arrival)

    def put_received(self, items: Iterable[Item]) -> None:
        """Append items that an earlier run has received already, before anything else waits."""
        for item in items:
            item.ticket = self.arrived
            self.arrived += 1
            self.bytes += item.size
            self._items.append(item)

    def cut(self) -> list[Item]:
        """The next batch: at most 64 items and 256 KiB, or one larger item alone. Empty if nothing waits.

        No more is read for it than that, one larger message aside. A late message begins a batch: whether a step
        of it still counts is only known when everything before it is decided.
        """
        batch: list[Item] = []
        size = 0
        while len(batch) < BATCH_STEPS and self._fetch(BATCH_BYTES - size if batch else None):
            size += self._items[0].size
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._items.popleft())
            self.bytes -= batch[-1].size
        return batch

    def discard(self) -> Iterator[tuple[int, bytes, Item | None]]:
        """Take everything out unread: for each arrival its steps (as far as known), what it was, and its item."""
        for item in self._items:
            yield int(item.step is not None), item.text.encode("utf-8"), item
        for arrival in self._waiting:
            if isinstance(arrival, Message):
                yield arrival.weight, arrival.data, None
            else:
                yield int(arrival.step is not None), arrival.text.encode("utf-8"), arrival
        self._items.clear()
        self._waiting.clear()
        self._weight = self.bytes = 0

    def waiting(self) -> tuple[list[Item], list[Arrival]]:
        """What was received and what was not, both in order; nothing is taken out."""
        return list(self._items), list(self._waiting)

    def _fetch(self, room: int | None = None) -> bool:
        """Have the next item at hand; False if nothing waits, or if it is in a message that does not go into a batch
        that is begun, with `room` bytes left in it."""
        while not self._items:
            if not self._waiting or (room is not None and not _goes_with(self._waiting[0], room)):
                return False
            arrival = self._waiting.popleft()
            self._weight -= _weight(arrival)
            self.bytes -= arrival.size
            for item in self._receive(arrival):
                item.ticket = arrival.ticket
                self._items.append(item)
                self.bytes += item.size
        return True


def _goes_with(arrival: Arrival, room: int) -> bool:
    return arrival.size <= room and not (isinstance(arrival, Message) and arrival.late)


def _weight(arrival: Arrival) -> int:
    return 1 if isinstance(arrival, Item) else arrival.weight
