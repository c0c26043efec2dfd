"""OpenAI's Agents SDK: a tracing processor that is the run's hooks as well.

    tracing = AffidavitTracing(session)
    add_trace_processor(tracing)
    await Runner.run(agent, "…", hooks=tracing)

The hooks admit and report: a processor's exceptions never leave the SDK, so it could not stop a run. The spans tell
what hooks are not told: a provider's error, a tool that raised, a stream that nobody read on. Needs the `openai-agents`
extra.
"""

from __future__ import annotations

from typing import Any

from agents import Agent, ModelResponse, RunContextWrapper, RunHooks, Tool
from agents.items import TResponseInputItem
from agents.tracing import (
    FunctionSpanData,
    GenerationSpanData,
    ResponseSpanData,
    Span,
    Trace,
    TracingProcessor,
    get_current_span,
)

from affidavit.finish import finish_word
from affidavit.ids import new_session_id
from affidavit.integrations.openai_shapes import output_fields, plain, responses_answer, responses_messages
from affidavit.modelcalls import ModelCall, ModelCalls, SpanError, correction_message
from affidavit.reporter import Reports
from affidavit.toolresults import reportable
from affidavit.tools import report_tool_step
from affidavit.usage import openai_responses_usage


class AffidavitTracing(TracingProcessor, RunHooks[Any]):
    """Reports the runs that have it as their hooks to one session; spans of other runs are passed over."""

    def __init__(self, session: Reports) -> None:
        self._calls = ModelCalls(session)
        # By the span in which a model or a tool is called: parallel agents and calls have one each.
        self._running: dict[str | None, ModelCall] = {}
        self._words: dict[str | None, str | None] = {}
        self._tools: dict[str | None, str] = {}

    # -- hooks -------------------------------------------------------------------------------------------

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """Ask whether the model may be called; raises where it may not."""
        where = _here()
        if (before := self._running.pop(where, None)) is not None:
            before.fail()
        model = agent.model if isinstance(agent.model, str) else None
        call = await self._calls.begin(responses_messages(system_prompt, input_items), model=model)
        if call.correction is not None:
            input_items.append(correction_message(call.correction))  # type: ignore[arg-type]
        self._running[where] = call

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Report the answer, a streamed one too."""
        where = _here()
        call, word = self._running.pop(where, None), self._words.pop(where, None)
        if call is None:
            return
        fields = output_fields(plain(response.output))
        # A chat model's span does not say why it stopped, except that calls say it themselves.
        fields["finish_reason"] = finish_word(word, calls=bool(fields["tool_calls"])) or (
            "tool_calls" if fields["tool_calls"] else None
        )
        usage = response.usage
        call.respond(**fields, usage=openai_responses_usage(usage) if usage.total_tokens else None)

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        """Report that a tool is called."""
        call_id = self._tools[_here()] = getattr(context, "tool_call_id", None) or new_session_id()
        step = {"kind": "tool_call", "call_id": call_id, "tool": tool.name, "allowed": True}
        arguments = getattr(context, "tool_arguments", None)
        report_tool_step(self._calls.reporter, step | ({"arguments": arguments} if arguments else {}))

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        """Report its result, which is the text of an error where the SDK has made one of it."""
        span = get_current_span()
        self._result(_here(), result, ok=span is None or span.error is None)

    # -- the tracing processor -----------------------------------------------------------------------------

    def on_span_end(self, span: Span[Any]) -> None:
        """Report what has ended in a way that no hook is told of."""
        data = span.span_data
        if isinstance(data, GenerationSpanData | ResponseSpanData):
            call = self._running.get(span.parent_id)
            if span.error is not None and call is not None:
                del self._running[span.parent_id]
                call.fail(_error(span))
            elif isinstance(data, ResponseSpanData) and data.response is not None:
                self._words[span.parent_id] = responses_answer(data.response)["finish_reason"]
            return
        if isinstance(data, FunctionSpanData):
            error = _error(span)
            self._result(span.span_id, {"error": type(error).__name__, "message": str(error)}, ok=False)
        # The span around a call is over, and no answer was read.
        if (call := self._running.pop(span.span_id, None)) is not None:
            call.fail()

    def on_span_start(self, span: Span[Any]) -> None:
        """Nothing is known yet."""

    def on_trace_start(self, trace: Trace) -> None:
        """A trace is no session: the caller has opened that."""

    def on_trace_end(self, trace: Trace) -> None:
        """The session may hold further runs."""

    def shutdown(self) -> None:
        """End the calls that are still open."""
        self._calls.drop()

    def force_flush(self) -> None:
        """The session flushes when it is closed."""

    def _result(self, where: str | None, content: object, *, ok: bool) -> None:
        if (call_id := self._tools.pop(where, None)) is not None:
            step = {"kind": "tool_result", "call_id": call_id, "ok": ok, "content": reportable(content)}
            report_tool_step(self._calls.reporter, step)


def _here() -> str | None:
    span = get_current_span()
    return span.span_id if span is not None else None


def _error(span: Span[Any]) -> SpanError:
    error = span.error or {"message": "the call was dropped", "data": None}
    detail = (error.get("data") or {}).get("error")
    return SpanError(f"{error['message']}: {detail}" if detail else error["message"])
