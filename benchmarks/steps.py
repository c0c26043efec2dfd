"""What is reported in the benchmarks: turns of an agent, 1 KB of text a step, no two texts alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from affidavit.converter import encode_json
from affidavit.outgoing import record

TEXT_BYTES: Final = 1_000
_WORDS: Final = [
    f"{first}{middle}{last}" for first in "bdgklmnprst" for middle in "aeiou" for last in ("n", "rk", "st")
]


def text(chance: random.Random) -> str:
    """About 1 KB of words."""
    words = []
    size = 0
    while size < TEXT_BYTES:
        words.append(chance.choice(_WORDS))
        size += len(words[-1]) + 1
    return " ".join(words)


def steps(seed: int = 1) -> Iterator[dict[str, Any]]:
    """Steps without an end: a request, its answer, the verdict on its call, the result."""
    chance = random.Random(seed)
    turn = 0
    while True:
        turn += 1
        call = {"call_id": f"c{turn}", "name": "search", "arguments": {"q": text(chance)}}
        usage = {"prompt_tokens": 900, "completion_tokens": 250, "cost_usd_micros": 1200}
        yield {"kind": "model_request", "messages": [{"role": "user", "content": text(chance)}]}
        yield {"kind": "model_response", "text": text(chance), "finish_reason": "tool_calls", "usage": usage}
        yield {"kind": "tool_call", "call_id": call["call_id"], "tool": "search", "allowed": True, "arguments": call}
        yield {"kind": "tool_result", "call_id": call["call_id"], "content": text(chance)}


def messages(count: int, each: int, seed: int = 1) -> list[bytes]:
    """`count` messages of `each` steps, as a client encodes them."""
    source = steps(seed)
    return [record([encode_json(next(source)) for _ in range(each)]) for _ in range(count)]
