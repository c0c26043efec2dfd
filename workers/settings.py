"""Settings of a worker from the environment (`AFFIDAVIT_*`); the connection is Temporal's own (`TEMPORAL_*`).

Secrets come from files of mode 0600, or from the environment where a platform injects them there; never from
arguments (behaviours I1). Nothing here prints a secret: `repr` shows where it comes from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from affidavit import contract
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer, decode_secret, read_secret_file
from affidavit.kafka.connection import KafkaConnection, is_configured
from affidavit.stores.place import StoreUrl, place_of
from affidavit.version import VERSION

Role = Literal["session", "signing"]


class SettingsError(Exception):
    """A setting is missing or does not fit; one line."""


def _kafka() -> KafkaConnection | None:
    return KafkaConnection.from_environment() if is_configured(os.environ) else None


class WorkerSettings(BaseSettings):
    """Everything a worker process is told from outside."""

    model_config = SettingsConfigDict(env_prefix="AFFIDAVIT_", extra="ignore", frozen=True)

    task_queue: str = Field(default=contract.TASK_QUEUE, min_length=1, max_length=200)
    roles: Annotated[tuple[Role, ...], NoDecode] = ("session", "signing")
    """What this process does: run sessions, sign, or both. Only a signing worker reads the seed."""
    store: Path | StoreUrl = Path(".affidavit/evidence")
    """Directory or URL of the evidence store."""
    bus: Path = Path(".affidavit/bus.sqlite")
    """File of the embedded event log; not used where `kafka` is set."""
    kafka: KafkaConnection | None = Field(default_factory=_kafka)
    """The Kafka cluster that events go to (`AFFIDAVIT_KAFKA_*`)."""
    journal_key_files: Annotated[tuple[Path, ...], NoDecode] = ()
    """Files of 32 bytes, colon-separated: the first seals, each of them opens (rotation)."""
    journal_key: SecretStr | None = None
    signing_seed_file: Path | None = None
    signing_seed: SecretStr | None = None
    public_keys: Path | None = None
    """Keyring of signers, this one's among them; written into the store for auditors."""
    grace_s: float = Field(default=10.0, ge=0, le=600)
    """Seconds that work under way gets to finish after SIGTERM."""
    threads: int = Field(default=16, ge=2, le=500)
    max_cached_workflows: int = Field(default=1000, ge=0)
    deployment: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Name of the worker deployment; switches Temporal's worker versioning on."""
    build_id: str = Field(default=VERSION, min_length=1, max_length=200)
    """Which build of the deployment this is."""
    prometheus: str | None = None
    """Address (`127.0.0.1:9464`) at which metrics are served."""
    otel: bool = False
    """Whether spans and metrics go out by OTLP; where to is for OpenTelemetry's own variables."""
    log_format: Literal["human", "json"] = "human"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("store", "bus", "signing_seed_file", "public_keys", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        # An empty path would be the working directory.
        if value == "":
            raise ValueError("is set, but empty")
        return value

    @field_validator("store", mode="before")
    @classmethod
    def _read_place(cls, value: object) -> object:
        return place_of(value) if isinstance(value, str) else value

    @field_validator("roles", mode="before")
    @classmethod
    def _split_roles(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("journal_key_files", mode="before")
    @classmethod
    def _split_files(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(":") if part) if isinstance(value, str) else value

    def read_journal_keys(self) -> list[bytes]:
        """The journal keys, the sealing one first.

        Raises:
            SettingsError: there is none.
            KeyFileError: a file is missing, a link, or readable by others.
        """
        keys = [read_secret_file(path, setting="AFFIDAVIT_JOURNAL_KEY_FILES") for path in self.journal_key_files]
        if self.journal_key is not None:
            keys.append(decode_secret(self.journal_key.get_secret_value(), name="AFFIDAVIT_JOURNAL_KEY"))
        if not keys:
            raise SettingsError("no journal key: set AFFIDAVIT_JOURNAL_KEY_FILES to a file made by `affidavit keygen`")
        return keys

    def read_signer(self) -> Signer:
        """The signer.

        Raises:
            SettingsError: there is no seed.
            KeyFileError: as above.
        """
        if self.signing_seed_file is not None:
            return Signer.from_file(self.signing_seed_file, setting="AFFIDAVIT_SIGNING_SEED_FILE")
        if self.signing_seed is not None:
            return Signer(decode_secret(self.signing_seed.get_secret_value(), name="AFFIDAVIT_SIGNING_SEED"))
        raise SettingsError(
            "no signing seed: set AFFIDAVIT_SIGNING_SEED_FILE to a file made by `affidavit keygen`, "
            "or leave `signing` out of AFFIDAVIT_ROLES"
        )

    def read_keyring(self, signer: Signer) -> bytes:
        """The keyring to publish in the store: the configured one, or the signer's own key alone.

        Raises:
            SettingsError: the configured one does not hold this signer's key.
            KeyringError: it is no keyring.
        """
        if self.public_keys is None:
            return b'[{"public_key_b64": "%s"}]\n' % signer.public_key_b64.encode()
        try:
            data = self.public_keys.read_bytes()
        except OSError as error:
            raise SettingsError(f"{self.public_keys.name} cannot be read: {error.strerror}") from None
        if Keyring.parse(data).find(signer.key_id) is None:
            raise SettingsError(f"{self.public_keys.name} does not hold the signer's key {signer.key_id}")
        return data
