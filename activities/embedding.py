"""What a batch of model responses says, measured against what was said before.

Pure computation, for the embed activity and, with the built-in embedder, for workflow code (`workflows.embedding`),
which is not to be told one thing now and another in a replay. Judging belongs to the loop breaker in the workflow.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.embedders import Counts, HashEmbedder, similarities
from affidavit.activity_api import EventRange
from affidavit.assessment import (
    BUILT_IN,
    EMBED_ATTEMPTS,
    MEMORY,
    Assessment,
    EmbedItem,
    EmbedRequest,
    EmbedResult,
    decode_request,
    pack_counts,
    unpack_bytes,
)
from affidavit.contract import ACTIVITY_EMBED
from affidavit.evidence.canonical import digest
from affidavit.evidence.capture import normalise_arguments

logger = logging.getLogger(__name__)


class Embedder(Protocol):
    """Turns a text into an integer vector, the same for the same text on every machine; may raise."""

    def counts(self, text: str) -> Counts: ...


class EmbeddingActivity:
    """Assesses model responses with the embedder it is given; keeps no state between calls."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @activity.defn(name=ACTIVITY_EMBED)
    def embed(self, raw: RawValue, events: EventRange) -> EmbedResult:
        """Assess a request of `affidavit.assessment.encode_request`.

        Args:
            events: what the batch will be; for whoever measures, nothing depends on it.

        Raises:
            ApplicationError: an embedding failed and attempts are left. The last attempt answers with what it
                has, so that a response whose text cannot be embedded takes no other of its batch with it.
        """
        result = self.assess(decode_request(raw.payload.data))
        failed = sum(assessment.failed for assessment in result.assessments)
        if failed and activity.info().attempt < EMBED_ATTEMPTS:
            raise ApplicationError(f"{failed} of {len(result.assessments)} embeddings failed", type="EmbeddingFailed")
        return result

    def assess(self, request: EmbedRequest) -> EmbedResult:
        """One assessment an item, in order; a text is compared with the window and with earlier items' texts.

        A session that began with the built-in embedder keeps it, whatever embedder this worker has: vectors of two
        formats cannot be compared.
        """
        embedder = HashEmbedder() if request.embedding == BUILT_IN else self._embedder
        window = deque((_unpacked(packed) for packed in request.window), maxlen=MEMORY)
        return EmbedResult(assessments=[_assess(embedder, item, window) for item in request.items])


def _assess(embedder: Embedder, item: EmbedItem, window: deque[NDArray[Any]]) -> Assessment:
    try:
        call_digest = _call_digest(item.calls)
        if item.text is None:
            return Assessment(call_digest=call_digest)
        counts = embedder.counts(item.text)
    except MemoryError:
        raise  # another attempt may have the room: no fact about the text, and a replay would find another one
    except Exception as error:  # noqa: BLE001 - whatever an embedder raises, the session goes on (D5)
        if activity.in_activity():  # workflow code would say it again in each replay
            # The type alone: a message may quote the text.
            logger.warning("embedding failed: %s", type(error).__name__)
        return Assessment(failed=True)
    if not counts.any():
        return Assessment(degenerate=True, call_digest=call_digest)
    measured = similarities(counts, window)
    window.append(counts)
    return Assessment(similarities=measured, counts=pack_counts(counts.tolist()), call_digest=call_digest)


def _unpacked(packed: str) -> NDArray[Any]:
    data, width = unpack_bytes(packed)
    return np.frombuffer(data, dtype=f"<i{width}")


def _call_digest(calls: list[list[Any]] | None) -> str | None:
    """SHA-256 over the JCS form of `[[name, arguments], …]`, arguments as their capture holds them."""
    if not calls:
        return None
    return digest([[name, normalise_arguments(arguments)] for name, arguments in calls])
