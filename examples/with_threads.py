"""An agent of one's own without a framework and without an event loop, attested.

The model is scripted, so no account is needed. Beside `affidavit dev`: python examples/with_threads.py
"""

from __future__ import annotations

from typing import Any

from model_server import MODEL, Turn, serving
from openai import OpenAI

from affidavit.contract import Agent
from affidavit.errors import SessionRefused, ToolBlocked
from affidavit.integrations.openai import attest
from affidavit.sync import SyncSessionClient

AGENT = Agent(version="1.0", charter="refund desk", instance_uid="example-5")
SCRIPT = (
    Turn(calls=[("c1", "refund", '{"order":17,"amount":900}')], usage=(64, 30, 0)),
    Turn(calls=[("c2", "refund", '{"order":17,"amount":90}')], usage=(90, 30, 64)),
    Turn(text="I refunded 90.", usage=(120, 12, 64)),
)


def policy(arguments: Any) -> str | None:
    return "more than 100 needs a human" if arguments["amount"] > 100 else None


def main() -> None:
    with (
        serving(*SCRIPT) as model,
        SyncSessionClient.connect(admit_timeout=20) as affidavit,
        affidavit.session({"agent": AGENT}) as session,
        attest(OpenAI(base_url=model.url, api_key="none"), session) as client,
    ):

        @session.tool(policy=policy)
        def refund(order: int, amount: int) -> str:
            return f"order {order}: {amount} refunded"

        messages: list[Any] = [{"role": "user", "content": "Refund my order 17."}]
        try:
            while True:
                message = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    if call.type != "function":
                        continue
                    try:
                        result = refund.call(call.id, call.function.arguments)
                    except ToolBlocked as blocked:
                        result = f"blocked: {blocked.reason}"
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            print(message.content)
        except SessionRefused as refused:
            print("stopped:", refused.reason)
    assert session.outcome is not None
    print(f"session {session.session_id} {session.outcome.status}, receipt {session.outcome.receipt_id}")


main()
