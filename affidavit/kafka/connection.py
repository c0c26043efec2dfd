"""How to reach a Kafka cluster, from the environment (`AFFIDAVIT_KAFKA_*`).

Secrets come from files of mode 0600 or from the environment, and are never printed (behaviours I1). Credentials go
over TLS only: without it whoever listens would have them.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keys import read_private_file
from affidavit.kafka.errors import KafkaSettingsError
from affidavit.validation import first_error

PREFIX = "AFFIDAVIT_KAFKA_"
DEFAULT_PORT = 9092
PASSWORD_LIMIT = 4096
CLIENT_ID = "affidavit"

Mechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]


class KafkaConnection(BaseSettings):
    """Where the brokers are, and who we are to them."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    bootstrap: str = ""
    """`host:port`, several separated by commas."""
    tls: bool = False
    tls_ca_file: Path | None = None
    """Certificates to trust instead of the system's, PEM."""
    tls_cert_file: Path | None = None
    """Our own certificate with its chain, PEM, for brokers that ask for one."""
    tls_key_file: Path | None = None
    """Its private key, PEM, mode 0600."""
    sasl_mechanism: Mechanism = "SCRAM-SHA-512"
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    """Mode 0600; a final line break does not belong to the password."""
    topics: Path | None = None
    """Manifest of topics; the one that comes with the package if left out."""
    request_timeout_s: float = Field(default=3.0, gt=0, le=3)
    """How long one request may take. Not longer: an attempt to publish has to end before the next one begins."""

    @classmethod
    def from_environment(cls, **changes: Any) -> Self:
        """Read the environment.

        Raises:
            KafkaSettingsError: something is missing or does not fit; names the variable.
        """
        try:
            return cls(**changes)
        except ValidationError as error:
            text = first_error(error)
            if error.errors()[0]["loc"]:
                name, _, why = text.partition(": ")
                text = f"{PREFIX}{name.upper()}: {why}"
            raise KafkaSettingsError(text.replace("Value error, ", "")) from None

    @field_validator("tls_ca_file", "tls_cert_file", "tls_key_file", "password_file", "topics", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if value == "":
            raise ValueError("is set, but empty")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.bootstrap:
            _addresses(self.bootstrap)
        has_password = self.password is not None or self.password_file is not None
        if self.password is not None and self.password_file is not None:
            raise ValueError(f"{PREFIX}PASSWORD and {PREFIX}PASSWORD_FILE are both set")
        if (self.username is not None) != has_password:
            raise ValueError(f"{PREFIX}USERNAME and a password ({PREFIX}PASSWORD_FILE) belong together")
        if not self.tls:
            if has_password:
                raise ValueError(f"{PREFIX}USERNAME: credentials are sent over TLS only; set {PREFIX}TLS=true")
            if self.tls_ca_file or self.tls_cert_file or self.tls_key_file:
                raise ValueError(f"{PREFIX}TLS: certificates are configured, but TLS is not; set {PREFIX}TLS=true")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError(f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE belong together")
        return self

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each bootstrap broker."""
        return _addresses(self.bootstrap)

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that every client of aiokafka takes; reads the files.

        Raises:
            KafkaSettingsError: a file is missing, readable by others, or holds something else.
        """
        if not self.bootstrap:
            raise KafkaSettingsError(f"no Kafka cluster: set {PREFIX}BOOTSTRAP to host:port of a broker")
        options: dict[str, Any] = {
            "bootstrap_servers": self.addresses,
            "client_id": CLIENT_ID,
            "request_timeout_ms": round(self.request_timeout_s * 1000),
        }
        try:
            if self.tls:
                options["ssl_context"] = self._ssl_context()
            if self.username is None:
                return {**options, "security_protocol": "SSL" if self.tls else "PLAINTEXT"}
            return {
                **options,
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self._read_password(),
            }
        except EvidenceError as error:
            raise KafkaSettingsError(str(error)) from None

    def _read_password(self) -> str:
        if self.password_file is None:
            return self.password.get_secret_value() if self.password is not None else ""
        setting = f"{PREFIX}PASSWORD_FILE"
        data = read_private_file(self.password_file, limit=PASSWORD_LIMIT + 1, setting=setting)
        try:
            text = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            text = ""
        if not text or len(data) > PASSWORD_LIMIT:
            raise KafkaSettingsError(f"{setting}: a password is 1 to {PASSWORD_LIMIT} bytes of text")
        return text

    def _ssl_context(self) -> ssl.SSLContext:
        """A context that checks the broker's certificate and name."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
        except (OSError, ssl.SSLError):
            raise KafkaSettingsError(f"{PREFIX}TLS_CA_FILE: not a readable file of PEM certificates") from None
        if self.tls_cert_file is not None and self.tls_key_file is not None:
            read_private_file(self.tls_key_file, limit=1, setting=f"{PREFIX}TLS_KEY_FILE")
            try:
                # An empty password, so that an encrypted key is an error and not a question on the terminal.
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file, password="")
            except (OSError, ssl.SSLError):
                raise KafkaSettingsError(
                    f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE do not hold a certificate and its key"
                ) from None
        return context


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether the environment names a Kafka cluster."""
    return bool(environment.get(f"{PREFIX}BOOTSTRAP"))


def _addresses(bootstrap: str) -> list[str]:
    found = [part.strip() for part in bootstrap.split(",") if part.strip()]
    for address in found:
        host, colon, port = address.rpartition(":")
        if not (colon and host) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{PREFIX}BOOTSTRAP: host:port is wanted, several separated by commas")
    if not found:
        raise ValueError(f"{PREFIX}BOOTSTRAP: host:port is wanted, several separated by commas")
    return found
