"""No call of a model leaves an attested OpenAI client unadmitted, whichever way it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import openai
import pytest

from affidavit.errors import NotAttested
from affidavit.integrations import openai_gate
from affidavit.integrations.openai import attest
from examples.model_server import Turn, serving
from tests.integrations.test_openai import HI, session_of
from tests.support.oracle import attested
from tests.support.rig import AGENT, Rig, actions

Way = Callable[[Any], Any]
COVERED: list[Way] = [
    lambda client: client.with_options(timeout=5).chat.completions.create(model="m", messages=HI),
    lambda client: client.copy().copy(max_retries=1).chat.completions.create(model="m", messages=HI),
    lambda client: client.with_options(timeout=5).responses.create(model="m", input="hi"),
    lambda client: client.beta.chat.completions.create(model="m", messages=HI),
    lambda client: client.with_raw_response.chat.completions.create(model="m", messages=HI),
    lambda client: client.chat.completions.parse(model="m", messages=HI),
    lambda client: client.responses.parse(model="m", input="hi"),
]
NOT_COVERED: list[Way] = [
    lambda client: client.completions.create(model="m", prompt="q"),
    lambda client: client.responses.compact(model="m", input="q"),
    lambda client: client.with_options(timeout=5).completions.create(model="m", prompt="q"),
    lambda client: client.with_raw_response.completions.create(model="m", prompt="q"),
    lambda client: client.embeddings.create(model="m", input="q"),
    lambda client: client.images.generate(prompt="q"),
    lambda client: client.beta.threads.create_and_run(assistant_id="a"),
    lambda client: client.beta.responses.create(model="m", input="q"),
    lambda client: client.post("/chat/completions", cast_to=object, body={"model": "m", "messages": HI}),
    lambda client: client.post("/files/../chat/completions", cast_to=object, body={}),
    lambda client: client.patch("/responses", cast_to=object, body={}),
    lambda client: client.realtime.connect(model="m"),
    lambda client: client.responses.connect(),
]


async def test_c1_every_covered_way_is_admitted_once(running: Rig) -> None:
    with serving(*(Turn(text=f"answer {number}") for number in range(len(COVERED)))) as model:
        async with session_of(running, model) as (session, client):
            for way in COVERED:
                await way(client)
        events = attested(running, session.outcome)
    assert actions(events) == ["opened"] + ["model_request", "model_response"] * 7
    assert len(model.requests) == 7


@pytest.mark.filterwarnings("ignore:The Assistants API is deprecated")
async def test_c1_what_is_not_covered_is_not_made(running: Rig) -> None:
    with serving(Turn(text="a")) as model:
        async with session_of(running, model) as (session, client):
            for way in NOT_COVERED:
                with pytest.raises(NotAttested, match=r"attested are chat\.completions and responses"):
                    await way(client)
            streaming = client.with_options(timeout=5).chat.completions.with_streaming_response
            with pytest.raises(NotAttested, match="cannot be attested"):
                async with streaming.create(model="m", messages=HI):
                    pass
        assert actions(attested(running, session.outcome)) == ["opened"]
    assert model.requests == []


async def test_a_given_client_stays_as_it_is(running: Rig) -> None:
    with serving(Turn(text="a")) as model:
        async with running.client.session({"agent": AGENT}) as session:
            given = openai.AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0)
            attest(given, session)
            await given.beta.chat.completions.create(model="m", messages=HI)
        assert actions(attested(running, session.outcome)) == ["opened"]
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("method", "url", "passes"),
    [
        ("get", "/models", True),
        ("get", "/responses/r1", True),
        ("delete", "/files/f1", True),
        ("post", "/files", True),
        ("post", "/uploads/u1/parts", True),
        ("post", "/vector_stores", True),
        ("post", "/responses/input_tokens", True),
        ("post", "/responses/r1/cancel", True),
        ("post", "/chat/completions/c1", True),
        ("post", "/chat/completions", False),
        ("post", "/responses?beta=true", False),
        ("post", "/responses/compact", False),
        ("post", "/files/../responses", False),
        ("post", "/batches", False),
        ("post", "https://elsewhere.example/v1/chat/completions", False),
        ("put", "/something_new", False),
    ],
)
def test_c1_requests_that_call_no_model_pass(method: str, url: str, passes: bool) -> None:
    assert openai_gate.calls_no_model(method, url) is passes


def test_c1_every_socket_of_the_installed_sdk_is_refused() -> None:
    client = openai.AsyncOpenAI(api_key="none")
    openai_gate.close_gate(client)
    found = []
    for path, resource in _resources(openai.AsyncOpenAI(api_key="none")):
        if hasattr(resource, "connect"):
            found.append(path)
            with pytest.raises(NotAttested):
                _reached(client, path).connect()
    assert {"realtime", "responses"} <= set(found)


def _resources(at: Any, path: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    found = [(path, at)] if path else []
    for name in dir(type(at)):
        if depth < 4 and not name.startswith(("_", "with_")):
            kind = inspect.getattr_static(type(at), name)
            if type(kind).__name__ == "cached_property" and type(getattr(at, name)).__module__.startswith("openai.res"):
                found += _resources(getattr(at, name), f"{path}.{name}".strip("."), depth + 1)
    return found


def _reached(client: Any, path: str) -> Any:
    for name in path.split("."):
        client = getattr(client, name)
    return client
