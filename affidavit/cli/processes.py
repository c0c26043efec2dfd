"""`affidavit list`, `tail`, `wait`, `cancel` and `abandon`: sessions as processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from affidavit import contract
from affidavit.cli.audit import duration_ms
from affidavit.cli.connecting import answering, connect, known, require_runner
from affidavit.cli.evidence import STORE, checked_session
from affidavit.cli.output import DATA_DIR, AsJson, Code, CommandError, DataDir, emit, line, pairs
from affidavit.cli.sessions import SessionId, require_good, sealed_outcome, show_outcome
from affidavit.contract import SessionOutcome
from affidavit.errors import AffidavitUnavailable, SessionNotFound
from affidavit.evidence.scalars import iso_ms
from affidavit.evidence.text import printable
from affidavit.process_api import AbandonRequested, CancelRequested
from affidavit.stores.errors import EvidenceStoreMismatch

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

    from affidavit.client import SessionClient, SessionEvent, SessionProcess

ANSWER_LIMIT_S: Final = 10.0
"""What no worker answers within this time is not answered at all, as far as a command can wait."""
FIRST_LOOK_S: Final = 1.0
NEXT_LOOK_S: Final = 15.0

Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it stands in an event.")]


def list_(
    state: Annotated[Literal["open", "ended", "all"], typer.Option("--state", help="Which of them.")] = "all",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many, at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List sessions, those that were started last first, as Temporal knows them. Needs no worker."""
    rows = asyncio.run(_listed(state, limit))
    if as_json:
        emit(rows)
        return
    for row in rows:
        times = f"started {row['started']}" + (f", ended {row['ended']}" if row["ended"] else "")
        line(f"{row['state']:<11}  {printable(row['session_id'], 128)}  {times}")


async def _listed(state: str, limit: int) -> list[dict[str, Any]]:
    client = await connect()
    which = {"open": "= 'Running'", "ended": "NOT IN ('Running', 'ContinuedAsNew')", "all": "!= 'ContinuedAsNew'"}
    query = f"WorkflowType = '{contract.SESSION_WORKFLOW}' AND ExecutionStatus {which[state]}"
    with answering():
        return [await _row(each) async for each in client.temporal.list_workflows(query, limit=limit)]


async def _row(execution: WorkflowExecution) -> dict[str, Any]:
    remembered = (await execution.memo()).get(contract.MEMO_OUTCOME)
    if isinstance(remembered, Mapping):
        state = str(remembered.get("status"))
    else:
        name = execution.status.name if execution.status else "UNKNOWN"
        state = {"RUNNING": "open", "TERMINATED": "abandoned", "TIMED_OUT": "abandoned"}.get(name, name.lower())
    return {
        "session_id": execution.id,
        "state": state,
        "run_id": execution.run_id,
        "started": _time(execution.start_time),
        "ended": _time(execution.close_time),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else iso_ms(int(moment.timestamp() * 1000))


def tail(
    session: SessionId,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many events.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with what comes, until the session has ended.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Print a session's last events: from a worker, or from the data folder's evidence once it has ended.

    Without a server those of one that has ended are still told, from there. With --json one object a line. --follow is
    a live feed: a slow reader may miss events.
    """
    asyncio.run(_tail(checked_session(session), count, follow, data_dir, as_json))


async def _tail(session: str, count: int, follow: bool, data_dir: Path, as_json: bool) -> None:
    try:
        client = await _connected(data_dir)
    except (CommandError, AffidavitUnavailable) as error:
        for event in _stored_events(session, count, data_dir, error):
            _show(event, as_json)
        return
    process = await _answerable(client, session)
    with known(session):
        shown = await process.recent_events(count)
    for event in shown:
        _show(event, as_json)
    if follow:
        feed: AsyncIterator[SessionEvent] = process.watch(shown[-1].cursor if shown else None)
        async with aclosing(feed) as coming:  # type: ignore[type-var]
            async for event in coming:
                _show(event, as_json)


def _stored_events(session: str, count: int, data_dir: Path, error: Exception) -> list[SessionEvent]:
    """The last events of a session that has ended, as the data folder has them, where nobody answers for `error`.

    Raises:
        CommandError: the evidence of it has no end.
    """
    outcome = sealed_outcome(session, data_dir, error)
    try:
        from affidavit.eventlog import SessionEvent
        from affidavit.stored import StoredSession
        from affidavit.stores.local import DirectoryStore

        stored = StoredSession(DirectoryStore(data_dir / STORE, create=False), session)
    except (ModuleNotFoundError, EvidenceStoreMismatch):
        raise error from None
    after = max(stored.last(outcome.generation) - count, -1)
    return [
        SessionEvent(**event.model_dump(), generation=outcome.generation)
        for event in stored.after(outcome.generation, after)
    ]


def _show(event: SessionEvent, as_json: bool) -> None:
    if as_json:
        line(event.model_dump_json(exclude_none=True))
        return
    action = event.action if event.type is None else f"{event.action}:{event.type}"
    line(f"{event.sequence:>6}  {iso_ms(event.time)}  {'ok' if event.status_id == 1 else 'failed':<6}  {action}")


def wait(
    session: SessionId,
    timeout: Annotated[
        int | None,
        typer.Option("--timeout", metavar="AGE", parser=duration_ms, help="How long to wait (90s, 15m)."),
    ] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Wait for a session's end and print its outcome; exit 1 if it ended quarantined or abandoned.

    One that has ended is told without a worker, and from the data folder's evidence once Temporal has forgotten it or
    does not answer. Exit 4 if it runs and no worker can run it.
    """
    outcome = asyncio.run(_waited(checked_session(session), timeout, data_dir))
    if as_json:
        emit(outcome.model_dump(mode="json", exclude_none=True))
    else:
        show_outcome(outcome)
    require_good(outcome)


async def _waited(session: str, timeout_ms: int | None, data_dir: Path) -> SessionOutcome:
    try:
        client = await _connected(data_dir)
    except (CommandError, AffidavitUnavailable) as error:
        return sealed_outcome(session, data_dir, error)
    process = await _answerable(client, session)
    limit = None if timeout_ms is None else timeout_ms / 1000
    waiting = asyncio.ensure_future(process.result())
    try:
        async with asyncio.timeout(limit):
            pause = FIRST_LOOK_S
            while not (await asyncio.wait({waiting}, timeout=pause))[0]:
                await process.terminal_state()  # says so if there is no worker to wait for
                pause = NEXT_LOOK_S
            with known(session):
                return waiting.result()
    except TimeoutError:
        raise CommandError(f"session {printable(session)} has not ended within {limit:g} s", Code.FAILED) from None
    finally:
        waiting.cancel()


def cancel(session: SessionId, reason: Reason = None, as_json: AsJson = False) -> None:
    """Ask a session to end as cancelled: it drains, seals and ends. The first reason stands."""
    _requested(asyncio.run(_cancel(checked_session(session), reason)), session, "cancel", as_json)


async def _cancel(session: str, reason: str | None) -> CancelRequested:
    process = await _process(session)
    async with _running(process):
        return await process.request_cancel(reason)


def abandon(
    session: SessionId,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who says that the owner is gone.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it stands in an event.")],
    as_json: AsJson = False,
) -> None:
    """Say that a session's owner is gone. It ends abandoned after a silence of its owner_lapse; a report revives it."""
    _requested(asyncio.run(_abandon(checked_session(session), by, reason)), session, "abandon", as_json)


async def _abandon(session: str, by: str, reason: str) -> AbandonRequested:
    process = await _process(session)
    async with _running(process):
        return await process.request_abandon(by=by, reason=reason)


@asynccontextmanager
async def _running(process: SessionProcess) -> AsyncIterator[None]:
    """Tells how a session has ended that is asked to end, and that there is none where that is so."""
    try:
        yield
    except SessionNotFound as error:
        with known(process.session_id):
            outcome = await process.result()
        raise CommandError(f"session {printable(process.session_id)} has ended: {outcome.status}") from error


def _requested(request: CancelRequested | AbandonRequested, session: str, what: str, as_json: bool) -> None:
    if as_json:
        emit(request.model_dump(mode="json", exclude_none=True))
        return
    facts = request.model_dump(exclude_none=True)
    pairs({"session": session, f"{what} requested": iso_ms(facts.pop("time")), **facts})


async def _process(session: str) -> SessionProcess:
    return await _answerable(await connect(answer_limit=ANSWER_LIMIT_S), session)


async def _connected(data_dir: Path) -> SessionClient:
    """A client that shares the data folder's store, if there is one."""
    store = data_dir / STORE
    return await connect(store=store if store.is_dir() else None, answer_limit=ANSWER_LIMIT_S)


async def _answerable(client: SessionClient, session: str) -> SessionProcess:
    """The session, if somebody can answer for it: it has ended, or its own task queue is polled."""
    await require_runner(client, session)
    return client.process(session)
