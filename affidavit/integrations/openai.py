"""OpenAI's client, attested: each call is admitted before it is made, and reported with what came of it.

    client = attest(AsyncOpenAI(), session)      # or OpenAI() with a session of SyncSessionClient

`chat.completions` and `responses`: `create`, `parse`, `stream`, streaming or not. A stream that is closed or dropped
before its end is reported as cancelled, once. Every other call of a model is refused. Needs the `openai` extra.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from openai import AsyncOpenAI, OpenAI

from affidavit.errors import NotAttested
from affidavit.integrations import openai_shapes as shapes
from affidavit.integrations.openai_gate import admitted, close_gate
from affidavit.integrations.openai_streams import AsyncStream, Parts, SyncStream
from affidavit.modelcalls import ModelCall, ModelCalls, correction_message
from affidavit.reporter import Reports

C = TypeVar("C", OpenAI, AsyncOpenAI)

_RAW_HEADER: Final = "X-Stainless-Raw-Response"


def attest(client: C, session: Reports, *, stream_usage: bool = True) -> C:
    """A copy of a client whose calls belong to a session; the given one stays as it is.

    What is made of the copy by `with_options`, `copy`, `with_raw_response` is attested too.

    Args:
        session: of `SessionClient`, or of `SyncSessionClient`; the latter also for a synchronous client.
        stream_usage: ask for the usage of streamed chat completions where the caller does not; the chunk that brings
            it is kept from the caller. For servers that know no `stream_options`, turn it off.

    The client's calls raise, besides its own errors:
        SessionRefused: the session does not admit the call: a loop was detected, say.
        AffidavitUnavailable: nobody answers, so the call is not made.
        NotAttested: it would call a model by an endpoint that is not covered, so it is not made.
    """
    return _attested(client.copy(), ModelCalls(session), stream_usage)


def _attested(client: C, calls: ModelCalls, stream_usage: bool) -> C:
    made = _asynchronous if isinstance(client, AsyncOpenAI) else _synchronous
    for resource, api in ((client.chat.completions, _Chat(stream_usage)), (client.responses, _Responses())):
        for name in ("create", "parse"):
            setattr(resource, name, made(getattr(resource, name), api, calls))
    copied = client.copy

    @functools.wraps(copied)
    def copy(**options: Any) -> C:
        return _attested(copied(**options), calls, stream_usage)

    changed: Any = client
    changed.copy = changed.with_options = copy
    changed.beta.chat = client.chat  # the same API under its old name
    close_gate(client)
    return client


class _Chat:
    def __init__(self, stream_usage: bool) -> None:
        self._stream_usage = stream_usage

    def request(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        messages = list(sent.get("messages") or ())
        return {"messages": shapes.chat_messages(messages), "sent": shapes.plain(messages)}

    def prepared(self, sent: dict[str, Any], correction: str | None) -> tuple[dict[str, Any], bool]:
        if correction is not None:
            sent = {**sent, "messages": [*sent["messages"], correction_message(correction)]}
        if not (sent.get("stream") and self._stream_usage) or sent.get("stream_options"):
            return sent, False
        return {**sent, "stream_options": {"include_usage": True}}, True

    answer = staticmethod(shapes.chat_answer)
    stream: Callable[[], Parts] = shapes.ChatStream


class _Responses:
    def request(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        messages = shapes.responses_messages(sent.get("instructions"), sent.get("input"))
        return {"messages": messages}

    def prepared(self, sent: dict[str, Any], correction: str | None) -> tuple[dict[str, Any], bool]:
        if correction is not None:
            given = sent.get("input") or []
            items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
            sent = {**sent, "input": [*items, correction_message(correction)]}
        return sent, False

    answer = staticmethod(shapes.responses_answer)
    stream: Callable[[], Parts] = shapes.ResponsesStream


_Api = _Chat | _Responses


def _synchronous(original: Callable[..., Any], api: _Api, calls: ModelCalls) -> Callable[..., Any]:
    @functools.wraps(original)
    def create(**sent: Any) -> Any:
        call = calls.begin_blocking(**_request(api, sent))
        sent, hide = api.prepared(sent, call.correction)
        try:
            with admitted():
                answer = original(**sent)
        except BaseException as error:
            call.fail(error)
            raise
        return SyncStream(answer, call, api.stream(), hide) if sent.get("stream") else _reported(answer, api, call)

    return create


def _asynchronous(original: Callable[..., Any], api: _Api, calls: ModelCalls) -> Callable[..., Any]:
    @functools.wraps(original)
    async def create(**sent: Any) -> Any:
        call = await calls.begin(**_request(api, sent))
        sent, hide = api.prepared(sent, call.correction)
        try:
            with admitted():
                answer = await original(**sent)
        except BaseException as error:
            call.fail(error)
            raise
        return AsyncStream(answer, call, api.stream(), hide) if sent.get("stream") else _reported(answer, api, call)

    return create


def _request(api: _Api, sent: Mapping[str, Any]) -> dict[str, Any]:
    raw = (sent.get("extra_headers") or {}).get(_RAW_HEADER)
    if raw == "stream" or (raw and sent.get("stream")):
        raise NotAttested("a raw streaming response cannot be attested; use stream=True without it")
    tools = sent.get("tools")
    named = {"model": str(sent["model"])} if isinstance(sent.get("model"), str) else {}
    return api.request(sent) | named | ({"tools": shapes.plain(list(tools))} if isinstance(tools, list | tuple) else {})


def _reported(answer: Any, api: _Api, call: ModelCall) -> Any:
    try:
        # Of a raw response, which keeps what it has parsed.
        whole = answer.parse() if hasattr(answer, "http_response") and hasattr(answer, "parse") else answer
        call.respond(**api.answer(whole))
    except BaseException as error:  # an answer that nobody can read
        call.fail(error)
        raise
    return answer
