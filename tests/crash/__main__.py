"""`python -m tests.crash --kills 100 --seed 1`: exits 1 on any difference, or where a stage was not reached.

Fewer kills than stages leave some untried, which is said and is no failure.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from affidavit.exiting import leave
from tests.crash.campaign import campaign
from tests.crash.stages import STAGES
from tests.crash.table import lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Kill processes while sessions run.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=("workers", "server"), default="workers", help="what is killed")
    parser.add_argument("--sessions", type=int, default=8, help="how many run at a time")
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES, metavar="STAGE")
    parser.add_argument("--keep", type=Path, help="an empty folder for evidence and logs, which is kept")
    options = parser.parse_args()
    # What the SDK says of a server that is killed all the time would fill the screen.
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=quiet)))
    with tempfile.TemporaryDirectory() as folder:
        kept = options.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(
            campaign(
                kept,
                options.stages,
                kills=options.kills,
                seed=options.seed,
                mode=options.mode,
                sessions=options.sessions,
            )
        )
    print("\n".join(lines(result)))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.stdout.flush()
    return 0 if result.good else 1


if __name__ == "__main__":
    leave(main())
