"""The loop breaker: golden sessions, and the behaviours D1-D3, D5, D6 and case 25."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.embedders import HashEmbedder
from activities.embedding import EmbeddingActivity
from affidavit.assessment import Assessment, decode_request, encode_request, failed_result
from affidavit.contract import BreakerConfig
from workflows.breaker import BreakerState, Verdict, assess_embedding

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors.json").read_text("utf-8"))["breaker"]
NO_FLOOR = BreakerConfig(min_tokens=0)
ACTIVITY = EmbeddingActivity(HashEmbedder())

Step = dict[str, Any]


def said(text: str, *calls: tuple[str, Any]) -> Step:
    return {"text": text} | called(*calls) if calls else {"text": text}


def called(*calls: tuple[str, Any]) -> Step:
    return {
        "tool_calls": [{"call_id": f"c{i}", "name": name, "arguments": args} for i, (name, args) in enumerate(calls)]
    }


def judge(
    state: BreakerState, steps: Sequence[Step], config: BreakerConfig = NO_FLOOR, tokens: int = 400
) -> list[Verdict]:
    """One batch: the embed activity on all of it, then the breaker, as the session does it."""
    result = ACTIVITY.assess(decode_request(encode_request(state.vectors, steps)))
    return [state.step(config, assessment, tokens) for assessment in result.assessments]


def states(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.state for verdict in verdicts]


@pytest.mark.parametrize("family", GOLDEN["loop_families"], ids=lambda family: family["kind"] + str(family["family"]))
def test_d1_loop_families_trip_by_step_3(family: dict[str, Any]) -> None:
    seed = family["seed_text"]
    texts = [frame.format(seed) if family["kind"] == "framed" else seed for frame in GOLDEN["frames"]]
    config = BreakerConfig(min_tokens=500, window=3, delta_epsilon=0.3)

    verdicts = judge(BreakerState(), [said(text) for text in texts], config, GOLDEN["loop_step_tokens"])

    assert [v.delta for v in verdicts[:4]] == pytest.approx(family["deltas_until_trip"], abs=GOLDEN["delta_tolerance"])
    assert states(verdicts).index("tripped") == family["trip_step_index"] == 3


@pytest.mark.parametrize("session", GOLDEN["progressing_sessions"], ids=lambda session: str(session["session"]))
def test_d1_progressing_sessions_never_trip(session: dict[str, Any]) -> None:
    config = BreakerConfig(min_tokens=500)
    state = BreakerState()

    verdicts = judge(state, [said(text) for text in session["steps"]], config, GOLDEN["progress_step_tokens"])

    assert [v.delta for v in verdicts] == pytest.approx(session["deltas"], abs=GOLDEN["delta_tolerance"])
    assert set(states(verdicts)) == {"progressing"}
    assert not state.open


@pytest.mark.parametrize("case", GOLDEN["edge_cases"], ids=lambda case: case["name"])
def test_d1_given_embeddings(case: dict[str, Any]) -> None:
    config = BreakerConfig(
        delta_epsilon=case["config"]["eps"], window=case["config"]["window"], min_tokens=case["config"]["min_tokens"]
    )
    state = BreakerState()
    for step in case["steps"]:
        embedding = [float(number) for number in step["embedding"]]
        verdict = state.step(config, assess_embedding(embedding, state.vectors), step["tokens"])
        assert (verdict.state, verdict.delta, verdict.streak) == (step["verdict"], step["delta"], step["streak"])
    assert state.open == (case["state"] == "open")


def test_an_embedding_without_direction_is_not_stored() -> None:
    state = BreakerState()
    for embedding in ([float("nan"), 0.0], [float("inf"), 0.0], [0.0, 0.0]):
        state.step(NO_FLOOR, assess_embedding(embedding, state.vectors), 0)
    assert state.vectors == []
    assert state.step(NO_FLOOR, assess_embedding([1.0, 0.0], state.vectors), 0).delta == 1.0


def test_delta_is_a_float32_widened() -> None:
    # 1/sqrt(2) as float32 is 0.7071067690849304; one minus it, as float32, is 0.29289323091506958.
    state = BreakerState()
    state.step(NO_FLOOR, assess_embedding([1, 0], state.vectors), 0)
    assert state.step(NO_FLOOR, assess_embedding([1, 1], state.vectors), 0).delta == 0.2928932309150696
    # formats.md 3.2 names this one: 0.13 as float32.
    similar = Assessment(similarities=[0.8700000047683716], counts="x")
    assert BreakerState(vectors=["v"]).step(NO_FLOOR, similar, 0).delta == 0.12999999523162842
    # Below a similarity of 0.5 the difference itself has to be rounded: 0.1 as float32 leaves 0.9 as float32.
    little = Assessment(similarities=[0.10000000149011612], counts="x")
    assert BreakerState(vectors=["v"]).step(NO_FLOOR, little, 0).delta == 0.8999999761581421


@pytest.mark.parametrize("delta", [0.25, 0.5])
def test_a_delta_equal_to_epsilon_is_progress(delta: float) -> None:
    config = BreakerConfig(delta_epsilon=delta, min_tokens=0)
    same = Assessment(similarities=[1.0 - delta], counts="x")
    assert BreakerState(vectors=["v"]).step(config, same, 0).state == "progressing"


@pytest.mark.parametrize(
    ("order", "trip"),
    [("ABABABAB", 4), ("ABCABCABC", 5), ("AAAA", 3)],
    ids=["A-B-A-B", "cycle of three", "the same call"],
)
def test_d2_repeated_calls_trip(order: str, trip: int) -> None:
    verdicts = judge(BreakerState(), [called(("look", {"at": letter})) for letter in order])
    assert states(verdicts).index("tripped") == trip
    assert [v.delta for v in verdicts] == [1.0] * len(set(order)) + [0.0] * (len(order) - len(set(order)))


def test_d2_cycles_of_texts_trip() -> None:
    sentences = {
        "A": "Polling the build server to see whether the image is ready",
        "B": "Reading the queue depth of the mail relay once more",
        "C": "Counting open incidents for the billing cluster",
    }
    assert states(judge(BreakerState(), [said(sentences[x]) for x in "ABABABAB"])).index("tripped") == 4
    assert states(judge(BreakerState(), [said(sentences[x]) for x in "ABCABCABC"])).index("tripped") == 5


def test_d2_a_repeated_call_with_new_text_does_not_trip() -> None:
    texts = GOLDEN["progressing_sessions"][0]["steps"] + GOLDEN["progressing_sessions"][2]["steps"]
    state = BreakerState()
    verdicts = judge(state, [said(text, ("status", {})) for text in texts])
    assert set(states(verdicts)) == {"progressing"}
    assert not state.open


def test_d2_a_repeated_text_with_new_calls_does_not_trip() -> None:
    verdicts = judge(BreakerState(), [said("Next page, please.", ("page", {"n": n})) for n in range(1, 9)])
    assert [v.delta for v in verdicts] == [1.0] * 8


def test_a_call_is_known_for_eight_call_bearing_responses() -> None:
    first = called(("look", {"at": 0}))
    eight = [called(("look", {"at": n})) for n in range(1, 9)]
    assert judge(BreakerState(), [first, *eight[:7], first])[-1].delta == 0.0
    assert judge(BreakerState(), [first, *eight, first])[-1].delta == 1.0
    # Responses without calls in between push nothing out.
    assert judge(BreakerState(), [first, *eight[:7], *[said("thinking")] * 5, first])[-1].delta == 0.0


def test_a_text_is_known_for_eight_texts() -> None:
    sessions = [text for session in GOLDEN["progressing_sessions"] for text in session["steps"]]
    assert judge(BreakerState(), [said(t) for t in [*sessions[:8], sessions[0]]])[-1].delta == 0.0
    ninth = judge(BreakerState(), [said(t) for t in [*sessions[:9], sessions[0]]])[-1].delta
    assert ninth is not None
    assert ninth > 0.3


def test_d3_a_trip_carries_what_its_event_needs() -> None:
    state = BreakerState()
    verdicts = judge(state, [said("again and again")] * 4, BreakerConfig(min_tokens=1600))
    assert verdicts[2] == Verdict("suspicious", 0.0, 2, 1200, open=False)
    assert verdicts[3] == Verdict("tripped", 0.0, 3, 1600, open=True)
    assert state.open
    assert verdicts[3].assessed


def test_d5_a_failed_embedding_is_never_a_trip() -> None:
    state = BreakerState()
    judge(state, [said("again and again")] * 3)
    before = state.model_dump(exclude={"tokens"})
    (failed,) = failed_result(1).assessments

    for _ in range(5):
        assert state.step(NO_FLOOR, failed, 100_000) == Verdict("not_assessed", None, 2, state.tokens, open=False)

    assert state.model_dump(exclude={"tokens"}) == before
    assert state.tokens == 3 * 400 + 5 * 100_000
    assert judge(state, [said("again and again")])[0].state == "tripped"


def test_d5_crossing_the_floor_unassessed_releases_the_streak_on_the_next_step() -> None:
    config = BreakerConfig(min_tokens=2000)
    state = BreakerState()
    judge(state, [said("again and again")] * 4, config)
    assert state.step(config, Assessment(failed=True), 400).state == "not_assessed"
    assert judge(state, [said("again and again")], config, tokens=0)[0].state == "tripped"


@pytest.mark.parametrize(
    "step", [{"text": "again", "copied": True}, {"text": ""}, {"text": " \t\n"}, {"tool_calls": []}, {"reasoning": ""}]
)
def test_copied_and_empty_responses_are_not_assessed(step: Step) -> None:
    state = BreakerState()
    assert judge(state, [step] * 5, tokens=0) == [Verdict("not_assessed", None, 0, 0, open=False)] * 5
    assert state == BreakerState()


def test_d6_the_streak_restarts_after_progress() -> None:
    a, b = GOLDEN["progressing_sessions"][0]["steps"][:2]
    verdicts = judge(BreakerState(), [said(t) for t in (a, a, a, b, b, b, b)])
    assert [v.streak for v in verdicts] == [0, 1, 2, 0, 1, 2, 3]
    assert states(verdicts)[-1] == "tripped"


def test_d6_the_token_floor_holds_a_streak_and_releases_it() -> None:
    config = BreakerConfig(min_tokens=2401)
    verdicts = judge(BreakerState(), [said("again and again")] * 7, config)
    assert states(verdicts) == ["progressing"] + ["suspicious"] * 5 + ["tripped"]


def test_open_stays_open_until_reset_and_reset_clears_everything() -> None:
    state = BreakerState()
    judge(state, [said("again and again", ("look", {}))] * 4)
    assert state.open
    verdict = judge(state, [said("The alert names the mail relay")])[0]
    assert (verdict.state, verdict.open) == ("progressing", True)
    state.reset()
    assert state == BreakerState()
    assert judge(state, [said("again and again", ("look", {}))])[0].delta == 1.0


_WORDS = ["poll the build server", "read the queue depth", "count open incidents", "Poll the build server!"]
_STEP = st.one_of(
    st.builds(said, st.sampled_from(_WORDS)),
    st.builds(lambda n: called(("look", {"at": n})), st.integers(0, 2)),
    st.builds(lambda text, n: said(text, ("look", {"at": n})), st.sampled_from(_WORDS), st.integers(0, 2)),
    st.just({"text": "copied", "copied": True}),
    st.just({"text": " "}),
)


@given(st.lists(_STEP, max_size=24), st.data())
@settings(max_examples=150, deadline=None)
def test_d6_verdicts_do_not_depend_on_batch_cuts(steps: list[Step], data: st.DataObject) -> None:
    one_by_one = BreakerState()
    expected = [judge(one_by_one, [step])[0] for step in steps]

    cuts = sorted(data.draw(st.lists(st.integers(0, len(steps)), max_size=6)))
    state = BreakerState()
    verdicts: list[Verdict] = []
    for start, end in pairwise([0, *cuts, len(steps)]):
        verdicts += judge(state, steps[start:end])
        state = BreakerState.model_validate_json(state.model_dump_json())  # a rollover between batches

    assert verdicts == expected
    assert state == one_by_one


@given(st.lists(_STEP, max_size=12), st.lists(_STEP, max_size=12))
@settings(max_examples=100, deadline=None)
def test_d6_a_reset_while_the_activity_runs_counts_from_where_it_fell(before: list[Step], after: list[Step]) -> None:
    state = BreakerState()
    result = ACTIVITY.assess(decode_request(encode_request(state.vectors, [*before, *after])))
    for assessment in result.assessments[: len(before)]:
        state.step(NO_FLOOR, assessment, 400)
    state.reset()
    verdicts = [state.step(NO_FLOOR, assessment, 400) for assessment in result.assessments[len(before) :]]

    assert verdicts == judge(BreakerState(), after)


def test_state_stays_small() -> None:
    state = BreakerState()
    for n in range(9):
        text = "".join(chr(0x4E00 + (i * i * (n + 3) + i) % 20_000) for i in range(20_000))
        judge(state, [said(text, (f"tool{n}", {}))])
    assert len(state.vectors) == len(state.call_digests) == 8
    assert len(state.model_dump_json()) < 10_000


def test_tokens_stop_at_the_largest_integer() -> None:
    state = BreakerState(tokens=9_007_199_254_740_990)
    assert judge(state, [said("x")], tokens=5)[0].tokens_consumed == 9_007_199_254_740_991


def test_case25_ten_tool_only_turns_with_different_arguments_do_not_trip() -> None:
    verdicts = judge(BreakerState(), [called(("search", {"query": f"q{n}"})) for n in range(10)])
    assert states(verdicts) == ["progressing"] * 10


def test_case25_paging_through_results_does_not_trip() -> None:
    steps = [said("Reading the next page of results.", ("list", {"page": n})) for n in range(1, 9)]
    assert states(judge(BreakerState(), steps)) == ["progressing"] * 8


def test_case25_five_framings_of_one_sentence_trip() -> None:
    seed = "the deploy step fails because the registry token has expired"
    frames = ["I see that {}", "It seems {}", "Again, {}", "So {}", "As before, {}"]
    verdicts = judge(BreakerState(), [said(frame.format(seed)) for frame in frames])
    assert states(verdicts).index("tripped") == 3


def test_case25_a_b_a_b_four_times_trips() -> None:
    steps = [called(("read", {"path": "a"})), called(("read", {"path": "b"}))] * 4
    assert states(judge(BreakerState(), steps)).index("tripped") == 4


def test_case25_embedding_service_down_marks_not_assessed() -> None:
    state = BreakerState()
    verdicts = [state.step(NO_FLOOR, assessment, 400) for assessment in failed_result(10).assessments]
    assert states(verdicts) == ["not_assessed"] * 10
    assert not any(v.assessed or v.open for v in verdicts)
