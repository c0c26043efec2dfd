"""I6: Temporal's own tools read an encrypted session through the codec server, and not without it."""

from __future__ import annotations

import asyncio
import base64
import re

from aiohttp.test_utils import TestServer

from affidavit.codec import EncryptionCodec
from affidavit.codec_server import codec_app
from tests.support.encrypted import KEY_A, with_keys
from tests.support.rig import Rig
from tests.support.taps import LIMIT_S
from workers.devserver import DevServer, find_server

TOKEN = "a-token-of-twenty-six-chars"
PLANTED = "planted-4d1e"
_DATA = re.compile(r'"data": "([A-Za-z0-9+/=]*)"')


async def show(address: str, session_id: str, *options: str) -> str:
    """Text of all payloads that Temporal's command line shows of a session, and what it says beside them."""
    arguments = ["workflow", "show", "--address", address, "--workflow-id", session_id, "--output", "json"]
    running = await asyncio.create_subprocess_exec(
        str(find_server()), *arguments, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(running.communicate(), LIMIT_S)
    text = output.decode()
    return "\n".join([text, *(base64.b64decode(data).decode("latin-1") for data in _DATA.findall(text))])


async def test_i6_temporals_command_line_reads_what_the_codec_server_lets_it(rig: Rig, server: DevServer) -> None:
    rig = with_keys(rig, KEY_A)
    async with rig.worker():
        session = await rig.open()
        await session.submit({"kind": "tool_result", "content": PLANTED})
        await session.close()
    async with TestServer(codec_app(EncryptionCodec([KEY_A]), token=TOKEN, origins=[])) as codec:
        endpoint = ("--codec-endpoint", str(codec.make_url("")).rstrip("/"))
        assert PLANTED in await show(server.address, session.session_id, *endpoint, "--codec-auth", f"Bearer {TOKEN}")
        assert PLANTED not in await show(server.address, session.session_id, *endpoint, "--codec-auth", "Bearer no")
    plain = await show(server.address, session.session_id)
    assert PLANTED not in plain
    assert "affidavit-key-id" in plain
