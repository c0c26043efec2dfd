"""A LangGraph agent, attested by a LangChain callback handler.

The model is scripted, so no account is needed. Beside `affidavit dev`: python examples/with_langgraph.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from model_server import MODEL, Turn, serving

from affidavit.client import SessionClient
from affidavit.contract import Agent
from affidavit.integrations.langchain import AffidavitCallbackHandler

AGENT = Agent(version="1.0", charter="weather desk", instance_uid="example-3")
SCRIPT = (
    Turn(calls=[("c1", "temperature", '{"city":"Oslo"}'), ("c2", "temperature", '{"city":"Rome"}')], usage=(64, 30, 0)),
    Turn(text="Rome is 24 degrees warmer than Oslo.", usage=(120, 12, 64)),
)


@tool
async def temperature(city: str) -> int:
    """The temperature in a city, in degrees."""
    return {"Oslo": 2, "Rome": 26}[city]


def graph_with(model: Any) -> Any:
    async def ask(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([temperature]))
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def main() -> None:
    affidavit = await SessionClient.connect(admit_timeout=20)
    with serving(*SCRIPT) as server:
        async with affidavit.session({"agent": AGENT}) as session:
            handler = AffidavitCallbackHandler(session)
            model = ChatOpenAI(base_url=server.url, api_key="none", model=MODEL)
            # `handler.gate |` is needed only where the breaker's action is `inject`.
            graph = graph_with(handler.gate | model.bind_tools([temperature]))
            ask = {"messages": [("user", "How much warmer is Rome than Oslo?")]}
            answer = await graph.ainvoke(ask, {"callbacks": [handler]})
            print(answer["messages"][-1].content)
    assert session.outcome is not None
    print(f"session {session.session_id} {session.outcome.status}, receipt {session.outcome.receipt_id}")


asyncio.run(main())
