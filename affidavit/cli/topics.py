"""`affidavit topics provision|check`: the Kafka topics, made and compared with their manifest."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from affidavit.cli.output import EXIT_CODES, AsJson, Code, CommandError, emit, given_path, line

app = typer.Typer(name="topics", help="Kafka topics: make and check them.", epilog=EXIT_CODES, no_args_is_help=True)

ManifestFile = Annotated[
    Path | None,
    typer.Option(
        "--manifest",
        metavar="FILE",
        parser=given_path,
        envvar="AFFIDAVIT_KAFKA_TOPICS",
        help="YAML file of topics; default: the one that comes with Affidavit.",
    ),
]


@app.command(epilog=EXIT_CODES)
def provision(manifest: ManifestFile = None, as_json: AsJson = False) -> None:
    """Make the topics that are missing, then check all of them. Existing ones are never changed.

    The environment names the cluster: AFFIDAVIT_KAFKA_BOOTSTRAP and what belongs to it (docs/kafka.md).
    """
    _run(manifest, as_json, make=True)


@app.command(epilog=EXIT_CODES)
def check(manifest: ManifestFile = None, as_json: AsJson = False) -> None:
    """Compare the cluster's topics with the manifest; exit code 1 if anything differs.

    The environment names the cluster: AFFIDAVIT_KAFKA_BOOTSTRAP and what belongs to it (docs/kafka.md).
    """
    _run(manifest, as_json, make=False)


def _run(manifest: Path | None, as_json: bool, *, make: bool) -> None:
    made, differences, names = _asked(manifest, make=make)
    if as_json:
        emit({"topics": names, "made": made, "differences": differences})
    else:
        for name in made:
            line(f"made {name}")
        for difference in differences:
            line(difference, "red")
        if not differences:
            line(f"{len(names)} topics are as the manifest says", "green")
    if differences:
        raise typer.Exit(Code.FAILED)


def _asked(path: Path | None, *, make: bool) -> tuple[list[str], list[str], list[str]]:
    """What was made, what differs, and the names of all topics of the manifest.

    Raises:
        CommandError: something is not installed or does not fit, or the cluster does not answer or refuses.
    """
    # Its client reports to the log what is told here in one line.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        from affidavit.kafka import admin
        from affidavit.kafka.connection import KafkaConnection
        from affidavit.kafka.errors import KafkaSettingsError
        from affidavit.kafka.manifest import Manifest
    except ModuleNotFoundError as error:
        raise CommandError(
            f"this command talks to Kafka and needs the kafka extra (affidavit[kafka]): no {error.name}",
            Code.UNAVAILABLE,
        ) from None
    try:
        wanted = Manifest.read(path)
        connection = KafkaConnection.from_environment()
        made = asyncio.run(admin.provision(connection, wanted)) if make else []
        return made, asyncio.run(admin.check(connection, wanted)), list(wanted.topics)
    except KafkaSettingsError as error:
        raise CommandError(str(error), Code.USAGE) from None
