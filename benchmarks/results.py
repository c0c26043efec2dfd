"""Medians, percentiles and the rows of the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measure: a number, what it is a ratio of or its unit, and the number that must hold and the one aimed at."""

    measure: str
    value: float
    unit: str = "x"
    must: float | None = None
    aim: float | None = None
    less_is_better: bool = False
    note: str = ""

    def verdict(self) -> str:
        """Whether the target was met: `aim`, `must`, `missed`, or nothing where there is none."""
        if self.must is None or self.aim is None:
            return ""
        sign = -1 if self.less_is_better else 1
        if sign * self.value >= sign * self.aim:
            return "aim"
        return "must" if sign * self.value >= sign * self.must else "**missed**"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def median_row(rows: Sequence[Row]) -> Row:
    """Of rows of one measure that whose value is in the middle, with its own note."""
    return sorted(rows, key=lambda row: row.value)[len(rows) // 2]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def table(rows: Sequence[Row]) -> str:
    """As markdown."""
    lines = ["| measure | result | must | aim | met | |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        sign = "<= " if row.less_is_better else ""
        must, aim = ("" if bound is None else f"{sign}{bound:g}" for bound in (row.must, row.aim))
        lines.append(
            f"| {row.measure} | {_shown(row.value)} {row.unit} | {must} | {aim} | {row.verdict()} | {row.note} |"
        )
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
