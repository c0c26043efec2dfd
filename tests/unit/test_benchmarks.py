"""The benchmarks' own arithmetic, and that the pipeline they time is the product's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pipeline import Pipeline
from benchmarks.results import Row, percentile, table
from benchmarks.steps import messages, steps
from tests.support.rig import actions


@pytest.mark.parametrize(
    ("value", "less_is_better", "verdict"),
    [
        (0.69, False, "**missed**"),
        (0.7, False, "must"),
        (0.9, False, "aim"),
        (0.91, True, "**missed**"),
        (0.9, True, "must"),
        (0.7, True, "aim"),
    ],
)
def test_a_target_is_met_or_missed(value: float, less_is_better: bool, verdict: str) -> None:
    must, aim = (0.9, 0.7) if less_is_better else (0.7, 0.9)
    assert Row("a measure", value, "x", must, aim, less_is_better=less_is_better).verdict() == verdict


def test_a_measure_without_a_target_has_no_verdict() -> None:
    assert table([Row("a measure", 0.5)]).splitlines()[-1] == "| a measure | 0.5 x |  |  |  |  |"


@pytest.mark.parametrize(("share", "expected"), [(0.5, 3), (0.99, 5), (0.0, 1), (1.0, 5)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([5, 1, 4, 2, 3], share) == expected


def test_a_message_holds_turns_of_1_kb_a_step() -> None:
    (message,) = messages(1, 8)
    kinds = ["model_request", "model_response", "tool_call", "tool_result"]
    assert [step["kind"] for step in json.loads(message)["steps"]] == kinds * 2
    assert 8 * 1000 < len(message) < 8 * 1500
    assert next(steps()) == next(steps())


def test_the_pipeline_journals_and_publishes_what_it_times(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, staged=True)
    for message in messages(2, 4):
        pipeline.report(message)
    pipeline.close()
    files = sorted(tmp_path.glob("store/sessions/*/*/journal/*.ndjson"))
    events = [json.loads(line)["payload"]["event"] for file in files for line in file.read_text().splitlines()]
    assert actions(events) == ["opened", *["model_request", "model_response", "tool_call", "tool_result"] * 2]
    assert list(pipeline.spent) == ["read", "embed", "decide", "journal", "publish"]
    assert pipeline._published == len(events)


def test_the_overhead_of_an_agent_is_measured_by_a_script_that_starts() -> None:
    script = Path(__file__).parents[2] / "benchmarks/agent_overhead.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--model-ms" in done.stdout
