"""Puts journaled events on the bus, by reference: the journal is the outbox (design.md 2)."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio import activity

from activities.buses.base import CALL_LIMIT_S, BusRecord, EventBus
from activities.errors import EvidenceStoreMismatch, IntegrityError, TransientError, told_to_temporal
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import JournalRecord, domain_active, domain_lifecycle, open_envelope, open_record
from affidavit.evidence.layout import journal_name, lifecycle_name
from affidavit.evidence.text import printable
from affidavit.publishing_api import PublishRequest, PublishResult
from affidavit.stores.base import EvidenceStore, ObjectMissing, base_name

RECORDS_PER_CALL: Final = 1000
BYTES_PER_CALL: Final = 8 * 1024 * 1024
READING_S: Final = 2.0
"""Bounds of one call of the bus: a long range neither fills memory nor outlasts a heartbeat timeout. A call ends with a
segment, so that an activity that runs out of time ends with one too; it has more only where one segment has."""

EVENTS_PER_ACTIVITY: Final = 1000
BYTES_PER_ACTIVITY: Final = 64 * 1024 * 1024
"""An activity ends at the first segment end at or beyond one of these: a long backlog never outlasts its time limit."""


class PublishingActivity:
    """Publishes what the evidence store holds: nothing is on the bus that is not authentic in the journal."""

    def __init__(self, store: EvidenceStore, bus: EventBus, journal_keys: Sequence[bytes]) -> None:
        """Takes its collaborators.

        Args:
            store: Where the sessions' evidence is; must be the store they were opened in.
            bus: Where events go. Closing it is the caller's business.
            journal_keys: Keys of 32 bytes, any of which may have made a record's MAC.
        """
        self._store = store
        self._bus = bus
        self._keys = tuple(journal_keys)

    @activity.defn(name="publish")
    async def publish(self, request: PublishRequest) -> PublishResult:
        """Publishes a range of events, in order, and returns when the bus has acknowledged each of them.

        A long range is published in part, up to the end of a segment: the result's `last` tells how far, and the
        caller asks for the rest. A repeat is harmless: uids that a former attempt, or a former run, may have
        published are looked up.

        Raises:
            ApplicationError: Of type `IntegrityError` (the journal lacks the range, or a record in it is not
                authentic or not where it belongs) or `PermanentPublishError`, both non-retryable; of type
                `EvidenceStoreMismatch` or another, retryable.
        """
        # A coroutine for the bus's sake (see `EventBus`); reading and checking go to a thread.
        with told_to_temporal():
            look_up = activity.info().attempt > 1 or request.first <= request.look_up_through
            started = time.monotonic()
            count = 0
            given_up = threading.Event()
            calls = self._calls(request, given_up)
            try:
                # A thread for each call, because reading blocks; the generator goes on in whichever it is given.
                while call := await asyncio.to_thread(next, calls, None):
                    if not _time_for_a_call(started):
                        if count:
                            break
                        raise TransientError("reading the journal has taken too long to publish from it now")
                    acks = await self._bus.publish(call, look_up=look_up)
                    if len(acks) != len(call):
                        raise TransientError(f"the bus acknowledged {len(acks)} of {len(call)} records")
                    count += len(acks)
                    if request.first + count > request.last:
                        break  # without another thread to find that out
                    activity.heartbeat(request.first + count - 1)
            finally:
                given_up.set()
            last = request.first + count - 1
            return PublishResult(first=request.first, last=last, count=count, look_up=look_up)

    def _calls(self, request: PublishRequest, given_up: threading.Event) -> Iterator[list[BusRecord]]:
        """Cuts the range into what one call of the bus takes, and ends where the activity has done enough.

        Reads no further ahead than one call, and no segment more once `given_up` is set: a thread cannot be cancelled.
        """
        self._check_store(request)
        index, call, size, total, began = request.first, list[BusRecord](), 0, 0, time.monotonic()
        while index <= request.last and index - request.first < EVENTS_PER_ACTIVITY and total < BYTES_PER_ACTIVITY:
            if given_up.is_set():
                return
            records = self._read_at(request, index)
            index += len(records)
            if index > request.last + 1:
                raise IntegrityError("the range to publish ends inside a journal segment")
            read = sum(len(record.value) for record in records)
            if call and (len(call) + len(records) > RECORDS_PER_CALL or size + read > BYTES_PER_CALL):
                yield call
                call, size, began = [], 0, time.monotonic()
            call += records
            size += read
            total += read
            if time.monotonic() - began >= READING_S:
                yield call
                call, size, began = [], 0, time.monotonic()
        if call:
            yield call

    def _read_at(self, request: PublishRequest, index: int) -> list[BusRecord]:
        """Reads the segment, or the lifecycle event, that starts at `index`, and checks every record of it.

        A segment is found by its name alone: the one before says where it starts, so a gap cannot be skipped.
        """
        named, domain_of = (lifecycle_name, domain_lifecycle) if request.lifecycle else (journal_name, domain_active)
        place = index
        try:
            name = named(request.session_id, request.generation, index)
            domain = domain_of(request.session_id, request.generation)
            data = self._read(request, name).removesuffix(b"\n")
            records = []
            for place, line in enumerate([data] if request.lifecycle else data.split(b"\n"), index):
                if request.lifecycle:
                    payload = open_envelope(line, keys=self._keys, domain=domain, index=place)
                    records.append(_record(request, payload, None, place))
                else:
                    payload, event = open_record(line, keys=self._keys, domain=domain, index=place)
                    records.append(_record(request, payload, event, place))
        except EvidenceError as error:
            what = "lifecycle event" if request.lifecycle else "journal record"
            raise IntegrityError(f"{what} {place}: {error}") from error
        return records

    def _read(self, request: PublishRequest, name: str) -> bytes:
        try:
            return self._store.read(name)
        except ObjectMissing as error:
            # Asked again: a mount that went away meanwhile must not look like lost evidence.
            self._check_store(request)
            raise IntegrityError(f"{base_name(name)} is not in the evidence store") from error

    def _check_store(self, request: PublishRequest) -> None:
        store_id = self._store.store_id
        if request.store_id is not None and request.store_id != store_id:
            raise EvidenceStoreMismatch("the session's evidence is in another store than this worker's")


def _time_for_a_call(started: float) -> bool:
    """Whether a call of the bus ends before the attempt's time limit, after which the next attempt may look up."""
    limit = activity.info().start_to_close_timeout
    return limit is None or time.monotonic() - started + CALL_LIMIT_S <= limit.total_seconds()


def _record(request: PublishRequest, payload: Any, canonical: bytes | None, index: int) -> BusRecord:
    """Makes the bus record of an authentic payload. Raises `EvidenceError` if its event is another's.

    `canonical`: the event's canonical form, where it has been made.
    """
    if not request.lifecycle:
        event: Any = JournalRecord.read(payload, index=index).event
    else:
        event = payload.get("event") if isinstance(payload, dict) else None
    try:
        head = _Head.model_validate(event)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise EvidenceError(f"not an event (at {printable(where) or 'the top'})") from None
    if head.metadata.sequence != index:
        raise EvidenceError("the event has another sequence")
    if head.session_uid != request.session_id:
        raise EvidenceError("the event is of another session")
    return BusRecord(
        topic=head.class_name,
        key=head.ai_agent.instance_uid,
        value=canonicalize(event) if canonical is None else canonical,
        uid=head.metadata.uid,
        session_id=request.session_id,
        generation=request.generation,
        time_ms=head.time,
    )


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Metadata(_Part):
    uid: str = Field(min_length=1)
    sequence: int


class _Agent(_Part):
    instance_uid: str


class _Head(_Part):
    """What a bus record needs of an event."""

    metadata: _Metadata
    class_name: str = Field(min_length=1)
    session_uid: str
    ai_agent: _Agent
    time: int
