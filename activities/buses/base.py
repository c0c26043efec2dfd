"""Where events are published: a log per topic that acknowledges every record (formats.md 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

HEADER_UID: Final = "affidavit-event-uid"
HEADER_SESSION: Final = "affidavit-session"
HEADER_GENERATION: Final = "affidavit-generation"
HEADER_CONTENT_TYPE: Final = "content-type"
CONTENT_TYPE: Final = "application/json"

CALL_LIMIT_S: Final = 24.0
"""A call of a bus has ended after so many seconds, whatever happens, and writes nothing after that."""


@dataclass(frozen=True, slots=True)
class BusRecord:
    """One event on its way. `value` is its canonical JSON, `time_ms` its time in epoch milliseconds."""

    topic: str
    key: str
    value: bytes
    uid: str
    session_id: str
    generation: str
    time_ms: int

    @property
    def headers(self) -> dict[str, str]:
        """The record's headers, all ASCII."""
        return {
            HEADER_UID: self.uid,
            HEADER_SESSION: self.session_id,
            HEADER_GENERATION: self.generation,
            HEADER_CONTENT_TYPE: CONTENT_TYPE,
        }


@dataclass(frozen=True, slots=True)
class Ack:
    """Where the bus keeps a record."""

    topic: str
    partition: int
    offset: int


class EventBus(Protocol):
    """A bus that takes every uid once.

    `publish` is a coroutine because a Kafka producer belongs to the worker's event loop, where many sessions
    share one connection; a bus that blocks moves its work to a thread of its own.
    """

    async def publish(self, records: Sequence[BusRecord], *, look_up: bool) -> list[Ack]:
        """Publishes records in order and waits until all are durable.

        Args:
            records: Of one session; may be empty.
            look_up: An earlier attempt may have published some of them: find their uids before sending. A bus
                that always knows its uids ignores it.

        Returns:
            Exactly one acknowledgement a record, in order; for one that was there, the existing one.

        Raises:
            IntegrityError: The bus holds another record under one of the uids.
            PermanentPublishError: The bus will never take one of the records.
            TransientError: Not now. Any part may have been published.
        """
        ...

    async def close(self) -> None:
        """Lets go of files and connections; may be called again."""
        ...
