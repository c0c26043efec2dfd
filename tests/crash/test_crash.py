"""H1, H2: a short campaign; `python -m tests.crash` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.campaign import campaign
from tests.crash.table import lines


@pytest.mark.timeout(600)
async def test_h1_workers_are_killed_and_every_session_equals_its_undisturbed_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("number after", "journal half", "publish half", "receipt.json after")
    result = await campaign(tmp_path, stages, kills=5, seed=1, sessions=5)
    with capsys.disabled():
        print("\n" + "\n".join(lines(result)))
    assert result.differences == []
    assert result.unmet == []


@pytest.mark.timeout(600)
async def test_h2_the_server_is_killed_and_nothing_that_was_accepted_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("journal after", "publish after", "sealed")
    result = await campaign(tmp_path, stages, kills=4, seed=1, mode="server", sessions=5)
    with capsys.disabled():
        print("\n" + "\n".join(lines(result)))
    assert result.differences == []
    assert result.unmet == []
