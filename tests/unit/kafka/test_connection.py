"""How a Kafka cluster is named in the environment, and what is refused before anything is sent (I1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from affidavit.kafka.connection import KafkaConnection
from affidavit.kafka.errors import KafkaSettingsError

SECRET = "planted-secret-7f3a"


def connection(monkeypatch: pytest.MonkeyPatch, **variables: str) -> KafkaConnection:
    for name, value in {"BOOTSTRAP": "kafka-1:9093, kafka-2:9093", **variables}.items():
        monkeypatch.setenv(f"AFFIDAVIT_KAFKA_{name}", value)
    return KafkaConnection.from_environment()


def test_plain_text_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection(monkeypatch).client_options() == {
        "bootstrap_servers": ["kafka-1:9093", "kafka-2:9093"],
        "client_id": "affidavit",
        "request_timeout_ms": 3000,
        "security_protocol": "PLAINTEXT",
    }


def test_credentials_over_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    options = connection(monkeypatch, TLS="true", USERNAME="worker", PASSWORD_FILE=str(file)).client_options()
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("worker", SECRET)
    assert options["ssl_context"].check_hostname is True
    assert options["ssl_context"].verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"USERNAME": "worker", "PASSWORD": SECRET},
            "AFFIDAVIT_KAFKA_USERNAME: credentials are sent over TLS only; set AFFIDAVIT_KAFKA_TLS=true",
        ),
        (
            {"TLS": "true", "PASSWORD": SECRET},
            "AFFIDAVIT_KAFKA_USERNAME and a password (AFFIDAVIT_KAFKA_PASSWORD_FILE) belong together",
        ),
        (
            {"TLS": "true", "USERNAME": "worker"},
            "AFFIDAVIT_KAFKA_USERNAME and a password (AFFIDAVIT_KAFKA_PASSWORD_FILE) belong together",
        ),
        (
            {"TLS": "true", "USERNAME": "worker", "PASSWORD": SECRET, "PASSWORD_FILE": "x"},
            "AFFIDAVIT_KAFKA_PASSWORD and AFFIDAVIT_KAFKA_PASSWORD_FILE are both set",
        ),
        ({"TLS_CA_FILE": "ca.pem"}, "AFFIDAVIT_KAFKA_TLS: certificates are configured, but TLS is not; set "
         "AFFIDAVIT_KAFKA_TLS=true"),
        ({"TLS": "true", "TLS_CERT_FILE": "c"}, "AFFIDAVIT_KAFKA_TLS_CERT_FILE and AFFIDAVIT_KAFKA_TLS_KEY_FILE "
         "belong together"),
        ({"BOOTSTRAP": "kafka"}, "AFFIDAVIT_KAFKA_BOOTSTRAP: host:port is wanted, several separated by commas"),
        ({"BOOTSTRAP": "kafka:0"}, "AFFIDAVIT_KAFKA_BOOTSTRAP: host:port is wanted, several separated by commas"),
        ({"BOOTSTRAP": ","}, "AFFIDAVIT_KAFKA_BOOTSTRAP: host:port is wanted, several separated by commas"),
        (
            {"SASL_MECHANISM": "GSSAPI"},
            "AFFIDAVIT_KAFKA_SASL_MECHANISM: Input should be 'SCRAM-SHA-512', 'SCRAM-SHA-256' or 'PLAIN'",
        ),
        ({"PASSWORD_FILE": ""}, "AFFIDAVIT_KAFKA_PASSWORD_FILE: is set, but empty"),
        # A longer request could outlast the attempt that made it.
        ({"REQUEST_TIMEOUT_S": "10"}, "AFFIDAVIT_KAFKA_REQUEST_TIMEOUT_S: Input should be less than or equal to 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    with pytest.raises(KafkaSettingsError) as refused:
        connection(monkeypatch, **variables)
    assert str(refused.value) == message
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (SECRET, 0o644, r"\Apassword is open to group or others \(mode 0644, must be 0600\)\Z"),
        ("", 0o600, r"\AAFFIDAVIT_KAFKA_PASSWORD_FILE: a password is 1 to 4096 bytes of text\Z"),
        ("x" * 5000, 0o600, r"\AAFFIDAVIT_KAFKA_PASSWORD_FILE: a password is 1 to 4096 bytes of text\Z"),
    ],
)
def test_i1_a_password_comes_from_a_private_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, mode: int, message: str
) -> None:
    file = tmp_path / "password"
    file.write_text(content)
    file.chmod(mode)
    made = connection(monkeypatch, TLS="true", USERNAME="worker", PASSWORD_FILE=str(file))
    with pytest.raises(KafkaSettingsError, match=message):
        made.client_options()


def test_i1_a_password_in_place_of_a_path_or_in_the_environment_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = connection(monkeypatch, TLS="true", USERNAME="worker", PASSWORD_FILE=SECRET)
    with pytest.raises(KafkaSettingsError, match="a file that it names cannot be opened") as refused:
        made.client_options()
    assert SECRET not in str(refused.value)
    monkeypatch.delenv("AFFIDAVIT_KAFKA_PASSWORD_FILE")
    assert SECRET not in repr(connection(monkeypatch, PASSWORD=SECRET))


def test_i1_a_private_key_of_tls_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("key")
    (tmp_path / "key.pem").chmod(0o640)
    made = connection(monkeypatch, TLS="1", TLS_CERT_FILE=str(tmp_path / "c"), TLS_KEY_FILE=str(tmp_path / "key.pem"))
    with pytest.raises(KafkaSettingsError, match=r"\Akey\.pem is open to group or others"):
        made.client_options()


def test_no_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFFIDAVIT_KAFKA_BOOTSTRAP", raising=False)
    with pytest.raises(KafkaSettingsError, match="set AFFIDAVIT_KAFKA_BOOTSTRAP to host:port"):
        KafkaConnection.from_environment().client_options()
