"""Values of search attributes, the memo of the end, and what a start shows: all within Temporal's limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affidavit.attributes import SEARCH_ATTRIBUTES, cost, cut, terminal_facts, tokens
from affidavit.contract import Agent, SessionOutcome, Totals
from affidavit.describing import details, summary
from workflows.attributes import waiting_value

OUTCOME = SessionOutcome(
    session_id="s",
    generation="g",
    mode="signed",
    status="quarantined",
    reason="journaling: " + "x" * 1000,
    stop_reason_id=99,
    stop_reason="Other",
    totals=Totals(),
    steps=3,
    event_count=4,
    chain_head="00" * 32,
    published=False,
)


def test_the_search_attributes_are_exactly_these() -> None:
    assert dict(SEARCH_ATTRIBUTES) == {
        "AffidavitMode": "Keyword",
        "AffidavitAgent": "Keyword",
        "AffidavitStatus": "Keyword",
        "AffidavitStopReason": "Keyword",
        "AffidavitWaiting": "Keyword",
        "AffidavitCost": "Keyword",
        "AffidavitSteps": "Int",
        "AffidavitTokens": "Int",
        "AffidavitBreakerTripped": "Bool",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("triage", "triage"),
        ("x" * 255, "x" * 255),
        ("x" * 256, "x" * 255),
        ("ä" * 128, "ä" * 127),
        ("x" + "😀" * 64, "x" + "😀" * 63),
        ("a\n\ud800", "a\\x0a\\ud800"),
        ("a\0b\x7f", "a\\x00b\\x7f"),  # PostgreSQL takes no text with U+0000
        ("", ""),
    ],
)
def test_values_are_cut_to_255_bytes_between_characters(text: str, value: str) -> None:
    assert cut(text) == value


@given(st.text(max_size=400))
def test_no_value_is_longer(text: str) -> None:
    assert len(cut(text).encode("utf-8")) <= 255


@pytest.mark.parametrize(
    ("micros", "usd"), [(0, "0.000000"), (1, "0.000001"), (250_000, "0.250000"), (12_345_678_901, "12345.678901")]
)
def test_a_cost_is_a_decimal_number(micros: int, usd: str) -> None:
    assert cost(micros) == usd


def test_cached_tokens_are_not_counted_twice() -> None:
    assert tokens(Totals(prompt_tokens=100, cached_tokens=80, completion_tokens=7)) == 107


def test_a_wait_is_named_by_kind_and_name() -> None:
    assert waiting_value("approval", "refund over 500") == "approval: refund over 500"
    assert len(waiting_value("approval", "x" * 500)) == 255


def test_the_memo_is_the_outcome_without_the_receipt_and_without_what_there_is_not() -> None:
    facts = terminal_facts(OUTCOME.model_copy(update={"receipt": {"receipt_id": "r"}, "receipt_id": "r"}))
    assert facts["receipt_id"] == "r"
    assert (facts["status"], facts["stop_reason"], facts["steps"], facts["published"]) == (
        "quarantined",
        "Other",
        3,
        False,
    )
    assert not facts.keys() & {"receipt", "key_id", "trajectory_digest"}


@given(st.text(min_size=1, max_size=256), st.text(min_size=1, max_size=256), st.text(min_size=1, max_size=256))
def test_summary_and_details_stay_within_temporals_limits(version: str, charter: str, uid: str) -> None:
    agent = Agent(version=version, charter=charter, instance_uid=uid)
    shown = summary(agent, "unsigned")
    assert len(shown.encode("utf-8")) <= 200
    assert shown.endswith("` · unsigned")
    assert shown.count("`") == 4
    assert len(details(agent, "digest").encode("utf-8")) <= 20_000


def test_a_summary_is_agent_version_and_mode() -> None:
    agent = Agent(version="1.4", charter="refund triage", instance_uid="w-7")
    assert summary(agent, "signed") == "`refund triage` `1.4` · signed"
