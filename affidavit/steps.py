"""What a runtime reports: the steps of formats.md 2, as strict models and as JSON Schema.

A model only *reads* a step. What is kept as evidence is the step as reported, normalised by
``affidavit.evidence.capture``; no value passes through these models on its way into a capture.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from affidavit.evidence.layout import check_generation
from affidavit.evidence.scalars import check_session_id
from affidavit.fields import (
    AttemptId,
    CallId,
    ClaimedTime,
    Cost,
    Count,
    EventType,
    Maybe,
    Name,
    ProducerId,
    Strict,
    WireSchema,
)

T = TypeVar("T")

Several = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first bad member ends the reading: hundreds of thousands of them would hold up a workflow."""

Role = Literal["system", "developer", "user", "assistant", "tool"]
FailureReason = Literal["upstream_error", "timeout", "cancelled", "refused"]
BlockStage = Literal["parse", "schema", "policy", "budget"]


class AnnouncedCall(Strict):
    """A tool call as a model announced it; `arguments` is an object, its text, or null."""

    call_id: CallId
    name: Name
    arguments: Any
    extra: Maybe[dict[str, Any]] = None


class Message(Strict):
    """One message of a model request, not reported before unless `copied`."""

    role: Role
    content: str | Several[dict[str, Any]]
    name: Maybe[Name] = None
    tool_call_id: Maybe[CallId] = None
    tool_calls: Maybe[Several[AnnouncedCall]] = None
    reasoning: Maybe[str] = None
    copied: Maybe[bool] = None
    extra: Maybe[dict[str, Any]] = None


class Usage(Strict):
    """Token counts and cost as the provider gave them; kept verbatim in the capture."""

    prompt_tokens: Maybe[Count] = None
    completion_tokens: Maybe[Count] = None
    cached_tokens: Maybe[Count] = None
    cost_usd: Maybe[Cost] = None
    cost_usd_micros: Maybe[Count] = None
    logprobs: Maybe[list[Any]] = None
    completion_token_ids: Maybe[list[Any]] = None
    prompt_token_ids: Maybe[list[Any]] = None
    extra: Maybe[dict[str, Any]] = None


class _Common(Strict):
    producer: Maybe[ProducerId] = None
    producer_seq: Maybe[Count] = None
    claimed_time: Maybe[ClaimedTime] = None
    ttl_remaining_s: Maybe[Count] = None
    extra: Maybe[dict[str, Any]] = None

    @model_validator(mode="after")
    def _producer_has_number(self) -> _Common:
        if (self.producer is None) != (self.producer_seq is None):
            raise ValueError("producer and producer_seq come together")
        return self


class ModelRequest(_Common):
    """What is sent to a model: only the messages not reported before."""

    kind: Literal["model_request"]
    messages: Several[Message]
    attempt_id: Maybe[AttemptId] = None
    model: Maybe[Name] = None
    prompt_tokens: Maybe[Count] = None
    tokens_before: Maybe[Count] = None
    tools: Maybe[list[Any]] = None
    context_sha256: Maybe[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = None


class ModelResponse(_Common):
    """What a model answered. Terminal: it closes its attempt and its tokens count."""

    kind: Literal["model_response"]
    text: Maybe[str] = None
    tool_calls: Maybe[Several[AnnouncedCall]] = None
    reasoning: Maybe[str] = None
    attempt_id: Maybe[AttemptId] = None
    model: Maybe[Name] = None
    finish_reason: Maybe[Name] = None
    usage: Maybe[Usage] = None
    reasoning_effort: Maybe[str | float] = None
    llm_call_count: Maybe[Count] = None
    copied: Maybe[bool] = None

    @model_validator(mode="after")
    def _says_something(self) -> ModelResponse:
        if self.text is None and self.tool_calls is None and self.reasoning is None:
            raise ValueError("one of text, tool_calls, reasoning is required")
        return self


class ModelFailure(_Common):
    """A model request that ended without an answer. Terminal for its attempt."""

    kind: Literal["model_failure"]
    reason: FailureReason
    attempt_id: Maybe[AttemptId] = None
    status: Maybe[Annotated[int, Field(ge=0, le=999)]] = None
    message: Maybe[str] = None


class ToolCall(_Common):
    """The verdict on one tool call: allowed, or blocked at a stage and why."""

    kind: Literal["tool_call"]
    call_id: CallId
    tool: Name
    allowed: bool
    arguments: Any = None
    stage: Maybe[BlockStage] = None
    reason: Maybe[str] = None


class ToolResult(_Common):
    """What a tool gave back; `content` is any JSON value, null included."""

    kind: Literal["tool_result"]
    content: Any
    call_id: Maybe[CallId] = None
    ok: bool = True
    on: Maybe[Literal["request"]] = None
    subagent_trajectory_ref: Maybe[list[Any] | dict[str, Any]] = None


class CustomEvent(_Common):
    """Something of the runtime's own, of a type that the session declared when it was opened."""

    kind: Literal["event"]
    type: EventType
    payload: Any


class Wake(_Common):
    """Wake another session: `target`, or whom this session wakes by default (docs/addressing.md)."""

    kind: Literal["wake"]
    input: Any
    target: Maybe[Name] = None


class WakeSource(Strict):
    """The event that a wake comes from."""

    session_id: Annotated[str, AfterValidator(check_session_id)]
    generation: Annotated[str, AfterValidator(check_generation)]
    sequence: Count


class Woken(Strict):
    """A wake as it arrives at its target. No runtime reports it: the session that wakes has it delivered."""

    claimed_time: ClassVar[None] = None
    ttl_remaining_s: ClassVar[None] = None

    kind: Literal["wake"]
    input: Any
    wake_id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    source: WakeSource


Reported = ModelRequest | ModelResponse | ModelFailure | ToolCall | ToolResult | CustomEvent | Wake
STEP: TypeAdapter[Reported] = TypeAdapter(Annotated[Reported, Field(discriminator="kind")])
STEP_KINDS: tuple[str, ...] = (
    "model_request",
    "model_response",
    "model_failure",
    "tool_call",
    "tool_result",
    "event",
    "wake",
)

AnyStep = Reported | Woken


def step_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each step kind, by kind, as `affidavit schema` prints them."""
    models: tuple[type[Strict], ...] = (
        ModelRequest,
        ModelResponse,
        ModelFailure,
        ToolCall,
        ToolResult,
        CustomEvent,
        Wake,
    )
    return {
        kind: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **model.model_json_schema(schema_generator=WireSchema),
        }
        for kind, model in zip(STEP_KINDS, models, strict=True)
    }
