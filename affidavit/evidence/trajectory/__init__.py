"""ATIF trajectories: validated in any version from v1.0 to v1.8, written in v1.7, compared (formats.md 7)."""

from __future__ import annotations

from affidavit.evidence.trajectory.build import NoSteps, Written, trajectory_bytes, write_trajectory
from affidavit.evidence.trajectory.compare import Difference, compare
from affidavit.evidence.trajectory.fields import SCHEMA_VERSION, VERSIONS
from affidavit.evidence.trajectory.rebuild import JournalIncomplete, rebuild_trajectory
from affidavit.evidence.trajectory.segments import CaptureMismatch, Pair, SegmentedPairs, pair
from affidavit.evidence.trajectory.validate import (
    MAX_BYTES,
    MAX_ISSUES,
    InvalidTrajectory,
    Issue,
    Profile,
    read_trajectory,
    validate,
)

__all__ = [
    "MAX_BYTES",
    "MAX_ISSUES",
    "SCHEMA_VERSION",
    "VERSIONS",
    "CaptureMismatch",
    "Difference",
    "InvalidTrajectory",
    "Issue",
    "JournalIncomplete",
    "NoSteps",
    "Pair",
    "Profile",
    "SegmentedPairs",
    "Written",
    "compare",
    "pair",
    "read_trajectory",
    "rebuild_trajectory",
    "trajectory_bytes",
    "validate",
    "write_trajectory",
]
