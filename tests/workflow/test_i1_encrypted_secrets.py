"""I1: codec keys and tokens, and what they conceal, are in nothing that a worker writes or sends."""

from __future__ import annotations

import asyncio
import secrets
import urllib.request
import uuid
from pathlib import Path

import pytest

from affidavit.contract import SIGNAL_RECORD
from affidavit.converter import raw_json
from tests.support.encrypted import with_keys
from tests.support.ports import free_port
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from tests.workflow.test_i6_encryption import sealed_signal, stored_in_temporal
from tests.workflow.test_i_security import command_line_of, leaked, written_below
from workers.devserver import DevServer

PLANTED = "planted-b7a2"
CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": PLANTED}}


@pytest.mark.parametrize("source", ["file", "environment"])
async def test_i1_codec_keys_and_texts_are_in_no_log_no_metric_and_no_history(
    rig: Rig, server: DevServer, tmp_path: Path, source: str
) -> None:
    """Over a session that ends well, one that is spoilt, and messages of an unknown key; the log at its chattiest."""
    key, unknown, port = secrets.token_bytes(32), secrets.token_bytes(32), free_port()
    key_file = tmp_path / "codec.key"
    key_file.write_bytes(key)
    key_file.chmod(0o600)
    keys = {"AFFIDAVIT_CODEC_KEY_FILES": str(key_file)} if source == "file" else {"AFFIDAVIT_CODEC_KEY": key.hex()}
    env = environment(
        rig,
        server.address,
        **keys,
        AFFIDAVIT_PROMETHEUS=f"127.0.0.1:{port}",
        AFFIDAVIT_LOG_FORMAT="json",
        AFFIDAVIT_LOG_LEVEL="DEBUG",
    )
    plain, rig = rig.client.temporal, with_keys(rig, key)
    ids = [str(uuid.uuid4()), str(uuid.uuid4())]
    log = tmp_path / "worker.log"
    async with process(WORKERS, env, log) as worker:
        good = await rig.open(session_id=ids[0])
        await good.submit(CALL)
        workflow = plain.get_workflow_handle(ids[0])
        await workflow.signal(SIGNAL_RECORD, await sealed_signal(unknown))
        await workflow.signal(SIGNAL_RECORD, raw_json(b'{"steps": [{"kind": "nonsense", "x": "planted-plain"}]}'))
        assert (await good.close()).status == "closed"
        bad = await rig.open(session_id=ids[1])
        (rig.folder(ids[1]) / "journal/000000000001.ndjson").write_bytes(b"spoilt\n")
        await bad.record(CALL)
        assert (await bad.close()).status == "quarantined"

        def scrape() -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                found: bytes = answer.read()
            return found

        metrics = await asyncio.to_thread(scrape)
        command_line = command_line_of(worker.pid)
        worker.terminate()
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
    texts = {"metrics": metrics, "command line": command_line, "log": log.read_bytes()}
    for session_id in ids:
        texts[f"Temporal's record of {session_id}"] = await stored_in_temporal(rig, session_id)
    for name, text in texts.items():
        assert PLANTED.encode() not in text, f"the text is in {name}"
    texts |= written_below(tmp_path, but={key_file})
    assert b"affidavit.stages" in texts["log"]
    assert b"cannot be opened" in texts["log"]
    assert b"affidavit_quarantines_total" in texts["metrics"]
    for name, text in texts.items():
        assert not leaked(key, text), f"the codec key is in {name}"
        assert not leaked(unknown, text), f"another's key is in {name}"
