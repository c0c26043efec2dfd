"""P15, P16 without Temporal: what the table of grants allows, refuses and answers."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from affidavit.grants import GrantRequest, Revoked, RevokeRequest, TransferRequest
from workflows.grant_table import GrantTable, Refused


def give(table: GrantTable, holder: str, *sessions: str, descriptor: str = "", only_first: bool = False) -> int:
    return table.grant(
        GrantRequest(holder=holder, sessions=list(sessions), descriptor=descriptor, only_first=only_first)
    )


def take(table: GrantTable, holder: str, *sessions: str) -> int:
    return table.revoke(RevokeRequest(holder=holder, sessions=list(sessions)))


def move(table: GrantTable, source: str, target: str, *sessions: str) -> int:
    return table.transfer(TransferRequest(from_holder=source, to_holder=target, sessions=list(sessions)))


def shown(table: GrantTable) -> dict[str, dict[str, str]]:
    return json.loads(table.dump())["grants"]  # type: ignore[no-any-return]


def test_p15_a_grant_is_given_once_and_taken_once() -> None:
    table = GrantTable()
    assert give(table, "ann", "s1", "s2", "s1", descriptor="on call") == 2
    assert give(table, "ann", "s1", "s2", descriptor="on call") == 0
    assert give(table, "ann", "s2", descriptor="off") == 1
    assert shown(table) == {"s1": {"ann": "on call"}, "s2": {"ann": "off"}}
    assert (take(table, "ann", "s1", "s3"), take(table, "ann", "s1"), table.count) == (1, 0, 1)
    assert (table.holds("ann", "s1"), table.holds("ann", "s2"), table.holds("bob", "s2")) == (False, True, False)


def test_p15_a_transfer_moves_all_or_none_and_keeps_descriptors() -> None:
    table = GrantTable()
    give(table, "ann", "s1", descriptor="one")
    give(table, "ann", "s2", descriptor="two")
    give(table, "bob", "s2", descriptor="bob's own")
    before = table.dump()
    with pytest.raises(Refused, match="ann holds no grant of s9") as refused:
        move(table, "ann", "bob", "s1", "s9", "s2")
    assert (refused.value.type, table.dump()) == ("GrantMissing", before)
    assert move(table, "ann", "bob", "s1", "s2") == 2
    assert shown(table) == {"s1": {"bob": "one"}, "s2": {"bob": "two"}}
    assert move(table, "ann", "bob", "s1", "s2") == 0  # its answer was lost, and it is asked for again
    assert move(table, "bob", "bob", "s1") == 0
    assert table.of_holder("ann") == []


def test_p15_the_book_holds_5000_grants_and_no_more() -> None:
    table = GrantTable()
    give(table, "ann", *(f"session-{number}" for number in range(4_999)))
    with pytest.raises(Refused, match="grants full: 4999 of 5000") as refused:
        give(table, "bob", "a", "b")
    assert (refused.value.type, table.count) == ("GrantsFull", 4_999)
    assert (give(table, "bob", "a"), give(table, "bob", "a"), table.count) == (1, 0, 5_000)
    take(table, "ann", "session-0")
    assert give(table, "bob", "b") == 1


def test_p15_what_is_handed_on_fits_a_payload() -> None:
    """Ids and descriptors of the greatest length: the book is full by its bytes before a payload is."""
    table = GrantTable()

    def fill() -> None:
        for number in range(5_000):
            give(table, f"{number:0128d}", f"{number:0>128}", descriptor="é" * 100)

    with pytest.raises(Refused, match="bytes"):
        fill()
    assert table.count > 2_000
    handed_on = table.dump()
    assert len(handed_on) < 2 * 1024 * 1024
    again = GrantTable.load(json.loads(handed_on))
    assert (again.count, shown(again), again.runs) == (table.count, shown(table), 2)
    assert take(again, f"{7:0128d}", f"{7:0128d}") == 1


def test_p16_deleting_a_holder_says_who_else_is_left() -> None:
    table = GrantTable()
    give(table, "ann", "s1", "s2")
    give(table, "bob", "s2", "s3")
    assert table.delete_holder("ann") == [
        Revoked(session_id="s1", others=False),
        Revoked(session_id="s2", others=True),
    ]
    assert (shown(table), table.deleted) == ({"s2": {"bob": ""}, "s3": {"bob": ""}}, ["ann"])
    assert (table.delete_holder("ann"), table.deleted) == ([], ["ann"])
    give(table, "ann", "s4")
    assert table.deleted == []
    for number in range(1_200):
        table.delete_holder(f"h{number}")
    assert (len(table.deleted), table.deleted[0], table.deleted[-1]) == (1_000, "h200", "h1199")


def test_p17_a_first_grant_is_only_the_first() -> None:
    table = GrantTable()
    assert give(table, "parent", "child", only_first=True) == 1
    move(table, "parent", "other", "child")
    assert give(table, "parent", "child", only_first=True) == 0
    assert shown(table) == {"child": {"other": ""}}


@pytest.mark.parametrize(
    "fields",
    [
        {"holder": "", "sessions": ["s"]},
        {"holder": "a#b", "sessions": ["s"]},
        {"holder": "a", "sessions": []},
        {"holder": "a", "sessions": ["two words"]},
        {"holder": "a", "sessions": ["s"], "descriptor": "x" * 201},
        {"holder": "a", "sessions": ["s"], "descriptor": "é" * 101},
        {"holder": "a", "sessions": ["s"], "descriptor": "a\nb"},
        {"holder": "a", "sessions": ["s"], "descriptor": "\ud800"},
        {"holder": "a", "sessions": "s"},
        {"holder": "a", "sessions": ["s"], "more": 1},
        {"holder": "a", "sessions": ["s"] * 5_001},
    ],
)
def test_p15_what_is_no_grant_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GrantRequest.model_validate(fields)


NAMES = st.sampled_from(["a", "b", "c"])
SESSIONS = st.lists(st.sampled_from(["s", "t", "u"]), min_size=1, max_size=3)
ACTS = st.lists(st.tuples(st.sampled_from(["give", "take", "move", "delete"]), NAMES, NAMES, SESSIONS), max_size=20)


@given(ACTS)
def test_p15_whatever_is_done_the_indexes_agree_with_the_grants(acts: list[tuple[str, str, str, list[str]]]) -> None:
    table = GrantTable()
    for act, one, other, sessions in acts:
        with suppress(Refused):
            if act == "give":
                give(table, one, *sessions, descriptor=other)
            elif act == "take":
                take(table, one, *sessions)
            elif act == "move":
                move(table, one, other, *sessions)
            else:
                table.delete_holder(one)
    pairs = sorted((holder, session) for session, holders in table.grants.items() for holder in holders)
    assert table.count == len(pairs)
    assert sorted((g.holder, g.session_id) for name in "abc" for g in table.of_holder(name)) == pairs
    assert all(table.grants.values())
    rebuilt = GrantTable.load(json.loads(table.dump()))
    assert (rebuilt.count, rebuilt._bytes) == (table.count, table._bytes)
