from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from affidavit.evidence.stops import CAPTIONS, StopReason, caption, from_caption, from_provider

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())


def test_captions_vector() -> None:
    assert {str(reason): text for reason, text in CAPTIONS.items()} == VECTORS["stop_reasons"]
    assert {str(reason.value) for reason in StopReason} == set(VECTORS["stop_reasons"])


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", 1),
        ("stop_sequence", 1),
        ("end_turn", 1),
        ("length", 2),
        ("max_tokens", 2),
        ("tool_calls", 3),
        ("function_call", 3),
        ("tool_use", 3),
        ("content_filter", 90),
        ("Stop", 1),
        ("Tool Use", 3),
        ("Other", 99),
        ("pause_turn", 99),
        ("STOP", 99),
        ("stop ", 99),
    ],
)
def test_case23_provider_words_keep_their_text(word: str, reason: int) -> None:
    assert from_provider(word) == (reason, word)


@pytest.mark.parametrize(
    "word",
    ["", "Unknown", "Session Closed", "Loop Detected", "Budget Exceeded", "Policy Blocked", "Identity Rejected"],
)
def test_a_provider_cannot_claim_what_only_the_product_establishes(word: str) -> None:
    assert from_provider(word) == (99, "Other")


def test_unknown_id_reads_as_unknown_and_unknown_name_as_other() -> None:
    assert caption(55) == caption(-1) == caption(0) == "Unknown"
    assert caption(91) == "Loop Detected"
    assert from_caption("No Such Reason") is StopReason.OTHER
    assert from_caption("Identity Rejected") is StopReason.IDENTITY_REJECTED
