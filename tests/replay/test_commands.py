"""H3, without a server and in a moment: the commands of the workflows are those of the committed baseline."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.replay.commands import BASELINE, WORKFLOWS, listing

MEANING = """
The commands of the workflows are not those of tests/replay/commands.txt (above: - baseline, + code).

A session that is running now replays its history with the new code. If commands were added, removed or put into
another order on a way that it has already gone, every one of its tasks fails until the old code is back: keep the
old way behind `workflow.patched(...)` (see "patching" in Temporal's guide), or let all sessions end first.

If the change is meant and safe, renew the baseline in the same commit:
    python -m tests.replay.commands
and see that tests/replay/test_replay.py still passes with the histories as they are saved.
"""


def test_h3_the_commands_are_those_of_the_baseline() -> None:
    found, expected = listing(WORKFLOWS).splitlines(), BASELINE.read_text().splitlines()
    if found != expected:
        difference = "\n".join(difflib.unified_diff(expected, found, "baseline", "code", n=2, lineterm=""))
        pytest.fail(f"\n{difference}\n{MEANING}", pytrace=False)


def test_the_baseline_names_every_activity_of_a_session() -> None:
    """That the extraction finds what it is for: each activity stands where it is called, under its constant."""
    lines = {line.strip() for line in BASELINE.read_text().splitlines()}
    assert lines >= {
        "execute_activity(contract.ACTIVITY_EMBED)",
        "_write(contract.ACTIVITY_OPEN)",
        "_write(contract.ACTIVITY_JOURNAL)",
        "execute_activity(contract.ACTIVITY_PUBLISH)",
        "_write(contract.ACTIVITY_SEAL)",
        "execute_activity(contract.ACTIVITY_CHECK_EVENTS)",
        "_write(contract.ACTIVITY_LIFECYCLE)",
        "_write(contract.ACTIVITY_OUTCOME)",
    }


SOURCE = """
class Session:
    async def run(self):
        task = asyncio.create_task(self.loop())
        await workflow.wait_condition(lambda: self.done)
        await workflow.wait_condition(lambda: self.done, timeout=LIMIT)
        await helper(await workflow.execute_activity(contract.ACTIVITY_A, 1))

    async def loop(self):
        def quiet():
            return len([])
        await workflow.sleep(1)
        workflow.continue_as_new(state)

    def nothing(self):
        return quiet()

async def helper(value):
    await workflow.execute_local_activity(contract.ACTIVITY_B)
    workflow.upsert_search_attributes([])
"""

LISTED = """\
sample.Session.run:
    loop
    create_task(self.loop())
    wait_condition
    execute_activity(contract.ACTIVITY_A)
    helper
sample.Session.loop:
    sleep(1)
    continue_as_new
sample.helper:
    execute_local_activity(contract.ACTIVITY_B)
    upsert_search_attributes
"""


def test_the_extraction_follows_the_source(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SOURCE)
    assert listing(tmp_path) == LISTED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("await workflow.sleep(1)", "pass"),
        ("ACTIVITY_A", "ACTIVITY_C"),
        (", timeout=LIMIT", ""),
        ("return quiet()", "return workflow.upsert_memo({})"),
        ("await workflow.wait_condition(lambda: self.done)\n", "await helper(1)\n"),
    ],
)
def test_a_change_of_commands_is_seen(tmp_path: Path, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    (tmp_path / "sample.py").write_text(SOURCE.replace(old, new))
    assert listing(tmp_path) != LISTED
