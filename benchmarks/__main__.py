"""`python -P -m benchmarks`: every measure, in one run on one server; prints a markdown table."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from affidavit.exiting import leave
from benchmarks import ending, latency, memory, micro, recovery, throughput
from benchmarks.bench import bench
from benchmarks.results import Row, table

PARTS = ("micro", "export", "throughput", "latency", "ending", "memory", "recovery")


def take(row: Row) -> Row:
    """Show a row at once, because all of them take minutes."""
    print(f"{row.measure}: {row.value:.3g} {row.unit} {row.note}", file=sys.stderr, flush=True)
    return row


async def measure(parts: Sequence[str], pairs: int, sizes: Sequence[throughput.Size]) -> list[Row]:
    """The rows of those parts that need a server, which they share."""
    with tempfile.TemporaryDirectory() as folder:
        async with bench(Path(folder)) as running:
            sources = {
                "memory": lambda: memory.rows(running),  # first, on a worker that is young
                "throughput": lambda: throughput.rows(running, pairs, sizes),
                "latency": lambda: latency.rows(running, pairs),
                "ending": lambda: ending.rows(running, pairs),
                "recovery": lambda: recovery.rows(running),  # last, because it kills the worker
            }
            return [take(row) for part, source in sources.items() if part in parts async for row in source()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks", description="Measure, side by side.")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each comparison; their median counts")
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--sessions", type=int, nargs="*", help="throughput of so many sessions at once alone")
    parser.add_argument("-o", "--output", type=Path, help="a file for the table, beside standard output")
    options = parser.parse_args()
    sizes = [size for size in throughput.SIZES if not options.sessions or size.sessions in options.sessions]
    before = os.getloadavg()[0]
    rows = [take(row) for row in micro.rows(options.pairs)] if "micro" in options.only else []
    rows += [take(row) for row in ending.export_rows(options.pairs)] if "export" in options.only else []
    if set(options.only) - {"micro", "export"}:
        rows += asyncio.run(measure(options.only, options.pairs, sizes))
    text = (
        f"{table(rows)}\n\n{options.pairs} pairs; {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f}.\n"
    )
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    leave(main())
