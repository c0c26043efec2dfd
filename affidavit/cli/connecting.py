"""Reaching Temporal from a command; the only place where the client is imported, and only when it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from affidavit.cli.output import Code, CommandError
from affidavit.errors import AffidavitError, AffidavitUnavailable, SessionFailed, SessionNotFound, SessionPruned
from affidavit.evidence.text import printable

if TYPE_CHECKING:
    from affidavit.cli.embedded import Embedded
    from affidavit.client import SessionClient, SessionHandle
    from affidavit.contract import SessionOutcome

HOST = "localhost"
PORT = 7233
ADDRESS_VARIABLE = "TEMPORAL_ADDRESS"
WEB_UI_VARIABLE = "AFFIDAVIT_WEB_UI"
DEFAULT_WEB_UI = "http://localhost:8233"
PROBE_LIMIT_S = 5.0
ANSWER_LIMIT_S = 5.0
OPEN_LIMIT_S = 60.0
"""A command has nothing better to do than to wait for a loaded machine."""


async def connect(*, store: Path | None = None, answer_limit: float = OPEN_LIMIT_S) -> SessionClient:
    """A client as the environment says.

    Args:
        store: the evidence store's directory, where this machine has it.
        answer_limit: seconds within which a session has to answer what it can answer at once.

    Raises:
        CommandError: the client's extra is not installed.
        AffidavitUnavailable: no server answers.
    """
    if not configured() and not _listens():
        # Asked here because the client waits some seconds for a server that is about to come up.
        raise AffidavitUnavailable(f"no Temporal server answers at {HOST}:{PORT}; `affidavit dev` starts one")
    return await _client().connect(admit_timeout=answer_limit, store=store)


async def connect_embedded(embedded: Embedded) -> SessionClient:
    """A client of our own embedded mode, whatever connection the environment describes."""
    make = _client()
    from temporalio.client import Client

    from affidavit.codec_keys import codec_from_environment
    from affidavit.converter import data_converter
    from affidavit.stores.local import DirectoryStore

    store = DirectoryStore(Path(embedded.store), create=False)
    converter = data_converter(store, codec_from_environment())
    temporal = await Client.connect(embedded.address, namespace=embedded.namespace, data_converter=converter)
    return make(temporal, task_queue=embedded.task_queue, admit_timeout=OPEN_LIMIT_S, store=store)


def _client() -> type[SessionClient]:
    try:
        from affidavit.client import SessionClient
    except ModuleNotFoundError as error:
        raise CommandError(
            f"this command talks to Temporal and needs the client extra (affidavit[client]): no {error.name}",
            Code.UNAVAILABLE,
        ) from None
    return SessionClient


def configured() -> str | None:
    """The server that the environment or Temporal's own configuration file names, if one does."""
    if address := os.environ.get(ADDRESS_VARIABLE):
        return address
    try:
        from temporalio.envconfig import ClientConfig
    except ModuleNotFoundError:
        return None
    return ClientConfig.load_client_connect_config().get("target_host")


def _listens() -> bool:
    try:
        with socket.create_connection((HOST, PORT), timeout=PROBE_LIMIT_S):
            return True
    except OSError:
        return False


def address_of(client: SessionClient) -> str:
    """The server that a client is connected to."""
    return client.temporal.service_client.config.target_host


async def served() -> bool:
    """Whether a server with a worker of ours answers at the default address."""
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            return await (await connect()).task_queue_polled()
    except (AffidavitError, TimeoutError):
        return False


async def require_worker(client: SessionClient) -> None:
    """Say that there is no worker, where a query or an update would wait for one in vain."""
    if not await client.task_queue_polled():
        raise AffidavitUnavailable(
            f"no worker polls task queue {printable(client.task_queue)}; `python -m workers` starts one"
        )


async def lives_on(client: SessionClient, session: str) -> str | None:
    """The task queue of a session that runs, which need not be the client's; None of one that does not run.

    Raises:
        AffidavitUnavailable: the server does not answer.
    """
    from temporalio.client import WorkflowExecutionStatus

    from affidavit.rpc import SHORT_CALL, translated

    try:
        with translated(session):
            found = await client.temporal.get_workflow_handle(session).describe(rpc_timeout=SHORT_CALL)
    except SessionNotFound:
        return None
    return found.task_queue if found.status is WorkflowExecutionStatus.RUNNING else None


async def require_runner(client: SessionClient, session: str) -> str | None:
    """Say so where a session runs and nobody polls its task queue, so that it would be waited for in vain.

    Returns:
        its task queue, None of one that does not run.
    """
    from affidavit.pollers import WORKFLOWS, pollers
    from affidavit.rpc import translated

    queue = await lives_on(client, session)
    if queue is None:
        return None
    with translated(session):
        polled = await pollers(client.temporal, queue, WORKFLOWS)
    if not polled:
        raise AffidavitUnavailable(
            f"session {printable(session)} runs on task queue {printable(queue)}, which no worker polls; "
            "`python -m workers` starts one, for the queue in AFFIDAVIT_TASK_QUEUE"
        )
    return queue


@contextlib.contextmanager
def known(session: str) -> Iterator[None]:
    """What Temporal does not know at all is not just "not running"."""
    try:
        yield
    except SessionPruned:
        raise
    except SessionNotFound:
        raise CommandError(f"no session {printable(session)} on the Temporal server") from None


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Around calls that are about no session in particular.

    Raises:
        AffidavitUnavailable: the server does not answer, or has no such namespace.
        CommandError: it refuses.
    """
    from temporalio.service import RPCError

    from affidavit.rpc import translated

    try:
        with translated("-"):
            yield
    except (SessionFailed, SessionNotFound) as error:
        said = error.__cause__.message if isinstance(error.__cause__, RPCError) else str(error)
        raise CommandError(f"the Temporal server refuses: {printable(said, 200)}") from error


async def ended(handle: SessionHandle) -> SessionOutcome | None:
    """The outcome of a session that has ended, None of one that runs. Needs no worker."""
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            return await handle.result()
    except TimeoutError:
        return None


def web_ui() -> str | None:
    """Where the Web UI of a server that we did not start is: as configured, else a dev server's own place."""
    at_default = configured() in (None, f"{HOST}:{PORT}", f"127.0.0.1:{PORT}")
    return os.environ.get(WEB_UI_VARIABLE) or (DEFAULT_WEB_UI if at_default else None)


def execution_address(ui: str, namespace: str, session_id: str, generation: str) -> str:
    """The Web UI's page of one session."""
    place = f"namespaces/{quote(namespace, safe='')}/workflows/{quote(session_id, safe='')}"
    return f"{ui.rstrip('/')}/{place}/{quote(generation, safe='')}/history"
