"""P9: what a pattern costs, told without an engine."""

from __future__ import annotations

import pytest

from affidavit.event_patterns import pattern_cost


@pytest.mark.parametrize(
    ("pattern", "cost"),
    [
        ("abc", 4),  # its characters and 1
        ("^(a+)+$", 8),
        ("[a-z]{2,8}", 19),
        ("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", 95),
        (r"^(\d{3}-){2}$", 340),
        (r"^.{1,200}$", 2110),
        (r"a\.b", 5),
    ],
)
def test_p9_what_people_write_is_cheap(pattern: str, cost: int) -> None:
    assert pattern_cost(pattern) == cost


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1,100}){1,100}b",
        "a{60}{60}",
        "(?:(?:a{9}){9}){9}b{9}",
        "a{60}?{60}",
        "a{000000000030000}",
        "a{3000}",
        "a{1,3000}",
        "a{,3000}",
        "a{3000,}",
        "(.{1,50}){1,30}b",
        "([^a]{1,50}){1,30}b",
        "([ά-ώ]{1,50}){1,30}b",
        r"(\x{80}{1,50}){1,30}",
        r"\w{300}",
        "(?i)k{300}",
        "(?x)(a{9}) # [\n{9}",
        "(?ix:a)",
        "a" * 257,
    ],
)
def test_p9_what_costs_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^a pattern "):
        pattern_cost(pattern)
