"""A span processor for OpenTelemetry: GenAI spans become steps, whichever library emits them.

    tracer_provider.add_span_processor(AffidavitSpanProcessor(session))     # a session of SyncSessionClient

It reads the GenAI semantic conventions as they stand since v1.37: `gen_ai.operation.name`, `gen_ai.input.messages`,
`gen_ai.output.messages`, `gen_ai.usage.*`, and `execute_tool` spans. The instrumentation must be told to capture
content; without it the session holds counts and no texts, and the breaker has nothing to judge. A span of a model call
is refused at its start, before the call, by the exception that `start_span` then raises. Needs the `otel` extra.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode

from affidavit.contract import REFUSED_LOOP
from affidavit.cursor import Message
from affidavit.errors import SessionRefused
from affidavit.finish import finish_word
from affidavit.ids import new_session_id
from affidavit.modelcalls import ModelCalls, SpanError
from affidavit.sync import SyncSession
from affidavit.tools import report_tool_step

MODEL_OPERATIONS: Final = frozenset({"chat", "generate_content", "text_completion"})
TOOL_OPERATION: Final = "execute_tool"


class AffidavitSpanProcessor(SpanProcessor):
    """Reports the GenAI spans of a tracer provider to one session."""

    def __init__(self, session: SyncSession, *, only: Callable[[ReadableSpan], bool] | None = None) -> None:
        """Takes a session of `SyncSessionClient`: a span starts in the agent's thread, which waits for the admission.

        Args:
            only: which spans belong to the session, where the provider serves several.
        """
        self._calls = ModelCalls(session)
        self._only = only
        self._admitted: dict[int, str] = {}
        self._calls.reporter.handle.on_leaving(self._drop)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Have a model call admitted.

        Raises:
            SessionRefused: the call must not be made; the reason is the breaker's correction where it injects one.
            AffidavitUnavailable: nobody answers, so it must not be made either.
        """
        if _operation(span) not in MODEL_OPERATIONS or not self._mine(span):
            return
        attempt_id, correction = self._calls.reporter.wait(self._calls.admit)
        if correction is not None:
            refused = SessionRefused(REFUSED_LOOP, correction)  # a span cannot put a message before the model
            self._calls.abandon(attempt_id, refused)
            raise refused
        self._admitted[span.get_span_context().span_id] = attempt_id

    def on_end(self, span: ReadableSpan) -> None:
        """Report what the span says."""
        operation = _operation(span)
        if operation == TOOL_OPERATION and self._mine(span):
            self._tool(span)
            return
        context = span.get_span_context()
        attempt_id = self._admitted.pop(context.span_id, None) if context is not None else None
        if attempt_id is not None:
            self._calls.reporter.soon(lambda: self._model(span, attempt_id))

    def _model(self, span: ReadableSpan, attempt_id: str) -> None:
        about = span.attributes or {}
        messages = span_messages(about.get("gen_ai.system_instructions"), about.get("gen_ai.input.messages"))
        model = about.get("gen_ai.request.model")
        tools = _parsed(about.get("gen_ai.tool.definitions"))
        call = self._calls.requested(
            attempt_id,
            None,
            messages,
            model=model if isinstance(model, str) else None,
            tools=tools if isinstance(tools, list) else None,
        )
        answer = span_answer(about)
        if span.status.status_code is StatusCode.ERROR:
            call.fail(SpanError(f"{about.get('error.type', 'error')}: {span.status.description or ''}".rstrip(": ")))
        elif answer is None:
            call.fail()
        else:
            call.respond(**answer)

    def _tool(self, span: ReadableSpan) -> None:
        about = span.attributes or {}
        call_id = str(about.get("gen_ai.tool.call.id") or new_session_id())
        name = str(about.get("gen_ai.tool.name") or "tool")
        step: dict[str, Any] = {"kind": "tool_call", "call_id": call_id, "tool": name, "allowed": True}
        if (arguments := _parsed(about.get("gen_ai.tool.call.arguments"))) is not None:
            step["arguments"] = arguments
        failed = span.status.status_code is StatusCode.ERROR
        content = _parsed(about.get("gen_ai.tool.call.result"))
        if failed and content is None:
            content = {"error": str(about.get("error.type", "error")), "message": span.status.description or ""}
        report_tool_step(self._calls.reporter, step)
        result = {"kind": "tool_result", "call_id": call_id, "ok": not failed, "content": content}
        report_tool_step(self._calls.reporter, result)

    def _mine(self, span: ReadableSpan) -> bool:
        return self._only is None or self._only(span)

    def _drop(self) -> None:
        while self._admitted:
            self._calls.abandon(self._admitted.popitem()[1])


def span_messages(instructions: Any, sent: Any) -> list[Message]:
    """The messages of `gen_ai.system_instructions` and `gen_ai.input.messages`, JSON text or objects."""
    parts = _parsed(instructions)
    found: list[Message] = [{"role": "system", "content": _text(parts)}] if parts else []
    for message in _objects(_parsed(sent)):
        parts = _objects(message.get("parts"))
        results = [part for part in parts if part.get("type") == "tool_call_response"]
        found += [_result(part) for part in results]
        if len(results) < len(parts) or not parts:
            found.append(_message(message, parts))
    return found


def span_answer(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of `ModelCall.respond` from a span's attributes; None of a span that tells of no answer."""
    outputs = _objects(_parsed(about.get("gen_ai.output.messages")))
    words = about.get("gen_ai.response.finish_reasons")
    usage = {
        "prompt_tokens": about.get("gen_ai.usage.input_tokens"),
        "completion_tokens": about.get("gen_ai.usage.output_tokens"),
        "cached_tokens": about.get("gen_ai.usage.cache_read.input_tokens"),
    }
    counted = {name: value for name, value in usage.items() if isinstance(value, int)}
    if not outputs and not words and not counted:
        return None
    message = _message({"role": "assistant"}, [part for each in outputs for part in _objects(each.get("parts"))])
    word = words[0] if isinstance(words, Sequence) and words else next((o.get("finish_reason") for o in outputs), None)
    calls = message.get("tool_calls", [])
    return {
        "text": message["content"] or None,
        "tool_calls": calls,
        "reasoning": message.get("reasoning"),
        "finish_reason": finish_word(word if isinstance(word, str) else None, calls=bool(calls)),
        "usage": counted or None,
        "model": about.get("gen_ai.response.model"),
    }


def _message(message: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Message:
    found: Message = {"role": message.get("role", "user"), "content": _text(parts)}
    calls = [part for part in parts if part.get("type") == "tool_call"]
    if calls:
        found["tool_calls"] = [
            {"call_id": c.get("id") or "unnamed", "name": c.get("name") or "unnamed", "arguments": c.get("arguments")}
            for c in calls
        ]
    if thoughts := "".join(str(part.get("content", "")) for part in parts if part.get("type") == "reasoning"):
        found["reasoning"] = thoughts
    return found


def _result(part: Mapping[str, Any]) -> Message:
    content = part.get("response", part.get("result"))
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"role": "tool", "content": text} | ({"tool_call_id": part["id"]} if part.get("id") else {})


def _text(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(str(part.get("content", "")) for part in _objects(parts) if part.get("type", "text") == "text")


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []


def _parsed(value: Any) -> Any:
    """An attribute that is JSON text where the SDK cannot hold objects; any other text is itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _operation(span: ReadableSpan) -> Any:
    return (span.attributes or {}).get("gen_ai.operation.name")
