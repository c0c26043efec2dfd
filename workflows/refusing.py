"""How an update, or a query, is refused."""

from __future__ import annotations

from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import metrics


def refuse(type_: str, reason: str) -> NoReturn:
    """Refuse an update or a query: the caller gets the type and the reason, the session goes on.

    An update that is refused is counted: in a validator, which is never replayed, or in a handler, where the meter is
    silent in a replay. Nothing that was to be done is refused by a query, so it counts nowhere.
    """
    if workflow.current_update_info() is not None:
        metrics.refused(type_)
    raise ApplicationError(reason, type=type_, non_retryable=True)
