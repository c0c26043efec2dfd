"""`affidavit demo` as a newcomer runs it, and its bundle in the hands of an auditor without our code."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from affidavit.client import SessionClient
from workers.devserver import DevServer

ROOT = Path(__file__).parents[2]
TRUSTED = "keys/public.json"


async def test_the_demo_uses_a_server_of_its_own_whatever_is_configured(server: DevServer, tmp_path: Path) -> None:
    data = tmp_path / "demo"
    foreign = {
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": "nowhere",
        "TEMPORAL_API_KEY": "x",
        "AFFIDAVIT_ROLES": "session",
        "AFFIDAVIT_WEB_UI": "http://elsewhere",
    }
    code, output, errors = await _affidavit("demo", "--data-dir", str(data), **foreign)
    assert code == 0, errors
    assert output.splitlines()[-1] == "receipt: VALID"
    session_id = re.findall(r"^session +(\S+)$", output, re.MULTILINE)[0]
    # Nothing of it is on the configured server, nor any link to its Web UI.
    other = await SessionClient.connect(address=server.address, namespace="default")
    assert [each.id async for each in other.temporal.list_workflows()].count(session_id) == 0
    assert "elsewhere" not in output + errors
    # The next commands are printed as they can be typed, and work with no server at all.
    for printed, expected in {"look at it": "closed", "its events": '"action":"opened"', "verify it": "VALID"}.items():
        typed = re.findall(rf"^{printed} +python -m affidavit\.cli (.*)$", output, re.MULTILINE)[0].split()
        code, said, errors = await _affidavit(*typed, TEMPORAL_ADDRESS="127.0.0.1:1")
        assert (code, expected in said) == (0, True), (typed, said, errors)
        assert str(data) in typed or str(data / TRUSTED) in typed
    _audit(data / f"{session_id}.zip", json.loads((data / TRUSTED).read_bytes()))


def _audit(bundle: Path, trusted: list[dict[str, Any]]) -> None:
    """The bundle's README.txt, step by step, with other people's libraries alone."""
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    recipe = files["README.txt"].decode()
    receipt = json.loads(files["receipt.json"])
    # S1-S4
    assert len(receipt) == 14
    body = rfc8785.dumps({name: value for name, value in receipt.items() if name != "signature_b64"})
    assert receipt["public_key_b64"] in [each["public_key_b64"] for each in trusted]
    key = base64.b64decode(receipt["public_key_b64"])
    assert receipt["key_id"] == hashlib.sha256(key).hexdigest()[:32]
    Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(receipt["signature_b64"]), body)
    # C1-C4
    names = sorted(name for name in files if name.startswith("journal/"))
    events = []
    for line in b"".join(files[name] for name in names).splitlines():
        envelope = json.loads(line)
        assert set(envelope) == {"index", "payload", "mac"}
        events.append(envelope["payload"]["event"])
        assert envelope["index"] == events[-1]["metadata"]["sequence"] == len(events) - 1
    assert '"av-genesis" || session_id' in recipe
    head = hashlib.sha256(b"av-genesis" + receipt["session_id"].encode("ascii")).digest()
    for event in events:
        head = hashlib.sha256(head + rfc8785.dumps(event)).digest()
    assert receipt["subject"] == {"kind": "event_chain", "chain_head": head.hex(), "event_count": len(events)}
    # E1
    assert {event["session_uid"] for event in events} == {receipt["session_id"]}
    assert events[0]["payload"]["action"] == "opened"
    registration = json.loads(files["metadata.json"])["payload"]["registration"]
    digest = hashlib.sha256(rfc8785.dumps(registration)).hexdigest()
    assert events[0]["payload"]["registration_sha256"] == digest
    # E2
    captures = b"".join(files[name.replace("journal", "captures")] for name in names).split(b"\n")[:-1]
    assert len(captures) == len(events)
    for event, capture in zip(events, captures, strict=True):
        stated = event["payload"].get("capture_sha256")
        assert capture == b"{}" if stated is None else hashlib.sha256(capture).hexdigest() == stated
    # E3
    calls = [event["payload"]["allowed"] for event in events if event["payload"]["action"] == "tool_call"]
    assert receipt["tool_calls"] == {"total": len(calls), "allowed": sum(calls), "blocked": len(calls) - sum(calls)}
    ends = [event for event in events if event["payload"]["action"] == "model_response"]
    tokens = ("prompt_tokens", "completion_tokens", "cached_tokens")
    assert receipt["cost"] == {
        **{name: sum(end["metrics"].get(name, 0) for end in ends) for name in tokens},
        "cost_usd_micros": sum(end["payload"]["cost_usd_micros"] for end in ends),
    }


async def _affidavit(*arguments: str, **variables: str) -> tuple[int, str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AFFIDAVIT_", "TEMPORAL_"))}
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "affidavit.cli",
        *arguments,
        cwd=ROOT,
        env={**inherited, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await run.communicate()
    assert run.returncode is not None
    return run.returncode, output.decode(), errors.decode()
