"""OpenAI's two APIs in the form of formats.md 2: what is sent, what comes back, and streams put together (pure).

Works on the SDK's objects and on plain JSON alike, and imports neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from affidavit.cursor import Message
from affidavit.finish import finish_word
from affidavit.usage import openai_responses_usage, openai_usage

Fields = dict[str, Any]
"""Arguments of `ModelCall.respond`."""
_TEXTS: Final = ("text", "input_text", "output_text", "refusal")


def plain(value: Any) -> Any:
    """An object of the SDK as the JSON it was made from."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.model_dump(mode="json", exclude_unset=True) if hasattr(value, "model_dump") else value


# -- chat completions -----------------------------------------------------------------------------------


def chat_messages(messages: Iterable[Any]) -> list[Message]:
    """The messages of a request."""
    return [_chat_message(plain(message)) for message in messages]


def chat_answer(completion: Any) -> Fields:
    """What a completion says. Of several choices the first is the answer; the others are kept beside it."""
    whole = plain(completion)
    choices = whole.get("choices") or [{}]
    message = choices[0].get("message") or {}
    fields = _chat_fields(message, choices[0].get("finish_reason"), whole.get("usage"), whole.get("model"))
    if len(choices) > 1:
        fields["extra"] = {"choices": choices[1:]}
    return fields


class ChatStream:
    """A streamed completion, put together."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None
        self._usage: Any = None
        self._model: str | None = None

    def add(self, chunk: Any) -> None:
        """Take the next chunk."""
        part = plain(chunk)
        self._model = part.get("model") or self._model
        self._usage = part.get("usage") or self._usage
        for choice in part.get("choices") or ():
            if choice.get("index", 0) == 0:
                self._finish = choice.get("finish_reason") or self._finish
                self._delta(choice.get("delta") or {})

    def _delta(self, delta: Mapping[str, Any]) -> None:
        if text := delta.get("content") or delta.get("refusal"):
            self.text.append(text)
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            self._message["reasoning_content"] = self._message.get("reasoning_content", "") + reasoning
        for part in delta.get("tool_calls") or ():
            call = self._calls.setdefault(part.get("index", len(self._calls)), {"name": "", "arguments": ""})
            call["id"] = part.get("id") or call.get("id")
            function = part.get("function") or {}
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    def answer(self) -> Fields | None:
        """What it says, or None while it has not come to its end."""
        if self._finish is None:
            return None
        calls = [{"id": call.get("id"), "function": call} for _, call in sorted(self._calls.items())]
        message = {**self._message, "content": "".join(self.text), "tool_calls": calls}
        return _chat_fields(message, self._finish, self._usage, self._model)


def _chat_message(message: Mapping[str, Any]) -> Message:
    role = {"function": "tool"}.get(message["role"], message["role"])
    found: Message = {"role": role, "content": _content(message.get("content"))}
    if message.get("name"):
        found["name"] = message["name"]
    if role == "tool" and message.get("tool_call_id"):
        found["tool_call_id"] = message["tool_call_id"]
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_chat_call(call) for call in calls]
    return found


def _chat_fields(message: Mapping[str, Any], finish: str | None, usage: Any, model: str | None) -> Fields:
    calls = [_chat_call(call) for call in message.get("tool_calls") or ()]
    return {
        "text": message.get("content") or message.get("refusal"),
        "tool_calls": calls,
        "reasoning": message.get("reasoning_content") or message.get("reasoning"),
        "finish_reason": finish_word(finish, calls=bool(calls)),
        "usage": openai_usage(usage),
        "model": model,
    }


def _chat_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments", function.get("input"))
    return _call(call.get("id"), function.get("name"), arguments)


# -- responses --------------------------------------------------------------------------------------------


def responses_messages(instructions: Any, sent: Any) -> list[Message]:
    """The instructions and the input items of a request; items of one answer become one message."""
    items = [{"role": "user", "content": sent}] if isinstance(sent, str) else plain(list(sent or ()))
    found: list[Message] = []
    if isinstance(instructions, str) and instructions:
        found.append({"role": "system", "content": instructions})
    answer: list[Mapping[str, Any]] = []
    for item in items:
        if item.get("type", "message") in ("function_call", "reasoning") or item.get("role") == "assistant":
            answer.append(item)
            continue
        found += _answered(answer)
        answer = []
        found.append(_item(item))
    return found + _answered(answer)


def responses_answer(response: Any) -> Fields:
    """What a response says."""
    whole = plain(response)
    fields = output_fields(whole.get("output") or ())
    details = whole.get("incomplete_details") or {}
    word = finish_word(details.get("reason") or whole.get("status"), calls=bool(fields["tool_calls"]))
    return fields | {
        "finish_reason": word,
        "usage": openai_responses_usage(whole.get("usage")),
        "model": whole.get("model"),
    }


class ResponsesStream:
    """A streamed response; its last event holds the whole of it."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._response: Any = None

    def add(self, event: Any) -> None:
        """Take the next event."""
        type_ = getattr(event, "type", None)
        if type_ == "response.output_text.delta":
            self.text.append(event.delta)
        elif type_ in ("response.completed", "response.incomplete"):
            self._response = event.response

    def answer(self) -> Fields | None:
        """What it says, or None while it has not come to its end, or has failed."""
        return None if self._response is None else responses_answer(self._response)


def output_fields(items: Sequence[Mapping[str, Any]]) -> Fields:
    """Text, calls and reasoning of output items."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for item in items:
        type_ = item.get("type", "message")
        if type_ == "message":
            content = item.get("content")
            texts.append(content if isinstance(content, str) else _joined(content))
        elif type_ == "reasoning":
            thoughts.append(_joined(item.get("summary")) or _joined(item.get("content")))
        elif type_ in ("function_call", "custom_tool_call"):
            calls.append(_call(item.get("call_id"), item.get("name"), item.get("arguments", item.get("input"))))
        elif item.get("id"):
            # A tool that runs at the provider's: the call is all there is to see of it.
            calls.append(_call(item["id"], type_, {name: item[name] for name in item if name not in ("id", "type")}))
    return {
        "text": "".join(texts) if texts else None,
        "tool_calls": calls,
        "reasoning": "\n".join(filter(None, thoughts)),
    }


def _answered(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    if not items:
        return []
    fields = output_fields(items)
    message: Message = {"role": "assistant", "content": fields["text"] or ""}
    return [message | {name: fields[name] for name in ("tool_calls", "reasoning") if fields[name]}]


def _item(item: Mapping[str, Any]) -> Message:
    if "role" in item:
        return {"role": item["role"], "content": _content(item.get("content"))}
    if item.get("type", "").endswith("_output"):
        output = item.get("output")
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        return {"role": "tool", "content": text} | ({"tool_call_id": item["call_id"]} if item.get("call_id") else {})
    return {"role": "assistant", "content": json.dumps(item, ensure_ascii=False)}


# -- both -------------------------------------------------------------------------------------------------


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"call_id": call_id or "unnamed", "name": name or "unnamed", "arguments": arguments or {}}


def _content(content: Any) -> Any:
    """Texts and images by link as ATIF has them; any other part as it is."""
    if not isinstance(content, list):
        return content or ""
    return [_part(part) for part in content]


def _part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return {"type": "text", "text": str(part)}
    if part.get("type") in _TEXTS:
        return {"type": "text", "text": part.get("text") or part.get("refusal") or ""}
    return dict(part)


def _joined(parts: Any) -> str:
    return "".join(
        str(part.get("text") or part.get("refusal") or "") for part in parts or () if isinstance(part, Mapping)
    )
