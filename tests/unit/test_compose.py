"""docker-compose.yml, Dockerfile and .env.example against the product: what can be said without a container engine."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from affidavit.evidence.ocsf import CLASSES

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")

ONE_SHOT = {"bucket", "topics", "setup"}
OF_OTHERS = {"postgres", "temporal", "temporal-ui", "kafka", "objects", "bucket"}
OURS = set(SERVICES) - OF_OTHERS
WORKERS = {"session-worker-1", "session-worker-2", "signing-worker"}

KAFKA_SETTINGS = {"AFFIDAVIT_KAFKA_BOOTSTRAP", "AFFIDAVIT_KAFKA_TOPICS"}


def environment(name: str) -> dict[str, str]:
    return dict(SERVICES[name].get("environment", {}))


def known_settings() -> set[str]:
    """Every variable that the product's own sources name, or that a settings model has by its prefix."""
    from workers.settings import WorkerSettings

    named = {f"AFFIDAVIT_{field.upper()}" for field in WorkerSettings.model_fields}
    for folder in ("affidavit", "workers", "activities"):
        for file in (ROOT / folder).rglob("*.py"):
            named.update(re.findall(r'"(AFFIDAVIT_[A-Z_]+[A-Z])"', file.read_text("utf-8")))
    return named


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from strings(key)
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    else:
        yield str(value)


def test_the_services_are_those_of_the_design() -> None:
    assert set(SERVICES) == {*OF_OTHERS, *ONE_SHOT, *WORKERS}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_variable_of_ours_is_a_setting(name: str) -> None:
    used = {variable for variable in environment(name) if variable.startswith("AFFIDAVIT_")}
    assert used <= known_settings() | KAFKA_SETTINGS
    assert bool(used) == (name in {*WORKERS, "topics"})


def test_the_roles_are_apart() -> None:
    assert {name: environment(name).get("AFFIDAVIT_ROLES") for name in WORKERS} == {
        "session-worker-1": "session",
        "session-worker-2": "session",
        "signing-worker": "signing",
    }


def test_i2_only_the_signer_has_the_seed() -> None:
    holders = [name for name in SERVICES if "signing_seed" in SERVICES[name].get("secrets", [])]
    named = [name for name in SERVICES if "signing" in str(environment(name)) + str(SERVICES[name].get("volumes"))]
    assert holders == named == ["signing-worker"]
    assert environment("signing-worker")["AFFIDAVIT_SIGNING_SEED_FILE"] == "/run/secrets/signing_seed"
    assert COMPOSE["secrets"]["signing_seed"] == {"file": "./secrets/signing.seed"}
    # Nobody gets the whole folder of the secret files either.
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    assert [mount for mount in mounts if "secrets" in mount or mount.startswith((".:", "./:"))] == []


def test_every_worker_has_the_journal_key_as_a_file() -> None:
    for name in WORKERS:
        assert "journal_key" in SERVICES[name]["secrets"]
        assert environment(name)["AFFIDAVIT_JOURNAL_KEY_FILES"] == "/run/secrets/journal_key"
    assert [name for name in ONE_SHOT if SERVICES[name].get("secrets")] == []


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_a_health_check_or_ends_by_itself(name: str) -> None:
    service = SERVICES[name]
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        assert service.get("healthcheck", {"disable": True}) == {"disable": True}
    else:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_waits_for_is_there_and_can_be_waited_for(name: str) -> None:
    for other, wanted in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        assert wanted == {"condition": expected}


def test_the_workers_wait_for_all_of_the_set_up() -> None:
    for name in WORKERS:
        assert set(SERVICES[name]["depends_on"]) == ONE_SHOT


def test_images_are_pinned_and_the_worker_is_our_own_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert {images[name] for name in OURS} == {f"affidavit:{version}"}
    for image in images.values():
        assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?", image), image
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.M) == ["python:3.11.14-slim-trixie"] * 2


def test_volumes_networks_and_secrets_are_declared_and_used() -> None:
    mounted = {mount.partition(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    assert {mount for mount in mounted if not mount.startswith(".")} == set(COMPOSE["volumes"])
    assert all((ROOT / mount).is_file() for mount in mounted if mount.startswith("."))
    assert {network for service in SERVICES.values() for network in service["networks"]} == set(COMPOSE["networks"])
    assert {secret for service in SERVICES.values() for secret in service.get("secrets", [])} == set(COMPOSE["secrets"])


def test_no_secret_has_a_default_and_all_are_asked_for() -> None:
    example = (ROOT / ".env.example").read_text("utf-8")
    asked = re.findall(r"^([A-Z_]+)=(.*)$", example, re.M)
    assert [value for _, value in asked if value] == []
    used: set[str] = set()
    for text in strings(SERVICES):
        for variable, rest in re.findall(r"\$\{(\w+)([^}]*)\}", text):
            assert rest.startswith(":?"), f"{variable} may be left out"
            used.add(variable)
    assert used == {name for name, _ in asked}
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|PWD|SECRET|ACCESS_KEY", variable):
                assert value.startswith("${"), variable
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert {".env", "secrets/"} <= set(ignored)


def test_nothing_is_reached_from_other_machines() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_containers_run_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].startswith("${WORKER_UID:?")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_worker_is_given_longer_to_stop_than_it_takes() -> None:
    from workers.running import HAND_BACK_S
    from workers.settings import WorkerSettings

    grace = WorkerSettings.model_fields["grace_s"].default
    for name in WORKERS:
        assert "AFFIDAVIT_GRACE_S" not in environment(name)
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > grace + HAND_BACK_S


def test_the_topics_are_those_of_the_events_with_one_copy() -> None:
    manifest = yaml.safe_load((ROOT / "deploy/topics.yaml").read_text("utf-8"))
    assert set(manifest["topics"]) == set(CLASSES)
    assert manifest["defaults"]["replication"] == 1


def test_the_dockerfile_copies_what_is_there_and_what_a_worker_needs() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    names = {name for line in copied for name in line.split()}
    assert all((ROOT / name).exists() for name in names)
    assert {"affidavit", "activities", "workflows", "workers"} <= names
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    assert let_in == names


def test_the_image_runs_as_nobody_in_particular_and_installs_pinned_versions() -> None:
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.M) == ["10001:10001"]
    assert DOCKERFILE.rindex("USER ") > DOCKERFILE.rindex("\nRUN ")
    (installed,) = re.findall(r"pip install (.+)$", DOCKERFILE, re.M)
    assert installed == '--constraint constraints.txt ".[worker,s3,kafka]"'
    assert 'CMD ["python", "-P", "-m", "workers"]' in DOCKERFILE
    assert not re.search(r"SEED|SECRET|KEY", DOCKERFILE)
