"""The embedded mode as a child process, and `affidavit dev`, which keeps one running.

The child is `python -m workers.dev`: this package never imports a worker. A pipe at the child's standard input ends
it when we end, however we end.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from affidavit import samples
from affidavit.cli.connecting import PORT, WEB_UI_VARIABLE
from affidavit.cli.output import (
    DATA_DIR,
    AsJson,
    Code,
    CommandError,
    DataDir,
    emit,
    hint,
    line,
    note,
    pairs,
    plain,
)
from affidavit.evidence.text import printable

MODULE = "workers.dev"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 20.0
LOOK_UP_S = 0.2
LOG = "embedded.log"
SCRAPS = (LOG, "worker.log", "lock")
"""What even a start that fails leaves in the data folder."""
UI_PORT = 8233


@dataclass(frozen=True, slots=True)
class Embedded:
    """What a running embedded mode says of itself."""

    address: str
    namespace: str
    task_queue: str
    ui: str
    data_dir: str
    keys_dir: str
    store: str
    bus: str


@contextlib.contextmanager
def running(
    data_dir: Path, *, port: int | None = None, ui_port: int | None = None
) -> Iterator[tuple[Embedded, subprocess.Popen[bytes]]]:
    """Start the embedded mode for the length of a block.

    Args:
        data_dir: where it keeps everything; made if missing.
        port, ui_port: free ones if left out.

    Raises:
        CommandError: it did not start; the reason is its own.
    """
    made = [folder for folder in (data_dir, *data_dir.parents) if not folder.exists()]
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise CommandError(f"{printable(data_dir.name)}: not a folder", Code.USAGE) from None
    command = [sys.executable, "-P", "-m", MODULE, "--data-dir", str(data_dir)]
    for option, value in (("--port", port), ("--ui-port", ui_port)):
        command += [] if value is None else [option, str(value)]
    # Its server is its own: settings of another connection (TLS, a profile) must not reach it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    with (data_dir / LOG).open("a+b") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to handle: the child ends after we have finished with it
        )
        try:
            answer = _first_line(process)
            if answer is None:
                log.seek(start)
                raise CommandError(_reason(log.read().decode(errors="replace")), Code.UNAVAILABLE)
            yield _parsed(answer), process
        except KeyboardInterrupt:
            note("stopping…")
            raise
        except _NotStarted:
            _stop(process)
            _take_back(made)
            raise
        finally:
            _stop(process)


def _first_line(process: subprocess.Popen[bytes]) -> bytes | None:
    """The child's one line, or None if it ended or stayed silent for too long."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_LIMIT_S
    read = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in read and selector.select(max(deadline - time.monotonic(), 0)):
            if not (more := os.read(process.stdout.fileno(), 65536)):
                break
            read += more
    return read.partition(b"\n")[0] if b"\n" in read else None


class _NotStarted(CommandError):
    """The child has said itself why it did not start, so its log tells no more."""


def _take_back(made: list[Path]) -> None:
    """Remove the folders that were made for a start that failed, if nothing of worth is in them."""
    with contextlib.suppress(OSError):
        if made and all(each.name in SCRAPS for each in made[0].iterdir()):
            for name in SCRAPS:
                (made[0] / name).unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()


def _parsed(answer: bytes) -> Embedded:
    try:
        document: Any = json.loads(answer)
        if "error" in document:
            code = Code.USAGE if document.get("unusable") else Code.UNAVAILABLE
            raise _NotStarted(f"the embedded mode did not start: {document['error']}", code)
        return Embedded(**{field.name: document[field.name] for field in fields(Embedded)})
    except (ValueError, KeyError, TypeError):
        raise CommandError("the embedded mode gave an answer that is not understood", Code.UNAVAILABLE) from None


def _reason(said: str) -> str:
    last = next((text for text in reversed(said.splitlines()) if text.strip()), "")
    if "No module named" in last and "workers" in last:
        return (
            "the embedded mode needs the worker packages, which come with a clone of the repository; "
            "or set TEMPORAL_ADDRESS to a server with a worker"
        )
    if "No module named" in last:
        return f"the embedded mode needs the worker extra (affidavit[worker]): {printable(last, 120)}"
    why = printable(last, 200) or "no reason given"
    return f"the embedded mode did not start (see {LOG} in the data folder): {why}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()


def dev(
    data_dir: DataDir = DATA_DIR,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help=f"Temporal's port; default: {PORT}, or a free one.")
    ] = None,
    ui_port: Annotated[
        int | None,
        typer.Option("--ui-port", min=1, max=65535, help=f"The Web UI's port; default: {UI_PORT}, or a free one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the embedded mode until Ctrl-C: a dev server with Web UI, a worker, a directory store, a SQLite bus.

    Its data stays in the data folder, so that the next start finds every session again.
    """
    port = _if_free(PORT) if port is None else port
    ui_port = _if_free(UI_PORT) if ui_port is None else ui_port
    with _sigterm_as_interrupt(), contextlib.suppress(KeyboardInterrupt):
        with running(data_dir, port=port, ui_port=ui_port) as (embedded, process):
            _introduce(embedded, data_dir, as_json)
            code = _ended(process)
        raise CommandError(f"the embedded mode ended by itself with exit code {code} (see {LOG} in the data folder)")


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the child's exit code, and look up meanwhile: a signal that comes right before a wait without an end is
    handled by Python after it, which is never."""
    while (code := process.poll()) is None:
        time.sleep(LOOK_UP_S)
    return code


def _introduce(embedded: Embedded, data_dir: Path, as_json: bool) -> None:
    if as_json:
        emit({field.name: getattr(embedded, field.name) for field in fields(Embedded)})
    else:
        line("Affidavit is running; Ctrl-C ends it.", "bold green")
        pairs(
            {
                "address": f"{embedded.address}, namespace {embedded.namespace}",
                "Web UI": embedded.ui,
                "connect with": f"export TEMPORAL_ADDRESS={embedded.address} {WEB_UI_VARIABLE}={embedded.ui}",
                "try": hint("replay", sample(), "--data-dir", data_dir),
                "evidence": plain(Path(embedded.store)),
                "public keys": plain(Path(embedded.keys_dir) / "public.json"),
                "event bus": plain(Path(embedded.bus)),
            }
        )
    sys.stdout.flush()


def sample() -> Path:
    """The run that comes with Affidavit."""
    return Path(str(resources.files(samples).joinpath(samples.SUPPORT_AGENT)))


def _if_free(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
    return port


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
