"""`affidavit replay` and `affidavit demo`: a recorded run, reported anew through a session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from affidavit.cli.connecting import (
    address_of,
    configured,
    connect,
    connect_embedded,
    execution_address,
    require_worker,
    served,
    web_ui,
)
from affidavit.cli.embedded import Embedded, running
from affidavit.cli.evidence import Life, checked_session, find
from affidavit.cli.judging import judge, read_keyring
from affidavit.cli.output import (
    DATA_DIR,
    AsJson,
    Code,
    CommandError,
    DataDir,
    emit,
    err,
    given_path,
    hint,
    line,
    note,
    pairs,
    plain,
    read_file,
)
from affidavit.cli.sessions import outcome_rows, require_good
from affidavit.contract import SessionOutcome, SessionSpec
from affidavit.evidence.bundle import write_bundle
from affidavit.evidence.text import printable
from affidavit.importing import RUN_LIMIT, ImportedRun, NotARun, read_run
from affidavit.samples import SUPPORT_AGENT
from affidavit.stores.folder import reader_of

DEMO_DIR = DATA_DIR / "demo"
FLUSH_EVERY = 64
"""Steps between two looks at what is on disk: the queue stays short and the bar honest."""

Mode = Literal["signed", "unsigned"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay that came to its end."""

    run: ImportedRun
    outcome: SessionOutcome
    namespace: str
    ui: str | None
    life: Life | None

    @property
    def address(self) -> str | None:
        """The execution's page in the Web UI."""
        if self.ui is None:
            return None
        return execution_address(self.ui, self.namespace, self.outcome.session_id, self.outcome.generation)

    def document(self) -> dict[str, Any]:
        """The replay as JSON."""
        found = {
            "web_ui": self.address,
            "evidence": None if self.life is None else self.life.folder,
            "final_metrics_differ": [
                {"name": name, "stated": stated, "sum": own} for name, stated, own in self.run.differences()
            ]
            or None,
        }
        return {
            "steps_reported": len(self.run.steps),
            "outcome": self.outcome.model_dump(mode="json", exclude_none=True),
            **{name: value for name, value in found.items() if value is not None},
        }

    def show(self) -> None:
        """Print how it ended and where everything is."""
        rows = outcome_rows(self.outcome)
        rows["steps reported"] = len(self.run.steps)
        rows["Web UI"] = self.address
        rows["evidence"] = "not in this data folder" if self.life is None else self.life.shown_folder
        pairs(rows)
        for name, stated, own in self.run.differences():
            line(f"the run's own final_metrics state {name} {stated}, its steps add up to {own}", "yellow")


def replay(
    run: Annotated[
        Path, typer.Argument(metavar="RUN.json", parser=given_path, help="An agent run in ATIF, v1.0 to v1.8.")
    ],
    mode: Annotated[Mode, typer.Option("--mode", help="signed: a receipt; unsigned: a trajectory.")] = "signed",
    session_id: Annotated[
        str | None, typer.Option("--session-id", help="The session's id; default: a fresh UUIDv7.")
    ] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Report a recorded agent run through a session of its own, and close it.

    Uses the server that TEMPORAL_ADDRESS names, or one with a worker at localhost:7233; else it runs the embedded
    mode for its own duration. Says on standard error which one it is.
    """
    try:
        imported = read_run(read_file(run, RUN_LIMIT))
    except NotARun as error:
        raise CommandError(f"{printable(run.name)}: {error}", Code.USAGE) from None
    if session_id is not None:
        checked_session(session_id)
    with _server(data_dir) as embedded:
        replayed = _replayed(imported, mode, session_id, embedded, dict.fromkeys((data_dir, DATA_DIR)))
    if as_json:
        emit(replayed.document())
    else:
        replayed.show()
    require_good(replayed.outcome)


def demo(data_dir: DataDir = DEMO_DIR, as_json: AsJson = False) -> None:
    """Replay a bundled sample run through a signed session, and verify its evidence offline.

    Always starts an embedded mode of its own, on free ports, whatever server runs here or is configured. Keeps
    everything in the data folder. The last line is the verdict on the receipt.
    """
    imported = read_run(resources.files("affidavit.samples").joinpath(SUPPORT_AGENT).read_bytes())
    with _embedded(data_dir) as embedded:
        replayed = _replayed(imported, "signed", None, embedded, [data_dir])
    require_good(replayed.outcome)
    life = replayed.life
    if life is None:
        raise CommandError(f"no evidence of the session in {printable(plain(data_dir), 200)}")
    if not as_json:
        replayed.show()
    # From here on as an auditor would: no server, only the bundle and the signer's public keys.
    made = data_dir / f"{life.session_id}.zip"
    write_bundle(reader_of(life.store), life.session_id, life.generation, made)
    judgement = judge(made, read_keyring(life.public_keys))
    if as_json:
        emit({**replayed.document(), "bundle": str(made), "verification": judgement.document()})
    else:
        place = ("--data-dir", data_dir)
        line("")
        pairs(
            {
                "look at it": hint("show", life.session_id, *place),
                "its events": hint("events", "--session", life.session_id, *place),
                "bundle it": hint("bundle", life.session_id, "-o", "session.zip", *place),
                "the Web UI again": hint("dev", *place),
                "verify it": hint("verify", made, "--key", life.public_keys),
            }
        )
        line("The last of them says, with no server:")
        line("")
        judgement.show()
    raise typer.Exit(judgement.code)


# -- reporting ----------------------------------------------------------------------------------------


def _replayed(
    run: ImportedRun, mode: Mode, session_id: str | None, embedded: Embedded | None, data_dirs: Iterable[Path]
) -> Replayed:
    outcome, namespace = asyncio.run(_report(run, run.spec(mode=mode), session_id, embedded))
    ui = embedded.ui if embedded else web_ui()
    return Replayed(run, outcome, namespace, ui, find(outcome.session_id, outcome.generation, data_dirs))


@contextlib.contextmanager
def _server(data_dir: Path) -> Iterator[Embedded | None]:
    """The server to use: None for one that is there already, else an embedded one for this block."""
    if configured() is not None or asyncio.run(served()):
        yield None
        return
    with _embedded(data_dir) as embedded:
        note(f"server: an embedded mode of its own, data in {plain(data_dir)}")
        yield embedded


@contextlib.contextmanager
def _embedded(data_dir: Path) -> Iterator[Embedded]:
    stack = contextlib.ExitStack()
    with err().status("starting the embedded mode"):
        embedded, _ = stack.enter_context(running(data_dir))
    with stack:
        yield embedded


async def _report(
    run: ImportedRun, spec: SessionSpec, session_id: str | None, embedded: Embedded | None
) -> tuple[SessionOutcome, str]:
    if embedded is None:
        client = await connect()
        note(f"server: {printable(address_of(client))}, namespace {printable(client.temporal.namespace)}")
        await require_worker(client)
    else:
        client = await connect_embedded(embedded)
    ui = embedded.ui if embedded else web_ui()
    namespace = client.temporal.namespace
    with _progress() as bar:
        task = bar.add_task("opening", total=len(run.steps))
        async with client.session(spec, session_id=session_id) as session:
            if ui:
                address = execution_address(ui, namespace, session.session_id, session.generation or "")
                bar.console.print(Text(f"Web UI, while the server runs: {printable(address, 400)}"))
            flushed = 0
            for turn in run.turns():
                bar.update(task, description=turn[0]["kind"].replace("_", " "))
                await session.record(*turn)
                bar.advance(task, len(turn))
                flushed += len(turn)
                if flushed >= FLUSH_EVERY:
                    await session.flush()
                    flushed = 0
            bar.update(task, description="closing and sealing")
            outcome = await session.close()
            bar.update(task, description=outcome.status)
    return outcome, namespace


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps", markup=False),
        TimeElapsedColumn(),
        console=err(),
    )
