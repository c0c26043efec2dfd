"""That what the documents tell a reader to run is there to be run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def targets() -> set[str]:
    """What the Makefile has a recipe for."""
    return set(re.findall(r"^([a-z-]+):.*\n\t", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_the_makefile_has_what_the_documents_and_ci_name() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.md", ".ci/run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = {
        name
        for file in tracked.stdout.split()
        for name in re.findall(r"(?:^\s*|`)make ([a-z-]+)", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    }
    assert named >= {"demo", "test", "bench", "lint", "types"}
    assert named - targets() == set()


def test_every_phony_target_of_the_makefile_has_a_rule() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(phony.split()) - targets() == {"check"}  # of which the parts are the recipe
