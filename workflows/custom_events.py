"""Custom events against their declared types (P9). The schemas are only looked at in an activity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from affidavit import contract
from affidavit.converter import encode_json, raw_json
from affidavit.steps import CustomEvent
from workflows import stages
from workflows.inbox import Item
from workflows.messages import read_submission, rejected
from workflows.refusing import refuse

UNCHECKED = "could not be checked against its schema"

# JSON writes a letter as itself or by its number; no other text is read as the kind.
_EVENT = re.compile(b'"' + b"".join(b"(?:%c|\\\\u00(?i:%02x))" % (letter, letter) for letter in b"event") + b'"')


class CustomEvents:
    """The declared types of a session, and what does not fit them."""

    def __init__(self, declared: Mapping[str, Any] | None) -> None:
        self._declared = declared or {}

    def check_declared(self, items: list[Item]) -> None:
        """Refuse a submission with an event of a type that was not declared."""
        for place, item in enumerate(items):
            if isinstance(item.step, CustomEvent) and (fault := self._undeclared(item.step)):
                refuse(contract.REFUSED_EVENT, f"steps.{place}: {fault}")

    async def check_submission(self, payload: Payload) -> bool:
        """Refuse a submission with an event that is off its schema, before anything of it is taken.

        Returns whether there was anything to check, and so time in which the session may have changed.
        """
        if not _EVENT.search(payload.data):
            return False
        if len(payload.data) <= contract.READ_AT_ONCE_BYTES:
            steps = [item.step for item in read_submission(payload, 0)]
            types = {step.type for step in steps if isinstance(step, CustomEvent)}
            if not types:
                return False
        else:
            types = set(self._declared)  # read by the activity, because there is no time to read it here twice
        faults = await stages.check_events(self._schemas(types), RawValue(payload))
        if faults is None:
            refuse(contract.REFUSED_EVENT, f"an event {UNCHECKED}")
        if faults:
            place = min(faults)
            refuse(contract.REFUSED_EVENT, f"steps.{place}: {faults[place]}")
        return True

    async def sifted(self, batch: list[Item]) -> list[Item]:
        """A batch with a rejection in the place of each event that is undeclared or off its schema."""
        events = {place: item.step for place, item in enumerate(batch) if isinstance(item.step, CustomEvent)}
        if not events:
            return batch
        faults = {place: fault for place, step in events.items() if (fault := self._undeclared(step)) is not None}
        places = [place for place in events if place not in faults]
        if places:
            record = ('{"steps":[' + ",".join(batch[place].text for place in places) + "]}").encode("utf-8")
            found = await stages.check_events(self._schemas({events[place].type for place in places}), raw_json(record))
            if found is None:
                found = dict.fromkeys(range(len(places)), f"event {UNCHECKED}")
            faults |= {places[place]: fault for place, fault in found.items()}
        return [self._rejected(item, faults[place]) if place in faults else item for place, item in enumerate(batch)]

    def _undeclared(self, step: CustomEvent) -> str | None:
        return None if step.type in self._declared else f"event type {step.type} is not declared"

    def _schemas(self, types: set[str]) -> RawValue:
        # Only those needed, in a fixed order: they stand in history.
        return raw_json(encode_json({type_: self._declared[type_] for type_ in sorted(types)}))

    def _rejected(self, item: Item, fault: str) -> Item:
        item.refused = fault
        instead = rejected(item.action, fault, item.text.encode("utf-8"), item.admitted_ms)
        instead.ticket = item.ticket
        return instead
