"""The two kinds of updates of a session. Each is counted here, towards what a run may take (design.md 4)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from temporalio import workflow
from temporalio.workflow import HandlerUnfinishedPolicy, UpdateMethodMultiParam

from workflows.budget import RunBudget
from workflows.turns import Turn, take_turn


class Session(Protocol):
    """A workflow that hands itself on."""

    budget: RunBudget


S = TypeVar("S", bound=Session)
P = ParamSpec("P")
R = TypeVar("R")

Handler = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]
Update = UpdateMethodMultiParam[Concatenate[S, P], R]


def quick_update(handler: Handler[S, P, R]) -> Update[S, P, R]:
    """An update that is answered at once."""
    return workflow.update(_counted(handler))


def waiting_update(handler: Handler[S, P, R]) -> Update[S, P, R]:
    """An update that waits, mostly for the store.

    When a run is handed on while its store is away, Temporal fails what waits in it, and the client asks the next run.
    """
    # The SDK types this form for plain functions alone.
    return workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)(_counted(handler))  # type: ignore[arg-type]


def _counted(handler: Handler[S, P, R]) -> Handler[S, P, R]:
    async def counted(session: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        take_turn(Turn.UPDATE, session.budget.take_update())
        return await handler(session, *args, **kwargs)

    return update_wrapper(counted, handler)
