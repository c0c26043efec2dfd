"""`affidavit show`, `close` and `receipt`: one session, by Temporal or from its evidence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from affidavit.cli.connecting import (
    connect,
    ended,
    execution_address,
    known,
    require_runner,
    require_worker,
    web_ui,
)
from affidavit.cli.evidence import Life, checked_session, find, nowhere
from affidavit.cli.output import (
    DATA_DIR,
    AsJson,
    Code,
    CommandError,
    DataDir,
    Generation,
    StorePlace,
    emit,
    emit_text,
    explained,
    given_place,
    line,
    note,
    pairs,
    plain,
    table,
    totals_rows,
)
from affidavit.contract import SessionOutcome, SessionView
from affidavit.errors import AffidavitUnavailable, SessionFailed, SessionNotFound, SessionPruned
from affidavit.evidence.layout import OUTCOME, RECEIPT
from affidavit.evidence.receipt import to_bytes
from affidavit.evidence.scalars import iso_ms
from affidavit.evidence.text import printable
from affidavit.pruned import Pruned
from affidavit.stores.place import Place
from affidavit.validation import first_error

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session id.")]
SILENT_S = 5.0
"""After so long a command says what it waits for."""
ENDED = ("closed", "cancelled", "quarantined", "abandoned")


@dataclass(frozen=True, slots=True)
class _Look:
    """What there is to show: of a session that runs a view, of one that has ended its outcome too."""

    source: Literal["temporal", "evidence store"]
    view: SessionView | None = None
    outcome: SessionOutcome | None = None
    namespace: str = ""
    pruned: Pruned | None = None

    def document(self) -> dict[str, Any]:
        found = {"view": self.view, "outcome": self.outcome, "pruned": self.pruned}
        dumped = {name: each.model_dump(mode="json", exclude_none=True) for name, each in found.items() if each}
        return {"source": self.source, **dumped}

    def show(self) -> None:
        if self.view is not None:
            _show_view(self.view, self.namespace)
        if self.outcome is not None:
            if self.view is not None:
                line("")
                line("outcome", "bold")
            show_outcome(self.outcome)
        if self.pruned is not None:
            pairs(
                {
                    "session": self.pruned.session_id,
                    "generation": self.pruned.generation,
                    "status": self.pruned.status,
                    "mode": self.pruned.mode,
                    "ended": iso_ms(self.pruned.closed_at),
                    "pruned": f"{iso_ms(self.pruned.erased_at)}: its evidence was erased on purpose",
                }
            )


def show(session: SessionId, data_dir: DataDir = DATA_DIR, store: StorePlace = None, as_json: AsJson = False) -> None:
    """Show a session as it stands, and how it ended; one that Temporal does not know from its sealed outcome.

    One that was pruned is shown from the note that prune has left.
    """
    checked_session(session)
    try:
        look = asyncio.run(_asked(session))
    except (CommandError, AffidavitUnavailable, SessionNotFound) as error:
        look = sealed_look(session, data_dir, given_place(store), error)
    if as_json:
        emit(look.document())
    else:
        look.show()


async def _asked(session: str) -> _Look:
    client = await connect()
    handle = client.handle(session)
    if await require_runner(client, session) is None and not await client.task_queue_polled():
        # Without a worker there is no view, but how it has ended can still be told.
        return _Look("temporal", None, await ended(handle))
    view = await handle.view()
    outcome = None
    if view.state in ENDED:
        with contextlib.suppress(SessionFailed):
            outcome = await ended(handle)
    return _Look("temporal", view, outcome, client.temporal.namespace)


def sealed_look(session: str, data_dir: Path, store: Place | None, error: Exception) -> _Look:
    """What the evidence tells of a session's end, where Temporal could not for the reason `error`.

    Raises:
        CommandError: nothing; it says both.
    """
    life = find(session, None, [data_dir], store)
    sealed = life.outcome() if life else None
    if life is not None and sealed is None and (pruned := life.pruned()) is not None:
        note(f"from what prune has left in {life.shown_folder}")
        return _Look("evidence store", pruned=pruned)
    if life is None or sealed is None:
        asked, code = explained(error) or (str(error), Code.FAILED)
        if isinstance(error, SessionNotFound) and not isinstance(error, SessionPruned):
            asked = f"no session {printable(session)} on the Temporal server"
        what = "evidence" if life is None else "outcome"
        where = nowhere(data_dir, store)
        raise CommandError(f"{asked}; and there is no {what} of this session in {where}", code) from None
    note(f"from the sealed outcome in {life.shown_folder}")
    try:
        return _Look("evidence store", None, SessionOutcome.model_validate(sealed))
    except ValidationError as invalid:
        raise CommandError(f"{OUTCOME} is no outcome: {first_error(invalid)}", Code.USAGE) from None


def sealed_outcome(session: str, data_dir: Path, error: Exception) -> SessionOutcome:
    """How a session has ended, by the data folder's evidence; raises as `sealed_look`, and of what was pruned."""
    look = sealed_look(session, data_dir, None, error)
    if look.outcome is None:
        assert look.pruned is not None
        raise CommandError(look.pruned.told())
    return look.outcome


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
            **totals_rows(view.totals.model_dump()),
            "loop breaker": "open" if view.breaker_open else f"closed, streak {view.breaker_streak}",
            "rejected": view.rejected or None,
            "repeated": view.repeated or None,
            "late steps": view.late_steps or None,
            "waiting for": f"{view.waiting.kind} {view.waiting.name}" if view.waiting else None,
            "external ref": view.external_ref,
            "cancel asked": (view.cancel_requested.reason or "without a reason") if view.cancel_requested else None,
            "abandon asked": f"{abandon.by}: {abandon.reason}" if (abandon := view.abandon_requested) else None,
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
    queue = await require_runner(client, session)
    with known(session):
        closing = asyncio.ensure_future(client.handle(session).close())
        try:
            if queue is not None and not (await asyncio.wait({closing}, timeout=SILENT_S))[0]:
                note(f"waiting for session {printable(session)} to close, on task queue {printable(queue)}")
            return await closing
        finally:
            closing.cancel()


def receipt(
    session: SessionId,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there.")] = None,
    generation: Generation = None,
    data_dir: DataDir = DATA_DIR,
    store: StorePlace = None,
    as_json: AsJson = False,
) -> None:
    """Print a session's receipt, or write it to a file: from the data folder if it is there, else from Temporal."""
    place = given_place(store)
    life = find(checked_session(session), generation, [data_dir], place)
    data = _stored_receipt(life)
    if data is None and generation is not None:
        raise CommandError(f"no receipt of that generation in {nowhere(data_dir, place)}")
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


def promote(
    session: SessionId,
    generation: Generation = None,
    data_dir: DataDir = DATA_DIR,
    store: StorePlace = None,
    as_json: AsJson = False,
) -> None:
    """Get a receipt for an unsigned session afterwards: the signer attests its trajectory as it lies in the store.

    Closes the session first if it runs. A signed session gives its own receipt. Repeating it gives the same one.
    """
    receipt = asyncio.run(_promoted(checked_session(session), generation, data_dir, given_place(store)))
    if as_json:
        emit(receipt)
        return
    subject = receipt["subject"]
    pairs(
        {
            "session": session,
            "receipt": receipt["receipt_id"],
            "issued at": receipt["issued_at_iso"],
            "key": receipt["key_id"],
            "trajectory": subject.get("trajectory_digest"),
            "steps": subject.get("step_count"),
            "chain head": subject.get("chain_head"),
        }
    )


async def _promoted(session: str, generation: str | None, data_dir: Path, store: Place | None) -> Mapping[str, Any]:
    client = await connect()
    await require_worker(client)
    if generation is None:
        await require_runner(client, session)
        try:
            return await client.handle(session).promote()
        except SessionNotFound:
            # Temporal forgets; the evidence does not.
            life = find(session, None, [data_dir], store)
            if life is None:
                raise CommandError(
                    f"no session {printable(session)} on the Temporal server, nor evidence of it in "
                    f"{nowhere(data_dir, store)}"
                ) from None
            generation = life.generation
    return (await client.promote(session, generation)).receipt


def _stored_receipt(life: Life | None) -> bytes | None:
    try:
        return None if life is None else life.evidence.read(RECEIPT)
    except FileNotFoundError:
        return None


async def _receipt(session: str) -> Mapping[str, Any]:
    client = await connect()
    handle = client.handle(session)
    with known(session):
        outcome = await ended(handle)
    if outcome is None:
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
        "abandoned by": f"{outcome.abandonment.by}, {iso_ms(outcome.abandonment.at)}" if outcome.abandonment else None,
        "steps reported": outcome.steps,
        "events": outcome.event_count,
        **totals_rows(outcome.totals.model_dump()),
        "stop reason": None if outcome.status == "abandoned" else outcome.stop_reason,  # its owner was gone: above
        "rejected": outcome.rejected or None,
        "repeated": outcome.repeated or None,
        "late steps": outcome.late_steps or None,
        "published": "yes" if outcome.published else "no",
        "receipt": outcome.receipt_id,
        "chain head": outcome.chain_head,
        "trajectory": outcome.trajectory_digest,
    }
