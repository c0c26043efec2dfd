"""What an attested OpenAI client lets through: calls that were admitted, and requests that call no model.

It stands where every request of the SDK passes, not at the single methods: an endpoint that a later SDK adds, or one
that is called by `client.post`, is refused until somebody has said that it calls no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from affidavit.errors import NotAttested

COVERED: Final = "chat.completions and responses: create, parse, stream"

_STORES: Final = frozenset(("files", "uploads", "vector_stores", "containers", "conversations", "organization"))
"""First parts of paths under which things are kept and configured; nothing there has a model answer."""
_ADMITTED: ContextVar[list[None] | None] = ContextVar("affidavit_openai_admitted", default=None)


@contextmanager
def admitted() -> Iterator[None]:
    """Let one request through that calls a model; its retries belong to it."""
    token = _ADMITTED.set([None])
    try:
        yield
    finally:
        _ADMITTED.reset(token)


def calls_no_model(method: str, url: str) -> bool:
    """Whether a request of the API is known to call no model."""
    if method.lower() in ("get", "delete"):
        return True
    parts = url.partition("?")[0].strip("/").split("/")
    if ".." in parts:
        return False
    match parts:
        case ["responses", "input_tokens"] | ["responses" | "batches", _, "cancel"]:
            return True
        case ["chat", "completions", _]:  # the metadata of a stored one
            return True
    return parts[0] in _STORES


def close_gate(client: Any) -> None:
    """Make a client refuse what is not covered, sockets too, which pass by its requests."""
    original: Callable[..., Any] = client.request

    def request(cast_to: Any, options: Any, **how: Any) -> Any:
        if not calls_no_model(options.method, options.url):
            permit = _ADMITTED.get()
            if not permit:
                refuse(f"{options.method.upper()} {options.url}")
            permit.pop()
        return original(cast_to, options, **how)

    client.request = request
    client.realtime, client.live = _Refused("realtime"), _Refused("live")
    client.beta.realtime, client.beta.responses = _Refused("beta.realtime"), _Refused("beta.responses")
    client.responses.connect = _Refused("responses.connect")


def refuse(what: str) -> NoReturn:
    """Say that something is not covered, and what is."""
    raise NotAttested(
        f"{what} calls a model and cannot be attested, so it was not made; attested are {COVERED}. "
        "For what is no part of the agent's evidence use a client that is not attested"
    )


class _Refused:
    """In the place of a resource that speaks to models by a socket."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        refuse(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # so that copying, pickling and printing ask in vain, as of any object
        refuse(f"{self._name}.{name}")
