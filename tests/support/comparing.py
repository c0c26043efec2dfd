"""Two runs of the same steps, compared: without what two runs never share."""

from __future__ import annotations

from typing import Any, Final

GENERATED: Final = ("generation", "chain_head", "receipt_id", "subject", "receipt")
"""Of a payload: ids that are made, and what is computed over them."""


def comparable(event: dict[str, Any]) -> dict[str, Any]:
    """An event without uid, times and generated ids."""
    kept = {name: value for name, value in event.items() if name not in ("time", "time_iso", "session_uid")}
    kept["metadata"] = {name: value for name, value in event["metadata"].items() if name != "uid"}
    kept["payload"] = {name: value for name, value in event["payload"].items() if name not in GENERATED}
    return kept
