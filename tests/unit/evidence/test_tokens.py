from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from affidavit.evidence.text import WHITE_SPACE
from affidavit.evidence.tokens import approx_tokens, approx_tokens_json

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())
ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
SPACES = frozenset(map(chr, [9, 10, 11, 12, 13, 32, 133, 160, 5760, *range(8192, 8203), 8232, 8233, 8239, 8287, 12288]))


def by_character(text: str) -> int:
    """The definition, a character at a time."""
    tokens = run = 0
    for character in text + " ":
        if character in ALPHANUMERIC:
            run += 1
            continue
        tokens += -(-run // 4) + (character not in SPACES)
        run = 0
    return tokens


@pytest.mark.parametrize("row", VECTORS["approx_tokens"], ids=lambda row: row["text"])
def test_vectors(row: dict[str, Any]) -> None:
    assert approx_tokens(row["text"]) == row["tokens"]


@pytest.mark.parametrize("row", VECTORS["approx_tokens_json"], ids=lambda row: json.dumps(row["value"]))
def test_json_vectors(row: dict[str, Any]) -> None:
    assert approx_tokens_json(row["value"]) == row["tokens"]


@pytest.mark.parametrize(
    ("length", "tokens"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3), (4001, 1001)]
)
def test_runs_cost_a_quarter_rounded_up(length: int, tokens: int) -> None:
    assert approx_tokens("x" * length) == tokens
    assert approx_tokens(f"{'x' * length} {'7' * length}") == 2 * tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("a日b", 3), ("aé", 2), ("ééé", 3), ("\U0001f600\U0001f600", 2), ("e\u0301", 2), ("_", 1), ("\x00\x1f\x7f", 3)],
)
def test_every_other_character_costs_one(text: str, tokens: int) -> None:
    assert approx_tokens(text) == tokens


def test_case18_a_lone_surrogate_counts_one() -> None:
    assert approx_tokens("\ud800") == 1
    assert approx_tokens("ab\udfffcd") == 3
    assert approx_tokens_json({"k": "\ud800"}) == 9


def test_information_separators_are_no_white_space() -> None:
    assert approx_tokens("\x1c\x1d\x1e\x1f") == 4


def test_white_space_is_the_unicode_property() -> None:
    assert WHITE_SPACE == SPACES
    assert len(WHITE_SPACE) == 25
    assert all(approx_tokens(space) == 0 for space in SPACES)
    assert approx_tokens("\u200b\u180e\u2060\ufeff") == 4


def test_every_code_point_costs_what_the_definition_says() -> None:
    for start in range(0, 0x110000, 0x100):
        block = " ".join(map(chr, range(start, start + 0x100)))
        assert approx_tokens(block) == by_character(block), hex(start)


@given(
    st.text(
        st.one_of(
            st.sampled_from("abcd01 \n.,é日\u3000\u2003\u201c\x85\xa0\x1c\ud800\U0001f600"), st.characters(codec=None)
        )
    )
)
@example("aaaa aaa aa a aaaaa.aaaaaa,aaaaaaa")
@example("\u2028a\u2029\u202fb\u205f\u1680")
def test_agrees_with_the_definition(text: str) -> None:
    assert approx_tokens(text) == by_character(text)


def test_megabytes_take_milliseconds() -> None:
    text = ("The quick brown fox, naïve 日本語 — “quoted” \U0001f600 def f(a): return 12345678\n" * 20_000)[:1_500_000]
    started = time.process_time()
    approx_tokens(text)
    taken = time.process_time() - started
    by_character(text)
    reference = time.process_time() - started - taken
    # Time of the processor, and beside a loop in Python, which takes some 14 times as long: so a loaded machine, or a
    # slow one, fails nothing.
    assert taken < reference / 3


def test_json_text_is_compact_and_unescaped() -> None:
    assert approx_tokens_json("é") == 3
    assert approx_tokens_json([1, 2]) == 5
    assert approx_tokens_json({"a": None}) == by_character('{"a":null}')
