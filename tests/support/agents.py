"""What tests of agents and integrations share: scripts of a model, and what a session must hold afterwards."""

from __future__ import annotations

import json
from typing import Any

from examples.model_server import Turn
from tests.support.rig import Rig
from tests.support.trajectories import accept

PARALLEL = (
    Turn(text="I look", calls=[("c1", "look", '{"q":1}'), ("c2", "look", '{"q":2}')], usage=(50, 20, 10)),
    Turn(text="both seen", usage=(80, 7, 30)),
)
"""Two calls at once, then an answer; 130 prompt, 27 completion and 40 cached tokens in all."""

LOOPING = Turn(text="I look", calls=[("c1", "look", '{"q":1}')], usage=(50, 20, 10))
"""A model that says the same for ever."""


def unsigned() -> dict[str, Any]:
    return {"mode": "unsigned"}


def recorded(rig: Rig, session_id: str, kind: str) -> list[dict[str, Any]]:
    """The captures of a kind."""
    return [capture for capture in rig.captures(session_id) if capture.get("kind") == kind]


def trajectory(rig: Rig, session_id: str) -> dict[str, Any]:
    """The trajectory that an unsigned session has left, once every validator has accepted it."""
    document: dict[str, Any] = json.loads((rig.folder(session_id) / "trajectory.json").read_bytes())
    accept(document)
    return document
