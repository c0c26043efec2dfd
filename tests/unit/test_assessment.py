"""The border between breaker and embed activity: requests as raw JSON, packed vectors, failures."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.embedders import Counts, HashEmbedder
from activities.embedding import EmbeddingActivity
from affidavit.activity_api import EventRange
from affidavit.assessment import (
    Assessment,
    EmbedItem,
    EmbedRequest,
    EmbedResult,
    decode_request,
    encode_request,
    failed_result,
    pack_counts,
    unpack_counts,
)
from workflows.breaker import assess_embedding

ACTIVITY = EmbeddingActivity(HashEmbedder())
EVENTS = EventRange(generation="g", first=1, last=1)


class Flaky:
    """An embedder that cannot take some texts, and has no direction for others."""

    dim = 2

    def counts(self, text: str) -> Counts:
        if text == "down":
            raise ConnectionError("embedding service unavailable")
        return np.array([0, 0] if text == "void" else [1, len(text)], dtype=np.int32)


def assess(*steps: dict[str, Any], embedder: Any = None) -> list[Assessment]:
    activity = EmbeddingActivity(embedder) if embedder else ACTIVITY
    return activity.assess(decode_request(encode_request([], steps))).assessments


def call(arguments: Any, name: str = "look") -> dict[str, Any]:
    return {"tool_calls": [{"call_id": "c", "name": name, "arguments": arguments}]}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_request_is_ascii_json_with_what_is_assessed() -> None:
    data = encode_request(
        ["w"],
        [
            {"kind": "model_response", "text": "said", "reasoning": "thought", "usage": {"prompt_tokens": 1}},
            {
                "text": "said",
                "reasoning": " \u3000\n",
                "tool_calls": [{"call_id": "c", "name": "n", "arguments": None}],
            },
            {"text": "half \ud83d"},
            {"text": "again", "copied": True},
            {"text": "", "tool_calls": []},
        ],
    )
    assert json.loads(data.decode("ascii")) == {
        "window": ["w"],
        "items": [{"text": "thought"}, {"text": "said", "calls": [["n", None]]}, {"text": "half \ud83d"}, {}, {}],
    }
    assert decode_request(data) == EmbedRequest(
        window=["w"],
        items=[
            EmbedItem(text="thought"),
            EmbedItem(text="said", calls=[["n", None]]),
            EmbedItem(text="half \ud83d"),
            EmbedItem(),
            EmbedItem(),
        ],
    )


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"window":[],"items":[{"other":1}]}'])
def test_a_foreign_request_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_request(data)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=600))
def test_packing_loses_nothing(counts: list[int]) -> None:
    packed = pack_counts(counts)
    assert packed.isascii()
    assert unpack_counts(packed) == counts


def test_items_are_compared_with_the_window_and_with_each_other() -> None:
    window = [pack_counts([1, 0]), pack_counts([0, 1])]

    class Given:
        def counts(self, text: str) -> Counts:
            return np.array(json.loads(text), dtype=np.int32)

    request = EmbedRequest(window=window, items=[EmbedItem(text="[1,1]"), EmbedItem(), EmbedItem(text="[-2,0]")])
    first, nothing, last = EmbeddingActivity(Given()).assess(request).assessments

    half = 0.7071067690849304  # 1/sqrt(2) as float32
    assert first.similarities == [half, half]
    assert nothing == Assessment()
    assert last.similarities == [-1.0, 0.0, -half]
    assert last.counts is not None
    assert unpack_counts(last.counts) == [-2, 0]


def test_at_most_eight_similarities() -> None:
    assessments = assess(*[{"text": f"text number {n}"} for n in range(12)])
    assert [len(a.similarities or []) for a in assessments] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), max_size=8),
    st.lists(st.integers(-3, 3), min_size=4, max_size=4),
)
def test_activity_and_pure_formula_agree(window: list[list[int]], vector: list[int]) -> None:
    class Given:
        def counts(self, text: str) -> Counts:
            return np.array(vector, dtype=np.int32)

    packed = [pack_counts(each) for each in window]
    (assessment,) = EmbeddingActivity(Given()).assess(EmbedRequest(packed, [EmbedItem(text="t")])).assessments
    assert assessment == assess_embedding(vector, packed)


@pytest.mark.parametrize(
    ("arguments", "canonical"),
    [
        ({"b": 1, "a": "é"}, '[["look",{"a":"é","b":1}]]'),
        ('{"b": 1.0, "a": "\\u00e9"}', '[["look",{"a":"é","b":1}]]'),
        (None, '[["look",{}]]'),
        ({"\uff21": 1, "\U00010000": 2}, '[["look",{"\U00010000":2,"\uff21":1}]]'),
    ],
)
def test_call_digest(arguments: Any, canonical: str) -> None:
    assert assess(call(arguments))[0].call_digest == sha(canonical)


def test_call_digest_covers_all_calls_in_order() -> None:
    step = {"tool_calls": [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": [1]}}]}
    assert assess(step)[0].call_digest == sha('[["a",{}],["b",{"x":[1]}]]')


def test_arguments_that_have_no_canonical_form_still_have_a_digest() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    digests = [
        assess(call({"x": value}))[0].call_digest
        for value in (2**53, 2**53 + 1, float("nan"), float("inf"), "\ud83d", "\udc00", deep)
    ]
    digests += [assess(call(text))[0].call_digest for text in ("not json", "[1]", '{"a":1,"a":2}', "\ud83d")]
    assert None not in digests
    assert len(set(digests)) == len(digests)


def test_one_failing_text_takes_no_other_with_it() -> None:
    before, failed, void, after = assess(
        {"text": "one"}, {"text": "down"} | call({}), {"text": "void"}, {"text": "two"}, embedder=Flaky()
    )
    assert failed == Assessment(failed=True)
    assert void == Assessment(degenerate=True)
    assert before.similarities == []
    assert after.similarities == [1.0]
    assert not failed.assessable
    assert void.assessable


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_d5_the_activity_retries_a_failure_and_answers_at_the_third_attempt(attempt: int) -> None:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    raw = RawValue(Payload(data=encode_request([], [{"text": "one"}, {"text": "down"}])))
    embed = EmbeddingActivity(Flaky()).embed
    if attempt < 3:
        with pytest.raises(ApplicationError) as raised:
            environment.run(embed, raw, EVENTS)
        assert not raised.value.non_retryable
    else:
        result = environment.run(embed, raw, EVENTS)
        assert isinstance(result, EmbedResult)
        assert [a.failed for a in result.assessments] == [False, True]


def test_case18_half_an_emoji_reaches_the_embedder() -> None:
    raw = RawValue(Payload(data=encode_request([], [{"text": "half \ud83d"}])))
    result = ActivityEnvironment().run(ACTIVITY.embed, raw, EVENTS)
    assert not result.assessments[0].failed
    assert EmbedResult.model_validate_json(result.model_dump_json()) == result


def test_failed_result_stands_for_each_response() -> None:
    assert failed_result(2).assessments == [Assessment(failed=True), Assessment(failed=True)]
    assert failed_result(0).assessments == []


def test_the_workflow_side_needs_neither_numpy_nor_temporalio() -> None:
    program = (
        "import sys; sys.modules['numpy'] = sys.modules['temporalio'] = None\n"
        "import workflows.breaker, affidavit.assessment, affidavit.evidence.capture"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
