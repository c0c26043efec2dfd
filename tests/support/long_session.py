"""Exports a session of 5 000 steps in a process of its own and prints how much memory that took, as JSON.

Run as `python -m tests.support.long_session FOLDER`; the evidence store is made in the folder.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from activities.sealed import SealedEvidence
from activities.trajectory import TrajectoryActivity
from affidavit.stores.local import DirectoryStore
from tests.support.stored import StoredSession

TURNS = 1250
TEXT = "The needle may be in any of these stalks. " * 120


def turn(number: int) -> list[dict[str, Any]]:
    """Four steps; each result belongs to a call of some 64 turns before, so that it is far from its step."""
    call = {"call_id": f"c{number}", "name": "search", "arguments": {"q": TEXT[:400], "n": number}}
    return [
        {"kind": "model_request", "messages": [{"role": "user", "content": TEXT}]},
        {"kind": "model_response", "text": TEXT, "tool_calls": [call], "usage": {"prompt_tokens": 1}},
        {"kind": "tool_call", "call_id": f"c{number}", "tool": "search", "allowed": True},
        {"kind": "tool_result", "call_id": f"c{max(number - 64, 0)}", "content": TEXT},
    ]


def status(name: str) -> int:
    """A line of the process's own status, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    session = StoredSession(SealedEvidence(DirectoryStore(Path(sys.argv[1])), [bytes(range(32))]))
    for first in range(0, TURNS, 16):
        session.report(*(step for number in range(first, min(first + 16, TURNS)) for step in turn(number)))
    session.heartbeats.clear()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    result = session.run(TrajectoryActivity(session.evidence).write, session.claims())
    measured = {"events": session.count, "peak": status("VmHWM") - before, "heartbeats": len(session.heartbeats)}
    print(json.dumps({**result.model_dump(), **measured}))


if __name__ == "__main__":
    main()
