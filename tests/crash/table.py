"""The words of a campaign's result."""

from __future__ import annotations

from collections.abc import Iterator

from tests.crash.campaign import Result
from tests.crash.stages import AT_RANDOM, STAGES


def lines(result: Result) -> Iterator[str]:
    """A table of kills by stage, one of sessions by script, what differs, and a verdict."""
    yield "| killed at | kills |"
    yield "| --- | ---: |"
    for stage in (*STAGES, AT_RANDOM):
        if stage in result.planned or stage in result.killed:
            yield f"| {stage} | {result.killed[stage]} |"
    yield ""
    yield "| sessions that | ended |"
    yield "| --- | ---: |"
    for script, count in sorted(result.ended.items()):
        yield f"| {script} | {count} |"
    yield ""
    yield from (f"DIFFERENCE {line}" for line in result.differences)
    yield from (f"NOT REACHED {stage}" for stage in result.unmet)
    kills, sessions = sum(result.killed.values()), sum(result.ended.values())
    yield (
        f"{kills} kills, {sessions} sessions with {result.events} events, {len(result.differences)} differences, "
        f"{result.seconds:.0f} s"
    )
