"""What the evidence must be, computed without the product's code: hashlib, rfc8785 and cryptography alone."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

from affidavit.contract import SessionOutcome
from tests.support.proof import chain_heads, check_signature
from tests.support.rig import Rig, actions


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def jcs_sha256(value: Any) -> str:
    return sha256(rfc8785.dumps(value))


def attested(rig: Rig, outcome: SessionOutcome) -> list[dict[str, Any]]:
    """The chained events of a session that ended well, after checking that all its evidence agrees.

    Journal, captures, bus, counts and receipt are compared with each other and with the outcome.
    """
    session_id = outcome.session_id
    events = rig.journal(session_id)
    published = rig.bus(session_id)
    sequences = [event["metadata"]["sequence"] for event in published]
    assert outcome.status in ("closed", "cancelled"), outcome.reason
    assert actions(published)[-2:] == ["receipt", "closed"]
    assert published[:-2] == events
    assert sequences == list(range(len(events) + 2))
    assert len({event["metadata"]["uid"] for event in published}) == len(published)
    assert outcome.event_count == len(events)
    assert outcome.chain_head == chain_heads(session_id, events)[-1]
    assert outcome.rejected == actions(events).count("message_rejected")
    times = [event["time"] for event in published]
    assert times == sorted(times)
    _check_captures(rig, session_id, events)
    _check_receipt(rig, outcome)
    return events


def _check_captures(rig: Rig, session_id: str, events: list[dict[str, Any]]) -> None:
    captures = rig.captures(session_id)
    assert len(captures) == len(events)
    for event, capture in zip(events, captures, strict=True):
        stated = event["payload"].get("capture_sha256")
        assert stated == (jcs_sha256(capture) if capture else None)


def _check_receipt(rig: Rig, outcome: SessionOutcome) -> None:
    receipt = json.loads((rig.folder(outcome.session_id) / "receipt.json").read_bytes())
    assert receipt == outcome.receipt
    (key,) = json.loads((rig.data.keys / "public.json").read_bytes())
    check_signature(receipt, [key])
    assert receipt["key_id"] == outcome.key_id
    assert receipt["session_id"] == outcome.session_id
    assert receipt["subject"] == {
        "kind": "event_chain",
        "chain_head": outcome.chain_head,
        "event_count": outcome.event_count,
    }
    totals = outcome.totals
    assert receipt["tool_calls"] == {
        "total": totals.tool_calls,
        "allowed": totals.tool_allowed,
        "blocked": totals.tool_blocked,
    }
    assert receipt["cost"] == {
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "cached_tokens": totals.cached_tokens,
        "cost_usd_micros": totals.cost_usd_micros,
    }
    assert receipt["stop_reason_id"] == outcome.stop_reason_id
