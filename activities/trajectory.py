"""Writes the trajectory of an unsigned session at its end: once, and with its provenance (formats.md 5 and 7)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import IntegrityError, told_to_temporal
from activities.reading import Reading, read_metadata
from activities.sealed import Life, SealedEvidence
from affidavit import contract
from affidavit.activity_api import TrajectoryRequest, TrajectoryResult
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import JournalRecord, Metadata, domain_trajectory
from affidavit.evidence.layout import provenance_name, trajectory_name
from affidavit.evidence.trajectory import NoSteps, Pair, SegmentedPairs, Written, pair, write_trajectory


class TrajectoryActivity:
    """Around the evidence store. It streams: in memory are a plan of the session and a few segments of it."""

    def __init__(self, evidence: SealedEvidence) -> None:
        self._evidence = evidence

    @activity.defn(name=contract.ACTIVITY_TRAJECTORY)
    def write(self, request: TrajectoryRequest) -> TrajectoryResult:
        """Write the caller's own trajectory, after checking what it is made of as the signer does.

        A repeat writes the same bytes, or finds them.

        Raises:
            ApplicationError: not retryable; type NoCapturedSteps: there is nothing to write; type IntegrityError: the
                evidence is not what was claimed, or another trajectory stands there.
        """
        with told_to_temporal():
            life = self._evidence.callers_life(request)
            metadata = read_metadata(self._evidence, life)
            if metadata.mode != "unsigned":
                raise IntegrityError("a signed session gets no trajectory at its end")
            if metadata.content == "digest":
                raise IntegrityError("a session that keeps no captures has nothing to make a trajectory of")
            reading = Reading.of(life, metadata)
            # A file without a name: nothing of it is left, however this process ends.
            with tempfile.TemporaryFile() as file:
                written = self._write(metadata, reading, request, file)
                self._evidence.store.create_from_file(trajectory_name(life.session_id, life.generation), file)
            self._evidence.create(
                provenance_name(life.session_id, life.generation),
                domain_trajectory(life.session_id, life.generation),
                0,
                written.provenance(chain_head=reading.head.hex(), generation=life.generation),
            )
            return TrajectoryResult(trajectory_digest=written.digest, step_count=written.step_count, size=written.size)

    def _write(self, metadata: Metadata, reading: Reading, request: TrajectoryRequest, file: BinaryIO) -> Written:
        # The first pass over the pairs fills `firsts`, from which the second one finds them again.
        again = SegmentedPairs(reading.firsts, lambda first: self._segment(reading.life, first))
        try:
            return write_trajectory(dict(metadata), self._pairs(reading, request), again.at, file)
        except NoSteps as error:
            raise ApplicationError(str(error), type=contract.FAILED_NO_STEPS, non_retryable=True) from None
        except EvidenceError as error:
            raise IntegrityError(f"trajectory: {error}") from error

    def _pairs(self, reading: Reading, request: TrajectoryRequest) -> Iterator[Pair]:
        """Every event with its capture, in order. At their end, before a byte is written, the claims are checked."""
        for segment in reading.segments(self._evidence, captures=True):
            yield from _paired(segment.records, segment.captures)
        reading.compare(request)

    def _segment(self, life: Life, first: int) -> list[Pair]:
        activity.heartbeat(first)
        return list(_paired(self._evidence.segment(life, first), self._evidence.captures(life, first)))


def _paired(records: list[JournalRecord], captures: list[bytes]) -> Iterator[Pair]:
    return (pair(record.event, line) for record, line in zip(records, captures, strict=True))
