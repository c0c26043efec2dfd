"""The words of a campaign's result."""

from __future__ import annotations

from collections.abc import Iterator

from tests.crash.campaign import Result
from tests.crash.stages import AT_RANDOM, STAGES


def lines(result: Result) -> Iterator[str]:
    """A table of kills by stage, one of sessions by script, what differs, what was left out, and a verdict."""
    yield "| killed at | kills |"
    yield "| --- | ---: |"
    for stage in (*result.stages, AT_RANDOM):
        yield f"| {stage} | {result.killed[stage]} |"
    yield ""
    yield "| sessions that | ended |"
    yield "| --- | ---: |"
    for script, count in sorted(result.ended.items()):
        yield f"| {script} | {count} |"
    yield ""
    yield from (f"DIFFERENCE {line}" for line in result.differences)
    yield from (f"NOT REACHED {stage}" for stage in result.unmet)
    if result.untried:
        needed = len(result.stages) + 1
        yield f"NOT TRIED, for want of kills ({needed} are enough): {', '.join(result.untried)}"
    if others := len(set(STAGES).difference(result.stages)):
        yield f"NOT ASKED FOR {others} other stages"
    kills, sessions = sum(result.killed.values()), sum(result.ended.values())
    killed = "workers" if result.mode == "workers" else "the server"
    yield (
        f"{kills} kills of {killed} with seed {result.seed}, {sessions} sessions with {result.events} events, "
        f"{len(result.differences)} differences, {result.seconds:.0f} s"
    )
