"""A scripted model server on the loopback: OpenAI's chat completions and responses, streaming too, with no account.

Each request takes the next turn of the script; the last one is repeated. Standard library only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "scripted-1"


@dataclass(frozen=True)
class Turn:
    """One answer. `calls`: (call id, tool, arguments as JSON text). `usage`: prompt, completion and cached tokens."""

    text: str | None = None
    calls: Sequence[tuple[str, str, str]] = ()
    usage: tuple[int, int, int] | None = (10, 5, 0)
    finish: str | None = None
    error: int | None = None
    cut: bool = False
    """A stream that breaks off in the middle."""
    wait_s: float = 0
    """How long the model takes to answer."""

    @property
    def word(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass
class ModelServer:
    """The running server. `requests` are the bodies it was sent, in order."""

    turns: Sequence[Turn]
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def next(self, body: dict[str, Any]) -> Turn:
        with _lock:
            self.requests.append(body)
            number = len(self.requests)
        turn = self.turns[min(number, len(self.turns)) - 1]
        # A call has an id of its own, also where a model asks for the same thing again.
        again = turn in self.turns[: number - 1]
        return replace(turn, calls=[(f"{id_}-{number}", *rest) for id_, *rest in turn.calls]) if again else turn


_lock = threading.Lock()


@contextmanager
def serving(*turns: Turn) -> Iterator[ModelServer]:
    """Serve a script on a free port for the length of a block; `url` is what clients take as `base_url`."""
    server = ModelServer(turns)

    class Handler(_Handler):
        script = server

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    script: ModelServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = self.script.next(body)
        time.sleep(turn.wait_s)
        responses = self.path.endswith("/responses")
        if turn.error is not None:
            self._json({"error": {"message": "scripted error", "type": "server_error"}}, turn.error)
        elif body.get("stream"):
            self._stream(_response_events(turn) if responses else _chunks(turn, body), turn)
        else:
            self._json(_response(turn) if responses else _completion(turn))

    def _json(self, value: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[dict[str, Any]], turn: Turn) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for event in events[:2] if turn.cut else events:
                named = f"event: {event['type']}\n" if "type" in event else ""
                self.wfile.write(f"{named}data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            if not turn.cut and "type" not in events[0]:
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # the reader has gone, as some tests want it

    def log_message(self, format: str, *args: Any) -> None:
        pass


# -- chat completions -----------------------------------------------------------------------------------


def _completion(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [_chat_call(call) for call in turn.calls]
    answer = {"id": "c-1", "object": "chat.completion", "created": 0, "model": MODEL}
    return answer | {"choices": [{"index": 0, "message": message, "finish_reason": turn.word}]} | _chat_usage(turn)


def _chunks(turn: Turn, body: dict[str, Any]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in (turn.text or "").split(" ") if word]
    for index, call in enumerate(turn.calls):
        whole = _chat_call(call)["function"]
        half = len(whole["arguments"]) // 2
        first = {"name": whole["name"], "arguments": whole["arguments"][:half]}
        deltas.append({"tool_calls": [{"index": index, "id": call[0], "type": "function", "function": first}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": whole["arguments"][half:]}}]})
    chunks = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    chunks.append(_chunk([{"index": 0, "delta": {}, "finish_reason": turn.word}]))
    if (body.get("stream_options") or {}).get("include_usage") and turn.usage:
        chunks.append(_chunk([]) | _chat_usage(turn))
    return chunks


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": choices}


def _chat_call(call: tuple[str, str, str]) -> dict[str, Any]:
    return {"id": call[0], "type": "function", "function": {"name": call[1], "arguments": call[2]}}


def _chat_usage(turn: Turn) -> dict[str, Any]:
    if turn.usage is None:
        return {}
    prompt, completion, cached = turn.usage
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": counts | {"prompt_tokens_details": {"cached_tokens": cached}}}


# -- responses ------------------------------------------------------------------------------------------


def _response(turn: Turn, status: str = "completed") -> dict[str, Any]:
    return {
        "id": "r-1",
        "object": "response",
        "created_at": 0,
        "model": MODEL,
        "status": status,
        "output": _output(turn) if status == "completed" else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": None,
        "error": None,
        "usage": _response_usage(turn) if status == "completed" else None,
    }


def _output(turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.text is not None:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        message = {"type": "message", "id": "m-1", "role": "assistant", "status": "completed", "content": content}
        items.append(message)
    for call_id, name, arguments in turn.calls:
        call = {"type": "function_call", "id": f"f-{call_id}", "call_id": call_id, "name": name}
        items.append(call | {"arguments": arguments, "status": "completed"})
    return items


def _response_usage(turn: Turn) -> dict[str, Any] | None:
    if turn.usage is None:
        return None
    prompt, completion, cached = turn.usage
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def _response_events(turn: Turn) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "response.created", "response": _response(turn, "in_progress")}]
    for place, item in enumerate(_output(turn)):
        where = {"output_index": place, "item_id": item["id"]}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": place, "item": {**item, **empty}})
        if item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append({"type": "response.content_part.added", **where, "content_index": 0, "part": part})
            text = {"type": "response.output_text.delta", **where, "content_index": 0, "logprobs": []}
            events.append({**text, "delta": turn.text})
        else:
            delta = {"type": "response.function_call_arguments.delta", **where}
            events.append({**delta, "delta": item["arguments"]})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": "response.completed", "response": _response(turn)})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]
