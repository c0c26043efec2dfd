"""`affidavit trajectory`: validate, export and compare ATIF trajectories, without a server."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from affidavit.cli.evidence import Life, found
from affidavit.cli.output import (
    DATA_DIR,
    EXIT_CODES,
    AsJson,
    Code,
    CommandError,
    DataDir,
    Generation,
    StorePlace,
    emit,
    emit_text,
    given_place,
    line,
    plain,
)
from affidavit.cli.sessions import SessionId
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.layout import TRAJECTORY
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable
from affidavit.evidence.trajectory import (
    MAX_BYTES,
    MAX_ISSUES,
    Profile,
    Written,
    read_trajectory,
    rebuild_trajectory,
)
from affidavit.evidence.trajectory import compare as differences
from affidavit.evidence.trajectory import validate as issues_of
from affidavit.stores.folder import reader_of

app = typer.Typer(name="trajectory", help="Agent runs as ATIF trajectories.", epilog=EXIT_CODES, no_args_is_help=True)

LINE_CHARS = 400


@app.command(epilog=EXIT_CODES)
def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trajectory, ATIF v1.0 to v1.8.")],
    profile: Annotated[
        Profile, typer.Option("--profile", help="strict: the specification; writer: token counts on agent steps too.")
    ] = "strict",
    as_json: AsJson = False,
) -> None:
    """List everything that is wrong with a trajectory, by the rules of the version it states. Exit 1 on any."""
    with file.open("rb") as opened:
        try:
            document = read_json(opened.read(MAX_BYTES + 1), max_bytes=MAX_BYTES)
        except EvidenceError as error:
            raise CommandError(f"{printable(file.name)}: {error}", Code.USAGE) from None
    issues = issues_of(document, profile)
    if as_json:
        listed = [{"path": issue.path, "message": issue.message} for issue in issues]
        emit({"valid": not issues, "profile": profile, "issues": listed})
    else:
        for issue in issues:
            line(printable(str(issue), LINE_CHARS))
        least = "at least " if len(issues) == MAX_ISSUES else ""
        verdict = f"NOT VALID, {least}{_counted(len(issues), 'issue')}" if issues else f"VALID ({profile})"
        line(f"trajectory: {verdict}", "bold red" if issues else "bold green")
    raise typer.Exit(Code.FAILED if issues else Code.OK)


@app.command(epilog=EXIT_CODES)
def export(
    session: SessionId,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there.")] = None,
    generation: Generation = None,
    data_dir: DataDir = DATA_DIR,
    store: StorePlace = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a session's trajectory from its captures, and print it or write it to a file.

    It has the very bytes that the session stored at its end. Where it has not, the command says so and exits 1.
    """
    life = found(session, generation, data_dir, given_place(store))
    with tempfile.TemporaryFile() as made:
        written = rebuild_trajectory(
            reader_of(life.store), session, life.generation, made, journal_keys=life.journal_keys()
        )
        stored = _compared(life, made)
        made.seek(0)
        if output is None:
            _print(made)
        else:
            _save(made, output)
            _tell(life, written, output, stored, as_json)
    if stored == "differs":
        raise CommandError(f"the stored {TRAJECTORY} differs from what the captures give")


@app.command(epilog=EXIT_CODES)
def compare(
    original: Annotated[Path, typer.Argument(metavar="A", help="A trajectory.")],
    exported: Annotated[Path, typer.Argument(metavar="B", help="Another one, such as the export of the first.")],
    as_json: AsJson = False,
) -> None:
    """Compare two trajectories step for step. Exit 1 if they differ.

    Tolerated in B: llm_call_count added; in both: absent cached_tokens is 0, keys under extra.affidavit, and metrics
    marked as estimated.
    """
    found = differences(_read(original), _read(exported))
    if as_json:
        emit({"equal": not found, "differences": [{"path": each.path, "said": str(each)} for each in found]})
    else:
        for each in found:
            line(printable(str(each), LINE_CHARS))
        verdict = f"DIFFERENT, {_counted(len(found), 'difference')}" if found else "EQUAL"
        line(f"trajectories: {verdict}", "bold red" if found else "bold green")
    raise typer.Exit(Code.FAILED if found else Code.OK)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _read(file: Path) -> Any:
    try:
        return read_trajectory(file.read_bytes())
    except EvidenceError as error:
        raise CommandError(f"{printable(file.name)}: {error}", Code.USAGE) from None


def _compared(life: Life, made: IO[bytes]) -> str:
    """Whether the stored trajectory has the same bytes: `equal`, `differs` or `absent`."""
    made.seek(0)
    if not life.evidence.has(TRAJECTORY):
        return "absent"
    made_digest = hashlib.file_digest(made, "sha256").hexdigest()  # type: ignore[arg-type]
    return "equal" if life.evidence.sha256(TRAJECTORY) == made_digest else "differs"


def _print(made: IO[bytes]) -> None:
    if sys.stdout.isatty():
        for text in made:
            emit_text(text.decode())
    else:
        sys.stdout.flush()
        shutil.copyfileobj(made, sys.stdout.buffer)


def _save(made: IO[bytes], output: Path) -> None:
    try:
        with output.open("xb") as file:
            shutil.copyfileobj(made, file)
    except FileExistsError:
        raise CommandError(f"{printable(output.name)} exists") from None


def _tell(life: Life, written: Written, output: Path, stored: str, as_json: bool) -> None:
    if as_json:
        emit(
            {
                "session_id": life.session_id,
                "generation": life.generation,
                "file": str(output),
                "bytes": written.size,
                "step_count": written.step_count,
                "trajectory_digest": written.digest,
                "stored": stored,
            }
        )
        return
    words = {"equal": "the stored bytes", "differs": "NOT the stored bytes", "absent": "none is stored"}
    line(
        f"{printable(plain(output), 200)}: {_counted(written.step_count, 'step')} of session "
        f"{printable(life.session_id)}, {words[stored]}"
    )
