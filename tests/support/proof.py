"""What an outsider finds in the evidence: nothing here uses the product's code, so that it can contradict it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

LIFECYCLE_ACTIONS = {"receipt", "closed", "quarantined", "abandoned"}


def chain_heads(session_id: str, events: list[dict[str, Any]]) -> list[str]:
    """The head after no event, after the first, after the second, … (formats.md 4)."""
    head = hashlib.sha256(b"av-genesis" + session_id.encode()).digest()
    heads = [head.hex()]
    for event in events:
        head = hashlib.sha256(head + rfc8785.dumps(event)).digest()
        heads.append(head.hex())
    return heads


def chain_head(session_id: str, events: list[dict[str, Any]]) -> str:
    """The last head over the chained ones of `events`, which are in order."""
    chained = [event for event in events if event["payload"]["action"] not in LIFECYCLE_ACTIONS]
    return chain_heads(session_id, chained)[-1]


def check_signature(receipt: dict[str, Any], ring: list[dict[str, Any]]) -> None:
    """That a key of `ring`, and no other, has signed; raises what `cryptography` raises."""
    assert receipt["public_key_b64"] in [entry["public_key_b64"] for entry in ring]
    key = base64.b64decode(receipt["public_key_b64"], validate=True)
    assert receipt["key_id"] == hashlib.sha256(key).hexdigest()[:32]
    body = {name: value for name, value in receipt.items() if name != "signature_b64"}
    Ed25519PublicKey.from_public_bytes(key).verify(
        base64.b64decode(receipt["signature_b64"], validate=True), rfc8785.dumps(body)
    )


def envelope(key: bytes, domain: str, index: int, payload: Any) -> bytes:
    """An envelope of formats.md 5 by the book."""
    canonical = rfc8785.dumps(payload)
    u64 = [number.to_bytes(8, "big") for number in (len(domain.encode()), index, len(canonical))]
    message = b"agentvisor-journal-v1\0" + u64[0] + domain.encode() + u64[1] + u64[2] + canonical
    mac = hmac.new(key, message, hashlib.sha256).hexdigest()
    return b'{"index":%d,"payload":%b,"mac":"%b"}' % (index, canonical, mac.encode())


def lifecycle(folder: Path) -> list[dict[str, Any]]:
    """Events numbered after the chain, by file."""
    return [json.loads(file.read_text())["payload"]["event"] for file in sorted((folder / "lifecycle").glob("*.json"))]


def bus_uids(bus: Path, session_id: str) -> list[str]:
    """Uids on the embedded bus in the order in which they came, repeats and all."""
    with sqlite3.connect(f"file:{bus}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT value FROM records WHERE session = ? ORDER BY position", (session_id,))
        return [json.loads(value)["metadata"]["uid"] for (value,) in rows]


def uids(events: list[dict[str, Any]]) -> list[str]:
    return [event["metadata"]["uid"] for event in events]
