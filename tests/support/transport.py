"""A stand-in for the way to a session: it notes what is sent, and fails as it is told to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from affidavit.contract import MESSAGE_BYTES
from affidavit.outgoing import Encoded, encoded


def call(name: object, **more: Any) -> dict[str, Any]:
    return {"kind": "tool_call", "call_id": str(name), "tool": "search", "allowed": True, **more}


def steps(*names: object) -> list[Encoded]:
    return texts(*(call(name) for name in names))


def texts(*reported: dict[str, Any]) -> list[Encoded]:
    """Steps as they are sent, of any kind."""
    return encoded(reported, lambda: MESSAGE_BYTES)


@dataclass
class Transport:
    """Notes each message with its time; `script` gives what the next deliveries come to, success when it is empty."""

    takes: float = 0.0
    script: list[BaseException | None] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, message: bytes) -> None:
        self.messages.append(message)
        self.times.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes)
            error = self.script.pop(0) if self.script else None
            if error is not None:
                raise error
        finally:
            self.at_once -= 1

    @property
    def records(self) -> list[list[dict[str, Any]]]:
        return [json.loads(message)["steps"] for message in self.messages]

    @property
    def names(self) -> list[str]:
        return [step["call_id"] for record in self.records for step in record]

    @property
    def numbers(self) -> list[int]:
        return [step["producer_seq"] for record in self.records for step in record]
