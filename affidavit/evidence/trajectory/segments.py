"""Events with their captures, in order and by sequence, out of segments that are loaded when needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.scalars import sha256_hex
from affidavit.evidence.strict import read_json

Pair = tuple[Mapping[str, Any], "Mapping[str, Any] | None"]
"""A chained event and the capture behind it; None where nothing was reported."""

NOTHING: Final = b"{}"
"""The line of a captures segment where nothing was reported."""


class CaptureMismatch(EvidenceError):
    """A capture is missing, or is not the one whose digest its event states."""


def pair(event: Mapping[str, Any], line: bytes) -> Pair:
    """An event with the line of the captures segment that goes with it, which the event's digest vouches for.

    Raises:
        CaptureMismatch: the line is another one.
        StrictJsonError: the line is not strict JSON.
    """
    payload = event["payload"]
    stated = payload.get("capture_sha256")
    if line == NOTHING and stated is None:
        return event, None
    if sha256_hex(line) != stated:
        raise CaptureMismatch(f"the capture of event {event['metadata']['sequence']} is not the one it was made of")
    return event, read_json(line)


class SegmentedPairs:
    """The events of one generation, of which a few segments are in memory at a time.

    Args:
        firsts: the first sequence of each segment, rising from 0.
        load: all pairs of the segment whose first sequence is given; it is asked again for a segment that was
            dropped meanwhile, and must give the same.
        held: segments kept in memory.
    """

    def __init__(self, firsts: Sequence[int], load: Callable[[int], Sequence[Pair]], *, held: int = 4) -> None:
        self._firsts = firsts
        self._load = load
        self._held = held
        self._recent: dict[int, Sequence[Pair]] = {}

    def __iter__(self) -> Iterator[Pair]:
        for first in self._firsts:
            yield from self._segment(first)

    def at(self, sequence: int) -> Pair:
        """The pair of one sequence.

        Raises:
            CaptureMismatch: no segment holds it.
        """
        place = bisect_right(self._firsts, sequence) - 1
        segment = self._segment(self._firsts[place]) if place >= 0 else ()
        offset = sequence - self._firsts[place]
        if not 0 <= offset < len(segment):
            raise CaptureMismatch(f"no segment holds event {sequence}")
        return segment[offset]

    def _segment(self, first: int) -> Sequence[Pair]:
        segment = self._recent.pop(first, None)
        if segment is None:
            while len(self._recent) >= self._held:
                del self._recent[next(iter(self._recent))]
            segment = self._load(first)
        self._recent[first] = segment  # the youngest stands last
        return segment
