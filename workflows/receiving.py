"""From an arrival to the items that are processed: repeats are dropped, late steps counted (pure; B7, C4, F9)."""

from __future__ import annotations

from affidavit.evidence.scalars import sha256_hex
from affidavit.steps import ModelFailure, ModelResponse, Wake, Woken
from affidavit.waking_api import WAKE_BYTES
from workflows.inbox import Arrival, Item, Message, Reply
from workflows.messages import Unreadable, read_message, read_submission, rejected
from workflows.producers import Arrival as Numbered
from workflows.producers import Unacceptable, body_digest
from workflows.state import SessionState


class Receiver:
    """Judges every step when its turn comes, so that numbers are judged in the order of arrival."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    def receive(self, arrival: Arrival) -> list[Item]:
        """The items to process, in order; there may be none."""
        if isinstance(arrival, Item):
            return self._judged(arrival)
        items = _read_submission(arrival, arrival.reply) if arrival.reply is not None else read_message(arrival)
        return [kept for item in items if not self._too_late(arrival, item) for kept in self._judged(item)]

    def _too_late(self, message: Message, item: Item) -> bool:
        """After close only what ends an open attempt is waited for; the rest is counted."""
        if not message.late:
            return False
        step = item.step
        if isinstance(step, ModelResponse | ModelFailure) and step.attempt_id in self._state.attempts.open:
            return False
        self._state.late_steps += 1
        return True

    def _judged(self, item: Item) -> list[Item]:
        step = item.step
        if isinstance(step, Woken):
            if self._state.wakes.take(step.source, step.wake_id):
                return [item]
            item.repeat = True
            self._state.repeated += 1
            return []
        if isinstance(step, Wake):
            if item.size > WAKE_BYTES:
                item.refused = f"a wake of {item.size} bytes, over the limit of {WAKE_BYTES}"
                return [rejected(step.kind, item.refused, item.text.encode("utf-8"), item.admitted_ms)]
            if (target := step.target or self._state.wakes.target) is not None:
                item.payload = {"target": target}
        if step is None or step.producer is None or step.producer_seq is None:
            return [item]
        try:
            arrival = self._state.producers.arrive(
                step.producer, step.producer_seq, body_digest(item.value), item.admitted_ms
            )
        except Unacceptable as error:
            item.refused = f"producer {step.producer}: {error}"
            return [rejected(step.kind, item.refused, item.text.encode("utf-8"), item.admitted_ms)]
        if arrival in (Numbered.NEW, Numbered.LATE):
            return [item]
        if arrival is Numbered.CONFLICT:
            item.refused = f"producer {step.producer} has reported number {step.producer_seq} with another body"
            payload = {
                "producer": step.producer,
                "producer_seq": step.producer_seq,
                "sha256": sha256_hex(item.text.encode("utf-8")),
            }
            return [Item("producer_conflict", item.admitted_ms, payload=payload)]
        item.repeat = True
        self._state.repeated += 1
        self._state.unverified += arrival is Numbered.UNVERIFIED
        return []


def _read_submission(message: Message, reply: Reply) -> list[Item]:
    try:
        reply.items = read_submission(message.payloads[0], message.admitted_ms)
    except Unreadable as error:
        reply.refused = str(error)
    return reply.items
