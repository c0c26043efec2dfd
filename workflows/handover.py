"""What one run hands to the next: the state, the batch that was cut, and the messages that wait (design.md 4)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from affidavit.contract import HANDED_ON_BYTES
from affidavit.converter import raw_json
from affidavit.offloading import UNAVAILABLE, Unavailable
from workflows.inbox import Arrival, Inbox, Item, Message
from workflows.messages import parse, read_step, read_woken
from workflows.state import SessionState
from workflows.wakes import Outgoing

ARGUMENTS = 4
"""Spec, state, steps of the pending batch, waiting messages."""


class TooMuchWaits(Exception):
    """More waits than a run can hand on; it has to be worked off first."""


def pack(
    spec: RawValue, state: SessionState, steps: bytes, inbox: Inbox, wakes: Sequence[Outgoing] = ()
) -> list[RawValue]:
    """The start arguments of the next run.

    Raises:
        TooMuchWaits: the waiting messages are over the limit.
    """
    received, arrivals = inbox.waiting()
    waiting = {
        "received": [_dump_item(item) for item in received],
        "arrivals": [
            {"message": arrival.dump()} if isinstance(arrival, Message) else {"item": _dump_item(arrival)}
            for arrival in arrivals
        ],
        **({"wakes": [wake.model_dump() for wake in wakes]} if wakes else {}),
    }
    queue = json.dumps(waiting, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    if len(queue) > HANDED_ON_BYTES:
        raise TooMuchWaits(f"{len(queue)} bytes wait, over the limit of {HANDED_ON_BYTES}")
    return [
        spec,
        raw_json(state.model_dump_json().encode("utf-8")),
        raw_json(steps or b'{"steps":[]}'),
        raw_json(queue),
    ]


def check_opened(payloads: Sequence[Payload]) -> None:
    """That this worker could open what the last run has handed on.

    Raises:
        RuntimeError: it could not. The task fails and is tried again, where the key or the object may be: a session
            that ended for it would be lost.
    """
    for payload in payloads:
        if payload.metadata.get("encoding") == UNAVAILABLE:
            raise RuntimeError(f"what the last run handed on cannot be opened{Unavailable.of(payload).why}")


def unpack(payloads: Sequence[Payload]) -> tuple[SessionState, bytes, list[Item], list[Arrival]]:
    """What `pack` made: state, steps of the pending batch, items received already, arrivals that were not."""
    state = SessionState.model_validate_json(payloads[1].data)
    abandon = state.process.abandon
    if abandon is not None and not state.reports and state.last_report_ms > abandon.time:
        state.reports = 1  # an earlier version did not count them
    waiting = json.loads(payloads[3].data)
    received = [_load_item(form) for form in waiting["received"]]
    arrivals: list[Arrival] = [
        Message.load(entry["message"]) if "message" in entry else _load_item(entry["item"])
        for entry in waiting["arrivals"]
    ]
    return state, payloads[2].data, received, arrivals


def unpack_wakes(payloads: Sequence[Payload]) -> list[Outgoing]:
    """The wakes that are still to be delivered."""
    return [Outgoing.model_validate(form) for form in json.loads(payloads[3].data).get("wakes", ())]


def _dump_item(item: Item) -> dict[str, Any]:
    return {
        "action": item.action,
        "admitted_ms": item.admitted_ms,
        "text": item.text,
        "payload": item.payload,
        "is_step": item.step is not None,
    }


def _load_item(form: dict[str, Any]) -> Item:
    item = Item(form["action"], form["admitted_ms"], text=form["text"], payload=form["payload"])
    if form["is_step"]:
        item.value = parse(item.text)
        item.step = read_woken(item.value) if "source" in item.payload else read_step(item.text, item.value)
    return item
