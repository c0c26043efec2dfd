"""How an update is refused."""

from __future__ import annotations

from typing import NoReturn

from temporalio.exceptions import ApplicationError

from workflows import metrics


def refuse(type_: str, reason: str) -> NoReturn:
    """Refuse an update: the caller gets the type and the reason, the session goes on."""
    metrics.refused(type_)
    raise ApplicationError(reason, type=type_, non_retryable=True)
