"""Responses measured in the workflow's own task: the same assessments as by the activity, or none."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.testing import ActivityEnvironment

from activities.embedders import Counts, HashEmbedder
from activities.embedding import EmbeddingActivity
from affidavit.activity_api import EventRange
from affidavit.assessment import BUILT_IN, Assessment, encode_request, make_request, unpack_counts
from affidavit.contract import EMBED_AT_ONCE_BYTES, EMBED_AT_ONCE_VALUES
from workers.worker import workflow_runner
from workflows import embedding
from workflows.inbox import Item
from workflows.messages import parse, read_step

GOLDEN = json.loads((Path(__file__).parents[1] / "vectors.json").read_text("utf-8"))["hash_embedder"]
EVENTS = EventRange(generation="g", first=1, last=1)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
responses = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=40),
        "reasoning": st.text(max_size=40),
        "copied": st.booleans(),
        "tool_calls": st.lists(
            st.fixed_dictionaries({"name": st.text(max_size=3), "arguments": json_values}), max_size=2
        ),
    },
)


class Other:
    """An embedder of another format."""

    def counts(self, text: str) -> Counts:
        raise AssertionError("a session of the built-in embedder asks no other")


@pytest.fixture(autouse=True)
def provided() -> None:
    workflow_runner()


def in_workflow(window: list[str], steps: list[dict[str, Any]]) -> list[Assessment]:
    return embedding.assess(make_request(window, steps, BUILT_IN)).assessments


def in_activity(window: list[str], steps: list[dict[str, Any]]) -> list[Assessment]:
    """By a worker that was given another embedder meanwhile."""
    raw = RawValue(Payload(data=encode_request(window, steps, BUILT_IN)))
    found = ActivityEnvironment().run(EmbeddingActivity(Other()).embed, raw, EVENTS)
    return list(type(found).model_validate_json(found.model_dump_json()).assessments)  # as it comes back in a history


@pytest.mark.parametrize("way", [in_workflow, in_activity])
def test_d1_golden_texts_have_the_same_bits_either_way(way: Any) -> None:
    found = way([], [{"text": golden["text"]} for golden in GOLDEN])
    digests = [
        hashlib.sha256(struct.pack("<512i", *unpack_counts(assessment.counts))).hexdigest() for assessment in found
    ]
    assert digests == [golden["sha256_counts_i32le"] for golden in GOLDEN]


@pytest.mark.parametrize("way", [in_workflow, in_activity])
def test_d2_what_was_said_and_called_is_measured_alike_either_way(way: Any) -> None:
    calls = [{"call_id": "c", "name": "look", "arguments": {"b": 1, "a": "é"}}]
    first, again, called, half, nothing = way(
        [], [{"text": "abc"}, {"text": "ABC "}, {"text": " ", "tool_calls": calls}, {"text": "half \ud83d"}, {}]
    )
    assert first.similarities == []
    assert again.similarities == [0.40824830532073975]  # 1/sqrt(6) as float32: (-3) against (1, -2, -1)
    digest = hashlib.sha256('[["look",{"a":"é","b":1}]]'.encode()).hexdigest()
    assert called == Assessment(call_digest=digest)
    assert (len(half.similarities or []), half.failed) == (2, False)
    assert nothing == Assessment()


@settings(max_examples=50, deadline=None)
@given(st.lists(responses, max_size=4), st.lists(st.text(max_size=30), max_size=9))
def test_h3_workflow_and_activity_agree_to_the_bit(steps: list[dict[str, Any]], before: list[str]) -> None:
    window = [each.counts for each in in_workflow([], [{"text": text} for text in before]) if each.counts][-8:]
    reported = [json.loads(json.dumps(step)) for step in steps]  # as a message is read
    kept = json.dumps(reported)
    assert in_workflow(window, reported) == in_activity(window, reported)
    assert json.dumps(reported) == kept


def test_h3_nothing_is_judged_where_the_built_in_embedder_was_not_provided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_provided", None)
    with pytest.raises(RuntimeError, match="the built-in embedder is not provided in this process"):
        in_workflow([], [{"text": "abc"}])


def test_h3_want_of_memory_is_no_fact_about_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Counts:
        raise MemoryError

    monkeypatch.setattr(HashEmbedder, "counts", full)
    with pytest.raises(MemoryError):
        in_workflow([], [{"text": "abc"}])


def test_d5_what_fails_in_the_workflow_is_not_assessed_and_a_replay_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Counts:
        raise ValueError("secret text")

    monkeypatch.setattr(HashEmbedder, "counts", broken)
    with caplog.at_level(logging.DEBUG):
        assert in_workflow([], [{"text": "abc"}, {}]) == [Assessment(failed=True), Assessment()]
    assert not caplog.records


def item(text: str, **fields: Any) -> Item:
    reported = json.dumps({"kind": "model_response", "text": text, **fields}, ensure_ascii=False)
    value = parse(reported)
    return Item("model_response", 0, step=read_step(reported, value), value=value, text=reported)


def called(values: int) -> Item:
    return item("", tool_calls=[{"call_id": "c", "name": "n", "arguments": {"of": [0] * values}}])


def test_so_much_is_measured_at_once_as_fits_into_a_workflow_task() -> None:
    around = item("").size
    room = EMBED_AT_ONCE_BYTES - around
    assert embedding.at_once([])
    assert embedding.at_once([item("x" * room)])
    assert not embedding.at_once([item("x" * (room + 1))])
    assert embedding.at_once([item("x" * (room // 2 - around))] * 2)
    assert not embedding.at_once([item("x" * room), item("x")])
    # Bytes, not characters.
    assert not embedding.at_once([item("é" * (room // 2 + 1))])


def test_many_values_are_not_digested_within_a_workflow_task() -> None:
    assert embedding.at_once([called(EMBED_AT_ONCE_VALUES - 20)])
    assert not embedding.at_once([called(EMBED_AT_ONCE_VALUES)])
    assert not embedding.at_once([called(EMBED_AT_ONCE_VALUES // 2)] * 2)
