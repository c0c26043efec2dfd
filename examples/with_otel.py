"""An agent that emits OpenTelemetry's GenAI spans, attested by a span processor.

The model is scripted, so no account is needed. Beside `affidavit dev`: python examples/with_otel.py
"""

from __future__ import annotations

import json
from typing import Any

from model_server import MODEL, Turn, serving
from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider

from affidavit.contract import Agent
from affidavit.integrations.otel import AffidavitSpanProcessor
from affidavit.sync import SyncSessionClient

AGENT = Agent(version="1.0", charter="weather desk", instance_uid="example-4")


def main() -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("example")
    question = "How much warmer is Rome than Oslo?"
    with (
        serving(Turn(text="Rome is 24 degrees warmer than Oslo.", usage=(40, 12, 0))) as server,
        SyncSessionClient.connect(admit_timeout=20) as affidavit,
        affidavit.session({"agent": AGENT}) as session,
        OpenAI(base_url=server.url, api_key="none") as client,
    ):
        provider.add_span_processor(AffidavitSpanProcessor(session))
        # From here to the end of the block stands for what an instrumentation does by itself.
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": MODEL}
        with tracer.start_as_current_span(f"chat {MODEL}", attributes=about) as span:
            sent: Any = [{"role": "user", "content": question}]
            answer = client.chat.completions.create(model=MODEL, messages=sent)
            text, usage = answer.choices[0].message.content, answer.usage
            span.set_attributes(
                {
                    "gen_ai.input.messages": _messages("user", question),
                    "gen_ai.output.messages": _messages("assistant", text),
                    "gen_ai.response.finish_reasons": [answer.choices[0].finish_reason],
                    "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else 0,
                    "gen_ai.usage.output_tokens": usage.completion_tokens if usage else 0,
                }
            )
        print(text)
    assert session.outcome is not None
    print(f"session {session.session_id} {session.outcome.status}, receipt {session.outcome.receipt_id}")


def _messages(role: str, text: str | None) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


main()
