"""`affidavit show`, `close` and `receipt`: one session, by Temporal or from its evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from affidavit.cli.connecting import connect, ended, execution_address, require_worker, web_ui
from affidavit.cli.evidence import Life, checked_session, find
from affidavit.cli.output import (
    DATA_DIR,
    AsJson,
    Code,
    CommandError,
    DataDir,
    Generation,
    emit,
    emit_text,
    line,
    note,
    pairs,
    plain,
    table,
)
from affidavit.contract import SessionOutcome, SessionView
from affidavit.errors import AffidavitUnavailable, SessionNotFound
from affidavit.evidence.receipt import to_bytes
from affidavit.evidence.text import printable

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session id.")]
MICROS = 1_000_000


def show(session: SessionId, data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """Show a session as it stands; one that Temporal does not know any more from its sealed outcome."""
    checked_session(session)
    try:
        view, namespace = asyncio.run(_view(session))
    except (CommandError, AffidavitUnavailable, SessionNotFound):
        life = find(session, None, [data_dir])
        outcome = life.outcome() if life else None
        if life is None or outcome is None:
            raise
        if as_json:
            emit({"source": "evidence store", "outcome": outcome})
            return
        note(f"from the sealed outcome in {plain(life.folder)}")
        show_outcome(SessionOutcome.model_validate(outcome))
        return
    if as_json:
        emit({"source": "temporal", "view": view.model_dump(mode="json", exclude_none=True)})
    else:
        _show_view(view, namespace)


async def _view(session: str) -> tuple[SessionView, str]:
    client = await connect()
    await require_worker(client)
    return await client.handle(session).view(), client.temporal.namespace


def _show_view(view: SessionView, namespace: str) -> None:
    ui = web_ui()
    stalled = f"{view.stalled.stage} since {view.stalled.since}" if view.stalled else None
    pairs(
        {
            "session": view.session_id,
            "generation": view.generation,
            "state": view.state,
            "mode": view.mode,
            "agent": f"{view.agent.charter} {view.agent.version} ({view.agent.instance_uid})",
            "steps": view.steps,
            "queued": view.queue_depth,
            "events": f"{view.event_count}, published through {view.published_through}",
            "chain head": view.chain_head,
            **_totals(view.totals.model_dump()),
            "loop breaker": "open" if view.breaker_open else f"closed, streak {view.breaker_streak}",
            "rejected": view.rejected or None,
            "repeated": view.repeated or None,
            "late steps": view.late_steps or None,
            "poisoned": view.poisoned,
            "stalled": stalled,
            "Web UI": execution_address(ui, namespace, view.session_id, view.generation) if ui else None,
        }
    )
    if view.recent:
        line("")
        table(("", str(each.sequence), each.action, "ok" if each.status_id == 1 else "failed") for each in view.recent)


def close(session: SessionId, as_json: AsJson = False) -> None:
    """Close a session and wait for its outcome; exit 1 if it ended quarantined."""
    outcome = asyncio.run(_close(checked_session(session)))
    if as_json:
        emit(outcome.model_dump(mode="json", exclude_none=True))
    else:
        show_outcome(outcome)
    require_good(outcome)


async def _close(session: str) -> SessionOutcome:
    client = await connect()
    handle = client.handle(session)
    if not await client.task_queue_polled():
        # Without a worker nothing can be closed, but what has ended can still be told.
        if (outcome := await ended(handle)) is not None:
            return outcome
        await require_worker(client)
    return await handle.close()


def receipt(
    session: SessionId,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there.")] = None,
    generation: Generation = None,
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Print a session's receipt, or write it to a file: from the data folder if it is there, else from Temporal."""
    life = find(checked_session(session), generation, [data_dir])
    data = _stored_receipt(life)
    if data is None and generation is not None:
        raise CommandError(f"no receipt of that generation in {plain(data_dir)}")
    if data is None:
        data = to_bytes(asyncio.run(_receipt(session)))
    if output is None:
        emit_text(data.decode(errors="backslashreplace"))
        return
    try:
        with output.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise CommandError(f"{printable(output.name)} exists") from None
    if as_json:
        emit({"session_id": session, "file": str(output), "bytes": len(data)})
    else:
        line(f"{printable(plain(output), 200)}: receipt of session {printable(session)}")


def _stored_receipt(life: Life | None) -> bytes | None:
    try:
        return None if life is None else (life.folder / "receipt.json").read_bytes()
    except FileNotFoundError:
        return None


async def _receipt(session: str) -> Mapping[str, Any]:
    client = await connect()
    handle = client.handle(session)
    if await ended(handle) is None:
        raise CommandError(f"session {printable(session)} has not ended; `affidavit close` ends it")
    return await handle.receipt()


def require_good(outcome: SessionOutcome) -> None:
    """Fail where a session ended without evidence that anybody could sign.

    Raises:
        CommandError: quarantined or abandoned.
    """
    if outcome.status not in ("closed", "cancelled"):
        why = f": {printable(outcome.reason, 200)}" if outcome.reason else ""
        raise CommandError(f"session {printable(outcome.session_id)} ended {outcome.status}{why}", Code.FAILED)


def show_outcome(outcome: SessionOutcome) -> None:
    """Print how a session ended."""
    pairs(outcome_rows(outcome))


def outcome_rows(outcome: SessionOutcome) -> dict[str, Any]:
    """Names and values of an outcome, in the order in which they are shown."""
    return {
        "session": outcome.session_id,
        "generation": outcome.generation,
        "status": outcome.status,
        "reason": outcome.reason,
        "steps reported": outcome.steps,
        "events": outcome.event_count,
        **_totals(outcome.totals.model_dump()),
        "stop reason": outcome.stop_reason,
        "rejected": outcome.rejected or None,
        "repeated": outcome.repeated or None,
        "late steps": outcome.late_steps or None,
        "published": "yes" if outcome.published else "no",
        "receipt": outcome.receipt_id,
        "chain head": outcome.chain_head,
        "trajectory": outcome.trajectory_digest,
    }


def _totals(totals: Mapping[str, int]) -> dict[str, str]:
    blocked = f", {totals['tool_blocked']} blocked" if totals["tool_blocked"] else ""
    return {
        "tool calls": f"{totals['tool_calls']}{blocked}",
        "tokens": f"{totals['prompt_tokens']} prompt ({totals['cached_tokens']} cached), "
        f"{totals['completion_tokens']} completion",
        "cost": f"{totals['cost_usd_micros'] // MICROS}.{totals['cost_usd_micros'] % MICROS:06d} USD",
    }
