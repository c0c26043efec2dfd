"""A callback handler for LangChain, and so for LangGraph: models and tools of a run become steps of a session.

    handler = AffidavitCallbackHandler(session)
    await graph.ainvoke({"messages": [("user", "…")]}, {"callbacks": [handler]})

A model that the session does not admit is not called: `SessionRefused` or `AffidavitUnavailable` leaves the run. Where
the breaker injects a correction, put `handler.gate` before the model (`handler.gate | model`), or `pre_model_hook` into
a LangGraph agent: callbacks cannot change what is sent. Needs the `langchain` extra.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda

from affidavit.cursor import Message
from affidavit.finish import finish_word
from affidavit.ids import new_session_id
from affidavit.modelcalls import ModelCall, ModelCalls
from affidavit.reporter import Reports
from affidavit.toolresults import reportable
from affidavit.tools import report_tool_step
from affidavit.usage import langchain_usage

_ROLES: Mapping[str, str] = {"human": "user", "ai": "assistant", "function": "tool"}
_KNOWN = ("system", "developer", "user", "assistant", "tool")


class AffidavitCallbackHandler(BaseCallbackHandler):
    """Reports to one session. For synchronous runs (`invoke`) take a session of `SyncSessionClient`."""

    raise_error = True  # or LangChain would log a refusal and call the model

    def __init__(self, session: Reports) -> None:
        self._calls = ModelCalls(session)
        self._running: dict[UUID, ModelCall] = {}
        self._gated: dict[str, ModelCall] = {}
        self._tools: dict[UUID, str] = {}

    # -- models ------------------------------------------------------------------------------------------

    def on_chat_model_start(
        self, serialized: dict[str, Any] | None, messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Ask whether the model may be called; raises where it may not."""
        listed = [_message(message) for message in messages[0]]
        parameters = kwargs.get("invocation_params") or {}
        call = self._gated.pop(_fingerprint(listed), None)
        if call is None:
            model = parameters.get("model") or parameters.get("model_name")
            call = self._calls.begin_blocking(listed, model=model, tools=parameters.get("tools"))
        self._running[run_id] = call

    def on_llm_start(self, serialized: dict[str, Any] | None, prompts: list[str], *, run_id: UUID, **_: Any) -> None:
        """The same for models that complete a text."""
        messages: list[Message] = [{"role": "user", "content": prompt} for prompt in prompts]
        self._running[run_id] = self._calls.begin_blocking(messages)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Report the answer, a streamed one too."""
        call = self._running.pop(run_id, None)
        if call is None:
            return
        first = response.generations[0][0] if response.generations and response.generations[0] else None
        if isinstance(first, ChatGeneration) and isinstance(first.message, AIMessage):
            call.respond(**_answer(first.message))
        else:
            call.respond(text=first.text if first is not None else "")

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Report that there is no answer; a stream that was dropped ends here too."""
        if (call := self._running.pop(run_id, None)) is not None:
            call.fail(error)

    @property
    def gate(self) -> Runnable[Any, Any]:
        """Admits a call before its model and passes its messages on, with the breaker's correction behind them."""

        async def later(value: Any) -> list[BaseMessage]:
            messages, listed = _listed(value)
            return self._passed(messages, listed, await self._calls.begin(listed))

        def now(value: Any) -> list[BaseMessage]:
            messages, listed = _listed(value)
            return self._passed(messages, listed, self._calls.begin_blocking(listed))

        return RunnableLambda(now, afunc=later)

    @property
    def pre_model_hook(self) -> Runnable[Any, Any]:
        """`gate` for LangGraph's ready-made agent."""
        return RunnableLambda(_messages_of_state) | self.gate | RunnableLambda(_as_model_input)

    def _passed(self, messages: list[BaseMessage], listed: list[Message], call: ModelCall) -> list[BaseMessage]:
        if call.correction is not None:
            correction = SystemMessage(call.correction)
            messages, listed = [*messages, correction], [*listed, _message(correction)]
        self._gated[_fingerprint(listed)] = call
        return messages

    # -- tools -------------------------------------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Report that a tool is called."""
        name = (serialized or {}).get("name") or kwargs.get("name") or "tool"
        call_id = self._tools[run_id] = tool_call_id or new_session_id()
        arguments = reportable(inputs) if inputs is not None else input_str
        step = {"kind": "tool_call", "call_id": call_id, "tool": name, "allowed": True, "arguments": arguments}
        report_tool_step(self._calls.reporter, step)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Report its result."""
        if isinstance(output, ToolMessage):
            self._result(run_id, output.content, ok=output.status != "error")
        else:
            self._result(run_id, output, ok=True)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Report its failure."""
        self._result(run_id, {"error": type(error).__name__, "message": str(error)}, ok=False)

    def _result(self, run_id: UUID, content: Any, *, ok: bool) -> None:
        if (call_id := self._tools.pop(run_id, None)) is not None:
            step = {"kind": "tool_result", "call_id": call_id, "ok": ok, "content": reportable(content)}
            report_tool_step(self._calls.reporter, step)


def _message(message: BaseMessage) -> Message:
    role = getattr(message, "role", None) or _ROLES.get(message.type, message.type)
    found: Message = {"role": role if role in _KNOWN else "user", "content": _content(message.content)}
    if isinstance(message, AIMessage):
        found["content"] = str(message.text)
        if calls := _calls_of(message):
            found["tool_calls"] = calls
    elif isinstance(message, ToolMessage) and message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def _answer(message: AIMessage) -> dict[str, Any]:
    about = message.response_metadata
    calls = _calls_of(message)
    word = about.get("finish_reason") or about.get("stop_reason")
    thoughts = [block for block in message.content if isinstance(block, dict)] if message.content else []
    told = "".join(str(block.get("thinking") or block.get("reasoning") or "") for block in thoughts)
    return {
        "text": str(message.text),
        "tool_calls": calls,
        "reasoning": message.additional_kwargs.get("reasoning_content") or told or None,
        "finish_reason": finish_word(word, calls=bool(calls)),
        "usage": langchain_usage(message.usage_metadata),
        "model": about.get("model_name") or about.get("model"),
    }


def _calls_of(message: AIMessage) -> list[dict[str, Any]]:
    found: Sequence[Any] = [*message.tool_calls, *message.invalid_tool_calls]
    return [
        {"call_id": call["id"] or "unnamed", "name": call["name"] or "unnamed", "arguments": reportable(call["args"])}
        for call in found
    ]


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]


def _listed(value: Any) -> tuple[list[BaseMessage], list[Message]]:
    messages: list[BaseMessage] = list(value.to_messages() if hasattr(value, "to_messages") else value)
    return messages, [_message(message) for message in messages]


def _messages_of_state(state: Any) -> Any:
    return state["messages"] if isinstance(state, Mapping) else state.messages


def _as_model_input(messages: list[BaseMessage]) -> dict[str, Any]:
    return {"llm_input_messages": messages}


def _fingerprint(messages: list[Message]) -> str:
    return json.dumps(messages, sort_keys=True, default=repr)
