"""Activities whose input is gone from the evidence store fail at once, instead of being tried for ever (B9).

The SDK opens inputs before an activity runs, and takes every exception there for one that may pass. So a payload
that is lost comes in as something else, and is refused here. One that is encrypted with a key this worker lacks is not
lost: the attempt fails, and the next one may run where the key is.
"""

from __future__ import annotations

from typing import Any

from temporalio.common import RawValue
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.errors import IntegrityError, TransientError, application_error
from affidavit.offloading import UNAVAILABLE, Unavailable


class LostInputs(Interceptor):
    """For a worker whose activities get inputs by the evidence store."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        for argument in input.args:
            lost = _lost(argument)
            if lost is not None and lost.unknown_key is not None:
                raise application_error(
                    TransientError(f"a payload is encrypted with key {lost.unknown_key}, which this worker lacks")
                )
            if lost is not None:
                raise application_error(IntegrityError("a payload of the session is lost or altered"))
        return await super().execute_activity(input)


def _lost(argument: Any) -> Unavailable | None:
    if isinstance(argument, RawValue):
        return Unavailable.of(argument.payload) if argument.payload.metadata.get("encoding") == UNAVAILABLE else None
    return argument if isinstance(argument, Unavailable) else None
