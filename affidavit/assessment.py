"""What passes between the loop breaker and whoever measures responses for it (formats.md 8).

With the built-in embedder that is the workflow's own task; with another one, or for much at once, an activity. Either
way the arithmetic knows no state; the breaker holds the state and judges. They agree on two things. A *packed vector*
is an opaque string to the breaker. And a text is answered with its similarity to *each* earlier vector, not with the
largest one: a breaker that was reset while an activity ran then counts only those vectors that it still holds. So a
verdict depends on the order of steps alone, never on how they were cut into batches or on when a request was made.

To the activity requests travel as raw JSON, because a text may hold what a typed converter refuses, half a surrogate
pair above all.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from affidavit.evidence.text import WHITE_SPACE

__all__ = [
    "BUILT_IN",
    "EMBED_ATTEMPTS",
    "MEMORY",
    "Assessment",
    "EmbedItem",
    "EmbedRequest",
    "EmbedResult",
    "decode_request",
    "encode_request",
    "failed_result",
    "make_request",
    "pack_counts",
    "unpack_bytes",
    "unpack_counts",
]

BUILT_IN: Final = "hash-512"
"""The built-in embedder's format: a name that stands in histories, so another format gets another one."""

MEMORY: Final = 8
"""How many earlier vectors, and how many earlier call digests, a response is compared with."""

EMBED_ATTEMPTS: Final = 3
"""Attempts of the embed activity; after the last one a response is not assessed (behaviours D5)."""

_BLANK: Final = "".join(sorted(WHITE_SPACE))


@dataclass(frozen=True, slots=True)
class EmbedItem:
    """What of one model response is assessed; `calls` are `[name, arguments]` pairs as reported."""

    text: str | None = None
    calls: list[list[Any]] | None = None


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """Responses to assess, in order, after the packed vectors of `window` (oldest first).

    `embedding`: the format that they must be embedded with; empty: by the embedder that the worker has.
    """

    window: list[str]
    items: list[EmbedItem]
    embedding: str = ""


class Assessment(BaseModel):
    """The facts about one response that the breaker judges by; all absent: there was nothing to assess.

    `similarities`: cosines to the earlier vectors, oldest first, at most `MEMORY`, each a float32 widened;
    None without a text. `counts`: the packed vector of the text, to be remembered; None where there is none
    or it has no direction. `degenerate`: the vector was all zero. `call_digest`: SHA-256 over the calls; None
    without calls. `failed`: the embedding failed, so nothing is known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    similarities: list[float] | None = None
    counts: str | None = None
    degenerate: bool = False
    call_digest: str | None = None
    failed: bool = False

    @property
    def assessable(self) -> bool:
        """Whether the response has a text or calls, and they could be assessed."""
        said = self.similarities is not None or self.degenerate
        return not self.failed and (said or self.call_digest is not None)


class EmbedResult(BaseModel):
    """One assessment for each item of the request, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    assessments: list[Assessment]


def failed_result(count: int) -> EmbedResult:
    """The result that stands for an activity that never answered: `count` responses, none assessed."""
    return EmbedResult(assessments=[Assessment(failed=True)] * count)


def make_request(window: Sequence[str], responses: Iterable[Mapping[str, Any]], embedding: str = "") -> EmbedRequest:
    """What is to be assessed of responses; argument values are shared with them, not copied.

    Args:
        window: `BreakerState.vectors`.
        responses: `model_response` steps as reported and already validated. The result has one assessment for
            each; a copied one carries nothing, because history that is sent again is not assessed.
        embedding: as `EmbedRequest` has it.
    """
    items = [EmbedItem() if step.get("copied") else _item(step) for step in responses]
    return EmbedRequest(list(window), items, embedding)


def encode_request(window: Sequence[str], responses: Iterable[Mapping[str, Any]], embedding: str = "") -> bytes:
    """What `make_request` makes as ASCII JSON, for the payload of a `RawValue`; what is absent is left out."""
    request = make_request(window, responses, embedding)
    items = [
        {key: value for key, value in (("text", item.text), ("calls", item.calls)) if value} for item in request.items
    ]
    form = {"window": request.window, "items": items} | ({"embedding": embedding} if embedding else {})
    return json.dumps(form, separators=(",", ":")).encode("ascii")


def _item(step: Mapping[str, Any]) -> EmbedItem:
    # Reasoning, else text. A blank one says nothing: it counts as absent.
    texts = (text for text in (step.get("reasoning"), step.get("text")) if text and text.strip(_BLANK))
    calls = [[call["name"], call.get("arguments")] for call in step.get("tool_calls") or ()]
    return EmbedItem(text=next(texts, None), calls=calls or None)


def decode_request(data: bytes) -> EmbedRequest:
    """Read what `encode_request` wrote. Lone surrogates and inexact numbers come through as they are.

    Raises:
        ValueError, KeyError, TypeError: the bytes are no such request; the workflow and its worker disagree.
    """
    request = json.loads(data)
    items = [EmbedItem(**item) for item in request["items"]]
    return EmbedRequest(request["window"], items, request.get("embedding", ""))


_ZLIB_LEVEL: Final = 3
"""A third of the default's time for a text that is 4 % longer."""


_NARROW: Final = "8:"
"""Begins the text of a vector whose counts fit into a byte each, as those of all but long texts do."""


def pack_counts(counts: Sequence[int]) -> str:
    """An integer vector as text: base64 of zlib of its values, as bytes where they fit, else as little-endian int32.

    Lossless, and short where sparse pairs are long: 512 counts of a long text take about 600 characters.
    """
    try:
        prefix, data = _NARROW, struct.pack(f"{len(counts)}b", *counts)
    except struct.error:
        prefix, data = "", struct.pack(f"<{len(counts)}i", *counts)
    return prefix + base64.b64encode(zlib.compress(data, _ZLIB_LEVEL)).decode("ascii")


def unpack_counts(packed: str) -> list[int]:
    """The vector that `pack_counts` packed.

    Raises:
        ValueError, zlib.error, struct.error: the text is no packed vector.
    """
    data, width = unpack_bytes(packed)
    return list(struct.unpack(f"<{len(data) // width}{'b' if width == 1 else 'i'}", data))


def unpack_bytes(packed: str) -> tuple[bytes, int]:
    """The same as signed integers, little-endian, and how many bytes each has; raises as `unpack_counts`, but for a
    bad length."""
    narrow = packed.startswith(_NARROW)
    return zlib.decompress(base64.b64decode(packed.removeprefix(_NARROW), validate=True)), 1 if narrow else 4
