"""A codec server: decrypts payloads for the Temporal Web UI and CLI, for those who are allowed to read (I6).

One call, as Temporal's remote codecs have it: `POST /decode` with `{"payloads": [{"metadata": {…}, "data": …}]}`,
bytes as base64, answered in the same form. There is no encode: nothing here can write.

Who asks must show the bearer token. A browser's page must also come from an allowed origin, and that is checked
before the token, so that a page from elsewhere learns nothing. A payload that cannot be opened is given back as it
came: one of another key must not hide the others.

Needs the `codec-server` extra (aiohttp).
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiohttp import web
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from temporalio.api.common.v1 import Payloads

from affidavit.codec import EncryptionCodec

logger = logging.getLogger(__name__)

BODY_BYTES: Final = 16 * 1024 * 1024
"""A request, at most: Temporal's own answers are smaller."""

PAYLOADS: Final = 10_000
"""Of a request, at most: the Web UI asks for those of one page of a history, each event of which has a few."""

_HEADERS: Final = "authorization, content-type, x-namespace"
_PREFIX: Final = b"Bearer "

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def codec_app(codec: EncryptionCodec, *, token: str | None, origins: Collection[str]) -> web.Application:
    """The server as an application.

    Args:
        codec: with the keys to open with.
        token: what a caller must show as `Authorization: Bearer …`; None lets everybody in who reaches it.
        origins: of the Web UIs whose pages may call, such as `http://localhost:8233`.
    """
    guard = _Guard(token, frozenset(origins))

    async def decode(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            # In a thread, reading and writing too: other callers must not wait for a large one.
            text = await asyncio.to_thread(_decoded, codec, body)
        except _TooMany:
            return web.json_response({"message": f"more than {PAYLOADS} payloads"}, status=413)
        except (ValueError, ParseError):
            return web.json_response({"message": "not a list of payloads"}, status=400)
        return web.json_response(text=text)

    app = web.Application(client_max_size=BODY_BYTES, middlewares=[guard.middleware])
    app.router.add_post("/decode", decode)
    app.router.add_route("OPTIONS", "/decode", guard.preflight)
    return app


class _Guard:
    """Who may call."""

    def __init__(self, token: str | None, origins: frozenset[str]) -> None:
        self._token = None if token is None else token.encode("ascii")
        self._origins = origins

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            return web.json_response({"message": "origin not allowed"}, status=403)
        # A preflight never carries a token.
        if request.method != "OPTIONS" and not self._shown(request):
            response: web.StreamResponse = web.json_response({"message": "no valid bearer token"}, status=401)
        else:
            response = await _answered(handler, request)
        if origin is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Credentials"] = "true"
        response.headers["Vary"] = "Origin"
        response.headers["Cache-Control"] = "no-store"
        return response

    async def preflight(self, request: web.Request) -> web.Response:
        """What a browser asks before it sends a page's call."""
        headers = {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": "600",
        }
        return web.Response(status=204, headers=headers)

    def _shown(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(shown, _PREFIX + self._token)


async def _answered(handler: Handler, request: web.Request) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:  # no such path, or a body over the limit: the page must be able to read why
        return web.json_response({"message": error.reason}, status=error.status)


class _TooMany(Exception):
    """More payloads than one request may have."""


def _decoded(codec: EncryptionCodec, body: bytes) -> str:
    """The answer to a request. Raises as `_parse`."""
    opened = [codec.open_blocking(payload) or payload for payload in _parse(body).payloads]
    return json.dumps({"payloads": [MessageToDict(payload) for payload in opened]})


def _parse(body: bytes) -> Payloads:
    """Raises _TooMany, and ValueError or ParseError for what is no list of payloads."""
    try:
        document: Any = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError("not an object")
        listed = document.get("payloads")
        if isinstance(listed, list) and len(listed) > PAYLOADS:
            raise _TooMany
        return ParseDict(document, Payloads(), ignore_unknown_fields=True)
    except (RecursionError, TypeError, AttributeError, binascii.Error):
        raise ValueError("not a list of payloads") from None
