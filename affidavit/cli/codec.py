"""`affidavit codec-server`: decrypts for the Temporal Web UI and CLI."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from affidavit.cli.output import AsJson, Code, CommandError, emit, pairs
from affidavit.evidence.keys import check_secret_text, read_secret_text
from affidavit.evidence.text import printable

if TYPE_CHECKING:
    from aiohttp import web

    from affidavit.codec import EncryptionCodec

TOKEN_FILE_VARIABLE = "AFFIDAVIT_CODEC_TOKEN_FILE"  # noqa: S105 - the name of a variable
TOKEN_VARIABLE = "AFFIDAVIT_CODEC_TOKEN"  # noqa: S105
DEFAULT_ORIGINS = ("http://localhost:8233", "http://127.0.0.1:8233")
"""A dev server's Web UI: a browser takes its two names for two origins."""
LOOPBACK = "127.0.0.1"
PORT = 8234


def codec_server(
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", metavar="URL", help=f"A Web UI that may call; default: {' and '.join(DEFAULT_ORIGINS)}."
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = LOOPBACK,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = PORT,
    without_token: Annotated[
        bool,
        typer.Option("--without-token", metavar="", help="Let in whoever reaches a loopback address."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Decrypt payloads for the Temporal Web UI and CLI; it never encrypts.

    Keys come from AFFIDAVIT_CODEC_KEY_FILES or AFFIDAVIT_CODEC_KEY, the bearer token from a file of mode 0600 named in
    AFFIDAVIT_CODEC_TOKEN_FILE, or from AFFIDAVIT_CODEC_TOKEN. Put TLS in front of it where it does not stay on one
    machine.
    """
    token = _token(host, without_token)
    codec, make = _codec()
    origins = origin or list(DEFAULT_ORIGINS)
    app = make(codec, token=token, origins=origins)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(app, host, port, lambda endpoint: _say(endpoint, codec.key_ids, origins, as_json)))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "no such address"
        raise CommandError(f"cannot listen at {printable(host)}:{port}: {why}", Code.USAGE) from None


def _say(endpoint: str, key_ids: list[str], origins: list[str], as_json: bool) -> None:
    if as_json:
        emit({"endpoint": endpoint, "key_ids": key_ids, "origins": origins})
    else:
        pairs({"codec endpoint": endpoint, "keys": ", ".join(key_ids), "allowed origins": ", ".join(origins)})
    sys.stdout.flush()


async def _serve(app: web.Application, host: str, port: int, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    from aiohttp import web

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        started(f"http://{bound[0]}:{bound[1]}")
        await stop.wait()
    finally:
        await runner.cleanup()


def _codec() -> tuple[EncryptionCodec, Callable[..., web.Application]]:
    """The codec of the environment, and what makes a server of it."""
    try:
        from affidavit.codec_keys import KEY_FILES_VARIABLE, codec_from_environment
        from affidavit.codec_server import codec_app
    except ModuleNotFoundError as error:
        raise CommandError(
            f"this command needs the codec-server extra (affidavit[codec-server]): no {error.name}", Code.UNAVAILABLE
        ) from None
    codec = codec_from_environment()
    if not codec.encrypts:
        raise CommandError(f"no codec key: set {KEY_FILES_VARIABLE}", Code.USAGE)
    return codec, codec_app


def _token(host: str, without_token: bool) -> str | None:
    path, text = os.environ.get(TOKEN_FILE_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if without_token:
        if not _is_loopback(host):
            raise CommandError("--without-token is for a loopback address only", Code.USAGE)
        return None
    if path:
        return read_secret_text(path, setting=TOKEN_FILE_VARIABLE)
    if text:
        return check_secret_text(text.encode("utf-8", "surrogateescape"), name=TOKEN_VARIABLE)
    raise CommandError(
        f"no bearer token: set {TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE}, or pass --without-token", Code.USAGE
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
