"""I6: the codec server decrypts for those who may read, and does nothing else."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer
from temporalio.api.common.v1 import Payload

from affidavit.codec import EncryptionCodec
from affidavit.codec_server import BODY_BYTES, codec_app
from tests.support.encrypted import KEY_A, KEY_B, KEY_C
from tests.support.processes import line, process

TOKEN = "a-token-of-twenty-six-chars"
UI = "http://localhost:8233"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"planted"')

Asking = TestClient[Any, Any]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Asking]:
    app = codec_app(EncryptionCodec([KEY_A, KEY_B]), token=TOKEN, origins=[UI])
    async with TestClient(TestServer(app)) as client:
        yield client


def form(payload: Payload) -> dict[str, Any]:
    """A payload as Temporal's JSON has it."""
    metadata = {key: base64.b64encode(value).decode() for key, value in payload.metadata.items()}
    return {"metadata": metadata, "data": base64.b64encode(payload.data).decode()}


async def sealed(key: bytes) -> dict[str, Any]:
    (payload,) = await EncryptionCodec([key]).encode([PLAIN])
    return form(payload)


async def ask(server: Asking, *payloads: object, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
    async with server.post("/decode", json={"payloads": payloads}, headers={**ALLOWED, **headers}) as answer:
        return answer.status, await answer.json(), answer.headers


async def test_i6_payloads_are_opened_and_one_of_another_key_hides_no_other(server: Asking) -> None:
    foreign = await sealed(KEY_C)
    status, answer, headers = await ask(server, await sealed(KEY_A), foreign, await sealed(KEY_B), form(PLAIN))
    assert status == 200
    assert answer == {"payloads": [form(PLAIN), foreign, form(PLAIN), form(PLAIN)]}
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer \xff"]
)
async def test_i6_without_the_token_nothing_is_said(server: Asking, shown: str | None) -> None:
    headers = {} if shown is None else {"Authorization": shown}
    payload = await sealed(KEY_A)
    async with server.post("/decode", json={"payloads": [payload]}, headers=headers) as answer:
        assert answer.status == 401
        assert "planted" not in await answer.text()


async def test_i6_a_page_of_another_origin_is_refused_token_or_not(server: Asking) -> None:
    status, answer, headers = await ask(server, await sealed(KEY_A), Origin="http://evil.example")
    assert (status, answer) == (403, {"message": "origin not allowed"})
    assert "Access-Control-Allow-Origin" not in headers
    async with server.options("/decode", headers={"Origin": "http://evil.example"}) as preflight:
        assert preflight.status == 403


async def test_i6_the_web_ui_gets_its_preflight_and_its_answer(server: Asking) -> None:
    asked = {"Origin": UI, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-namespace"}
    async with server.options("/decode", headers=asked) as preflight:
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == UI
        assert preflight.headers["Access-Control-Allow-Methods"] == "POST"
        assert "x-namespace" in preflight.headers["Access-Control-Allow-Headers"]
        assert "authorization" in preflight.headers["Access-Control-Allow-Headers"]
    status, answer, headers = await ask(server, await sealed(KEY_A), Origin=UI)
    assert (status, answer) == (200, {"payloads": [form(PLAIN)]})
    assert headers["Access-Control-Allow-Origin"] == UI


async def test_i6_it_only_decodes(server: Asking) -> None:
    for path in ("/encode", "/", "/decode/x"):
        async with server.post(path, json={"payloads": []}, headers=ALLOWED) as answer:
            assert answer.status == 404
    async with server.get("/decode", headers=ALLOWED) as answer:
        assert answer.status == 405


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[]", b"null", b'{"payloads": 1}', b'{"payloads": [{"data": 7}]}', b"[" * 100_000, b"\xff"],
)
async def test_i6_what_is_no_list_of_payloads_is_refused(server: Asking, body: bytes) -> None:
    async with server.post("/decode", data=body, headers=ALLOWED) as answer:
        assert (answer.status, await answer.json()) == (400, {"message": "not a list of payloads"})


async def test_i6_a_body_over_the_limit_is_refused(server: Asking) -> None:
    async with server.post("/decode", data=b" " * (BODY_BYTES + 1), headers=ALLOWED) as answer:
        assert answer.status == 413


async def test_i6_more_payloads_than_a_page_has_are_refused(server: Asking) -> None:
    for number, expected in ((10_000, 200), (10_001, 413)):
        async with server.post(
            "/decode", data=b'{"payloads":[%s]}' % b",".join([b"{}"] * number), headers=ALLOWED
        ) as got:
            answer = await got.json()
            assert got.status == expected
    assert answer == {"message": "more than 10000 payloads"}


async def test_i6_other_callers_do_not_wait_while_payloads_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    codec = EncryptionCodec([KEY_A])

    def held(payload: Payload) -> Payload:
        entered.set()
        assert leave.wait(30)
        return payload

    monkeypatch.setattr(codec, "open_blocking", held)
    async with TestClient(TestServer(codec_app(codec, token=TOKEN, origins=[UI]))) as client:
        slow = asyncio.create_task(ask(client, form(PLAIN)))
        try:
            assert await asyncio.to_thread(entered.wait, 30)
            async with client.get("/decode", headers=ALLOWED) as answer:
                assert answer.status == 405
            assert not slow.done()
        finally:
            leave.set()
        assert (await slow)[0] == 200


def environment(**changes: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AFFIDAVIT_")}
    return {**own, **changes}


async def test_i6_the_command_serves_on_loopback_with_a_token_from_a_file(tmp_path: Path) -> None:
    key, token = tmp_path / "codec.key", tmp_path / "token"
    key.write_bytes(KEY_A)
    token.write_text(f"{TOKEN}\n")
    for file in (key, token):
        file.chmod(0o600)
    env = environment(AFFIDAVIT_CODEC_KEY_FILES=str(key), AFFIDAVIT_CODEC_TOKEN_FILE=str(token))
    command = ("-m", "affidavit.cli", "codec-server", "--port", "0")
    async with process(command, env, tmp_path / "log") as running:
        endpoint = (await line(running)).split()[-1]
        assert (await line(running)).split() == ["keys", "3e9cd380a6ffffed"]
        assert (await line(running)).split()[2:] == ["http://localhost:8233,", "http://127.0.0.1:8233"]
        assert endpoint.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession() as session:
            by_number, foreign = ({**ALLOWED, "Origin": f"http://{host}"} for host in ("127.0.0.1:8233", "evil:8233"))
            for headers, status in ((ALLOWED, 200), (by_number, 200), ({}, 401), (foreign, 403)):
                async with session.post(
                    f"{endpoint}/decode", json={"payloads": [await sealed(KEY_A)]}, headers=headers
                ) as answer:
                    assert answer.status == status
        running.terminate()
        assert await running.wait() == 0
    log = (tmp_path / "log").read_bytes()
    assert TOKEN.encode() not in log
    assert b"planted" not in log


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        ((), {"AFFIDAVIT_CODEC_TOKEN": TOKEN}, "no codec key: set AFFIDAVIT_CODEC_KEY_FILES"),
        ((), {"AFFIDAVIT_CODEC_KEY": KEY_A.hex()}, "no bearer token"),
        ((), {"AFFIDAVIT_CODEC_TOKEN": "short"}, "AFFIDAVIT_CODEC_TOKEN does not hold 16 to 512 printable"),
        (("--host", "0.0.0.0", "--without-token"), {}, "--without-token is for a loopback address only"),
    ],
)
def test_i6_it_does_not_start_without_a_key_or_unguarded(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    changes: dict[str, str],
    said: str,
) -> None:
    from affidavit.cli.app import run

    for name in list(os.environ):
        if name.startswith("AFFIDAVIT_"):
            monkeypatch.delenv(name)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert run(["codec-server", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "short" not in error.replace("AFFIDAVIT", "")
