"""Activities whose input is gone from the evidence store fail at once, instead of being tried for ever (B9).

The SDK opens inputs before an activity runs, and takes every exception there for one that may pass. So a payload
that is lost comes in as something else, and is refused here.
"""

from __future__ import annotations

from typing import Any

from temporalio.common import RawValue
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.errors import IntegrityError, application_error
from affidavit.offloading import UNAVAILABLE, Unavailable


class LostInputs(Interceptor):
    """For a worker whose activities get inputs by the evidence store."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if any(_lost(argument) for argument in input.args):
            raise application_error(IntegrityError("a payload of the session is gone from the evidence store"))
        return await super().execute_activity(input)


def _lost(argument: Any) -> bool:
    if isinstance(argument, RawValue):
        return argument.payload.metadata.get("encoding") == UNAVAILABLE
    return isinstance(argument, Unavailable)
