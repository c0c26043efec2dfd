"""The manifest: which topics there have to be, and how they have to be set (formats.md 3.3)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from affidavit.evidence.ocsf import CLASSES
from affidavit.kafka.errors import KafkaSettingsError
from affidavit.validation import first_error

HOUR_MS = 3_600_000
LIMIT = 1 << 20
"""A manifest is at most so many bytes."""


class Topic(BaseModel):
    """How one topic has to be set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    partitions: int = Field(default=8, ge=1, le=10_000)
    """Exactly so many: with another number the same session's later events go to another partition."""
    replication: int = Field(default=3, ge=1, le=100)
    """Copies of every partition, or more."""
    min_insync_replicas: int = Field(default=2, ge=1, le=100)
    """Copies that have to take a record before it counts as published, or more."""
    retention_hours: int = Field(default=720, ge=1, le=1_000_000)
    """How long records are kept, or longer."""
    max_message_bytes: int = Field(default=33_554_432, ge=1 << 20, le=1 << 30)
    """The largest batch that the topic takes, or more. A megabyte at least: a batch of small ones has half of it."""

    @model_validator(mode="after")
    def _writable(self) -> Topic:
        if self.min_insync_replicas > self.replication:
            raise ValueError("min_insync_replicas is more than replication: nothing could be published")
        return self

    @property
    def configs(self) -> dict[str, str]:
        """Kafka's own settings of the topic, as they are given when it is made.

        The records' time is the event's, which the look-up of uids relies on; and nothing may be compacted away,
        since all events of an agent share a key.
        """
        return {
            "message.timestamp.type": "CreateTime",
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention_hours * HOUR_MS),
            "max.message.bytes": str(self.max_message_bytes),
            "min.insync.replicas": str(self.min_insync_replicas),
        }


class Manifest(BaseModel):
    """Topics by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    topics: dict[str, Topic]

    @model_validator(mode="after")
    def _complete(self) -> Manifest:
        missing = [name for name in CLASSES if name not in self.topics]
        if missing:
            raise ValueError(f"the topic {missing[0]} is missing")
        return self

    @classmethod
    def read(cls, path: Path | None = None) -> Manifest:
        """Read a manifest; without a path the one that comes with the package.

        Raises:
            KafkaSettingsError: it cannot be read, is no YAML, or says something that is not known.
        """
        if path is None:
            return cls.parse(resources.files("affidavit.kafka").joinpath("topics.yaml").read_bytes(), "topics.yaml")
        try:
            with path.open("rb") as file:
                data = file.read(LIMIT + 1)
        except OSError as error:
            raise KafkaSettingsError(f"{path.name} cannot be read: {error.strerror}") from None
        if len(data) > LIMIT:
            raise KafkaSettingsError(f"{path.name} is larger than {LIMIT} bytes")
        return cls.parse(data, path.name)

    @classmethod
    def parse(cls, data: bytes, name: str) -> Manifest:
        """A manifest from YAML: `defaults` for all topics, `topics` with what differs.

        Args:
            name: what to call it in errors.
        """
        try:
            document: Any = yaml.safe_load(data)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}" if mark is not None else ""
            raise KafkaSettingsError(f"{name}: not readable as YAML{where}") from None
        if not isinstance(document, dict) or not document.keys() <= {"defaults", "topics"}:
            raise KafkaSettingsError(f"{name}: `defaults` and `topics` are wanted, and nothing else")
        defaults, topics = document.get("defaults") or {}, document.get("topics")
        if not isinstance(defaults, dict) or not isinstance(topics, dict):
            raise KafkaSettingsError(f"{name}: `defaults` and `topics` hold names and values")
        merged = {topic: {**defaults, **own} if isinstance(own := given or {}, dict) else own
                  for topic, given in topics.items()}  # fmt: skip
        try:
            return cls.model_validate({"topics": merged})
        except ValidationError as error:
            raise KafkaSettingsError(f"{name}: {first_error(error).replace('Value error, ', '')}") from None
