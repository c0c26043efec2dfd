"""How a session is opened: the registration that all who open it must agree on (formats.md, behaviours A3)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from affidavit.event_types import check_event_types
from affidavit.evidence.canonical import digest
from affidavit.fields import Count, Maybe, Name, Strict


class Agent(Strict):
    """Who acts: the identity triple, and how long the credential behind it still lives (seconds)."""

    version: Name
    charter: Name
    instance_uid: Name
    ttl_remaining_s: Maybe[Count] = None

    def triple(self) -> tuple[str, str, str]:
        """What is fixed for the life of a session (behaviours A3)."""
        return self.version, self.charter, self.instance_uid

    def as_identity(self, ttl_remaining_s: int | None) -> dict[str, Any]:
        """The `ai_agent` object of events and receipts (formats.md 3.1), at a time when it had so long to live."""
        identity: dict[str, Any] = {
            "version": self.version,
            "charter": {"name": self.charter, "type_id": 1},
            "instance_uid": self.instance_uid,
        }
        if ttl_remaining_s is not None:
            identity["ttl_remaining_s"] = ttl_remaining_s
        return identity


class BreakerConfig(Strict):
    """When repetition becomes a loop, and what is done about it (formats.md 8)."""

    delta_epsilon: float = 0.30
    window: int = Field(default=3, ge=1, le=1_000)
    min_tokens: Count = 1000
    action: Literal["observe", "reject", "inject", "abort"] = "reject"

    @field_validator("delta_epsilon")
    @classmethod
    def _epsilon(cls, value: float) -> float:
        if not math.isfinite(value) or not 0 < value <= 2:
            raise ValueError("delta_epsilon is above 0 and at most 2 (a delta is 1 minus a cosine)")
        return value


class Limits(Strict):
    """Bounds of one session; times in seconds. See the table in the README."""

    queue: int = Field(default=1024, ge=1, le=100_000)
    response_slots: int = Field(default=64, ge=1, le=10_000)
    drain_timeout_s: int = Field(default=60, ge=1, le=86_400)
    idle_close_s: int = Field(default=900, ge=1, le=31_536_000)
    attempt_lapse_s: int = Field(default=3600, ge=1, le=31_536_000)
    owner_lapse_s: int = Field(default=3600, ge=1, le=31_536_000)
    gap_grace_s: int = Field(default=30, ge=1, le=86_400)


class SessionSpec(Strict):
    """How a session is opened. Two opens of one id must agree on all of it but `ttl_remaining_s`."""

    agent: Agent
    mode: Literal["signed", "unsigned"] = "signed"
    content: Literal["digest", "store", "full"] = "store"
    breaker: BreakerConfig = BreakerConfig()
    limits: Limits = Limits()
    originator: Maybe[Name] = None
    wake_target: Maybe[Name] = None
    external_ref: Maybe[Name] = None
    reopen: bool = False
    """Start a fresh generation of an id whose last one ended `closed`; not part of the registration."""
    event_types: Maybe[Annotated[dict[str, Any], AfterValidator(check_event_types)]] = None
    """JSON Schemas (draft 2020-12) of the payloads of custom events, by type."""
    model_name: Maybe[Name] = None
    tool_definitions: Maybe[list[Any]] = None
    trajectory_extra: Maybe[dict[str, Any]] = None

    @model_validator(mode="after")
    def _digests_make_no_trajectory(self) -> SessionSpec:
        if self.mode == "unsigned" and self.content == "digest":
            raise ValueError("content 'digest' keeps nothing to build a trajectory from; use 'store' or 'full'")
        return self

    def registration(self) -> dict[str, Any]:
        """Every default written out, absent optionals omitted, the volatile lifetime removed (design.md 3)."""
        form = self.model_dump(mode="json", exclude_none=True)
        form["agent"].pop("ttl_remaining_s", None)
        form.pop("reopen")
        return form


def registration_hash(registration: dict[str, Any]) -> str:
    """SHA-256 over the JCS form of a registration, as 64 hex digits.

    Raises:
        CanonicalError: a free value of the spec (`trajectory_extra`, …) is none that JSON carries exactly.
    """
    return digest(registration)
