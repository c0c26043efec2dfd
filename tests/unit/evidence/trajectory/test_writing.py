"""Writing a trajectory: what is told of it, what is refused, what is held in memory."""

from __future__ import annotations

import hashlib
import io
from itertools import pairwise

import pytest

from affidavit.evidence.capture import capture_bytes
from affidavit.evidence.scalars import sha256_hex
from affidavit.evidence.trajectory import (
    CaptureMismatch,
    InvalidTrajectory,
    NoSteps,
    Pair,
    SegmentedPairs,
    pair,
    trajectory_bytes,
    write_trajectory,
)
from tests.support.trajectories import (
    Json,
    call,
    metadata,
    own,
    request,
    response,
    result,
    session,
    user,
)


def test_what_was_written_is_told() -> None:
    pairs = session(request(user()), response())
    sink = io.BytesIO()
    written = write_trajectory(metadata(), iter(pairs), lambda sequence: pairs[sequence], sink)
    assert written.digest == hashlib.sha256(sink.getvalue()).hexdigest()
    assert (written.step_count, written.size, written.event_count) == (2, len(sink.getvalue()), 3)
    assert written.provenance(chain_head="cd" * 32, generation="run-1") == {
        "trajectory_digest": written.digest,
        "step_count": 2,
        "chain_head": "cd" * 32,
        "event_count": 3,
        "generation": "run-1",
    }


def test_f3_without_a_step_nothing_is_written() -> None:
    sink = io.BytesIO()
    with pytest.raises(NoSteps, match=r"^no captured steps$"):
        write_trajectory(metadata(), session(own("cancel_requested")), lambda sequence: session()[sequence], sink)
    assert sink.getvalue() == b""


def test_what_would_not_be_valid_is_not_written_to_its_end() -> None:
    broken = metadata()
    broken["identity"] = {**broken["identity"], "version": ""}
    with pytest.raises(InvalidTrajectory, match=r"agent\.version: must be a non-empty string"):
        trajectory_bytes(broken, session(response()))


@pytest.mark.parametrize(
    ("capture", "path"),
    [
        (response(text=5), "steps.0.message: must be a string or a list of content parts"),
        (response(call(arguments=[])), "steps.0.tool_calls.0.arguments: must be an object"),
    ],
)
def test_captures_that_no_session_accepts_make_no_trajectory(capture: Json, path: str) -> None:
    pairs = session(response())
    pairs[1] = (pairs[1][0], capture)
    with pytest.raises(InvalidTrajectory, match=path):
        trajectory_bytes(metadata(), pairs)


def test_a_missing_capture_is_an_error() -> None:
    pairs = session(response())
    pairs[1] = (pairs[1][0], None)
    with pytest.raises(CaptureMismatch, match="the capture of event 1 is missing"):
        trajectory_bytes(metadata(), pairs)


def test_a_capture_goes_with_its_event_by_digest() -> None:
    line = capture_bytes(response())
    event = {"metadata": {"sequence": 4}, "payload": {"capture_sha256": sha256_hex(line)}}
    assert pair(event, line) == (event, response())
    assert pair({"metadata": {"sequence": 0}, "payload": {}}, b"{}")[1] is None
    for other in (line + b" ", b"{}"):
        with pytest.raises(CaptureMismatch, match="the capture of event 4 is not the one it was made of"):
            pair(event, other)
    with pytest.raises(CaptureMismatch):
        pair({"metadata": {"sequence": 4}, "payload": {}}, line)


def test_segments_are_loaded_when_needed_and_few_are_held() -> None:
    pairs = session(*[response(text=str(place)) for place in range(9)])
    loads: list[int] = []

    def load(first: int) -> list[Pair]:
        loads.append(first)
        return pairs[first : first + 3]

    segments = SegmentedPairs([0, 3, 6, 9], load, held=2)
    assert list(segments) == pairs
    assert loads == [0, 3, 6, 9]
    assert segments.at(7) is pairs[7]
    assert segments.at(9) is pairs[9]
    assert loads == [0, 3, 6, 9]
    assert segments.at(7) is pairs[7]
    assert segments.at(0) is pairs[0]  # drops the segment that was not used for longest
    assert segments.at(7) is pairs[7]
    assert loads == [0, 3, 6, 9, 0]
    for sequence in (10, 13, -1):
        with pytest.raises(CaptureMismatch, match=f"no segment holds event {sequence}"):
            segments.at(sequence)
    sink = io.BytesIO()
    write_trajectory(metadata(), segments, segments.at, sink)
    assert sink.getvalue() == trajectory_bytes(metadata(), pairs)


class _Counting:
    """A sink that keeps nothing but how much came at once."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(len(data))


def test_nothing_grows_with_the_session_but_the_plan() -> None:
    """Results come at the very end, on the steps of the beginning: the widest reach that a session can have."""
    calls = 300
    pairs = session(
        *[response(call(f"c{place}"), text="x" * 1000) for place in range(calls)],
        *[result("y" * 1000, call_id=f"c{place}") for place in range(calls)],
    )
    firsts = list(range(0, len(pairs), 64))
    live: list[int] = []

    def load(first: int) -> list[Pair]:
        live.append(first)
        return pairs[first : first + 64]

    segments = SegmentedPairs(firsts, load)
    sink = _Counting()
    written = write_trajectory(metadata(), segments, segments.at, sink)
    assert written.step_count == calls
    assert sum(sink.pieces) == written.size > 600_000
    assert max(sink.pieces) < 80_000
    assert len(live) < 3 * len(firsts)
    assert all(one != other for one, other in pairwise(live))
