"""H1, H2: a short campaign; `python -m tests.crash` is the long one."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.campaign import Result, campaign
from tests.crash.killing import Kills, plan
from tests.crash.stages import AT_RANDOM, STAGES
from tests.crash.table import lines


@pytest.mark.timeout(600)
async def test_h1_workers_are_killed_and_every_session_equals_its_undisturbed_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("measure before", "number after", "journal half", "publish half", "receipt.json after")
    result = await campaign(tmp_path, stages, kills=6, seed=1, sessions=5)
    with capsys.disabled():
        print("\n" + "\n".join(lines(result)))
    assert result.differences == []
    assert result.unmet == result.untried == []


@pytest.mark.timeout(600)
async def test_h2_the_server_is_killed_and_nothing_that_was_accepted_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("journal after", "publish after", "sealed")
    result = await campaign(tmp_path, stages, kills=4, seed=1, mode="server", sessions=5)
    with capsys.disabled():
        print("\n" + "\n".join(lines(result)))
    assert result.differences == []
    assert result.unmet == result.untried == []


@pytest.mark.parametrize("kills", [1, len(STAGES) - 1, len(STAGES), len(STAGES) + 1, 100])
def test_as_many_kills_as_there_are_stages_are_enough_for_all_of_them(kills: int) -> None:
    planned = Counter(plan(STAGES, kills, random.Random(1)))
    at_random = planned.pop(AT_RANDOM, 0)
    assert planned.total() + at_random == kills
    assert set(planned) <= set(STAGES)
    assert len(planned) == min(kills, len(STAGES))
    assert max(planned.values()) - min(planned[stage] for stage in STAGES) <= 1
    assert (at_random > 0) == (kills > len(STAGES))


def test_one_worker_stops_at_stages_of_embedding_or_at_others() -> None:
    kills = Kills(["sealed", "embed after", AT_RANDOM, "embed before", "number after", AT_RANDOM, "receive"])
    assert kills.for_one_worker() == ["receive", "number after"]
    del kills.left[-3:]
    assert kills.for_one_worker() == ["embed before", "embed after"]
    assert Kills([AT_RANDOM]).for_one_worker() == []


def test_the_table_shows_every_stage_and_says_what_was_not_reached_and_what_was_not_tried() -> None:
    planned, killed = Counter({"receive": 1, "sealed": 1}), Counter({"receive": 1})
    result = Result("workers", 7, ("receive", "totals", "sealed"), planned, killed, 1.0, Counter(), 0)
    text = list(lines(result))
    rows = ["| receive | 1 |", "| totals | 0 |", "| sealed | 0 |", f"| {AT_RANDOM} | 0 |"]
    assert [line for line in text if line in rows] == rows
    assert "NOT REACHED sealed" in text
    assert f"NOT TRIED, for want of kills (4 are enough): totals, {AT_RANDOM}" in text
    assert f"NOT ASKED FOR {len(STAGES) - 3} other stages" in text
    assert not result.good
    result.killed["sealed"] = 1
    assert result.good
