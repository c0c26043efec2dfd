"""Checks that ask Temporal. Needs the client extra; nothing is started or changed on the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    GetSystemInfoRequest,
    PollActivityTaskQueueRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract
from affidavit.client import SessionClient
from affidavit.doctor.report import Verdict
from affidavit.evidence.text import printable
from affidavit.registering import registered

CALL: Final = timedelta(seconds=8)
POLL: Final = timedelta(seconds=5)
CLOCK_QUEUE: Final = "affidavit-doctor"
"""A task queue that nobody puts anything into: asking it tells the server's time."""
SHORT_RETENTION_S: Final = 24 * 3600
STALE_S: Final = 150
"""A worker that lives asks about once a minute; the server lists one that is gone for five."""
SKEW_S: Final = 2.0
BAD_SKEW_S: Final = contract.SKEW_MS / 1000
SETUP: Final = "`affidavit setup` registers them; sessions opened after that set them"
SETUP_TYPES: Final = "remove them there where nobody else uses them, then `affidavit setup`; or use another namespace"
START_WORKER: Final = "`python -m workers` starts one; see its AFFIDAVIT_ROLES and AFFIDAVIT_TASK_QUEUE"

WORKFLOW: Final = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITY: Final = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


class ServerChecks:
    """Around a connected client; every check is a method."""

    def __init__(self, client: SessionClient) -> None:
        self._client = client
        self._temporal = client.temporal
        self._service = client.temporal.workflow_service

    async def server(self) -> Verdict:
        """That it answers, and what it is."""
        info = await self._service.get_system_info(GetSystemInfoRequest(), timeout=CALL)
        target = self._temporal.service_client.config.target_host
        return Verdict("ok", f"Temporal {printable(info.server_version)} answers at {printable(target)}")

    async def namespace(self) -> Verdict:
        """That it exists, and for how long it remembers what has ended."""
        name = printable(self._temporal.namespace)
        try:
            answer = await self._service.describe_namespace(
                DescribeNamespaceRequest(namespace=self._temporal.namespace), timeout=CALL
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                do = f"`temporal operator namespace create -n {name}`, or set TEMPORAL_NAMESPACE"
                return Verdict("failed", f"{name} does not exist", do)
            raise
        retention_s = answer.config.workflow_execution_retention_ttl.seconds
        days = retention_s / 86_400
        what = f"{name}, retention {days:g} day{'' if days == 1 else 's'}"
        if 0 < retention_s < SHORT_RETENTION_S:
            return Verdict("warning", what, "outcomes are read from Temporal for less than a day; lengthen it")
        return Verdict("ok", what)

    async def search_attributes(self) -> Verdict:
        """That all are there under their types."""
        try:
            found = await registered(self._temporal)
        except RPCError as error:
            if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                what = f"cannot be listed ({printable(error.message)}). Workers with the same rights set none"
                return Verdict("warning", what, "give workers the right to list search attributes")
            raise
        if found.wrong:
            named = "; ".join(f"{name} is {how}" for name, how in found.wrong.items())
            return Verdict("failed", f"under another type: {named}. Sessions set none", SETUP_TYPES)
        if found.missing:
            return Verdict("warning", f"missing: {', '.join(found.missing)}. Sessions set none", SETUP)
        return Verdict("ok", f"all {len(found.right)} are registered")

    async def session_workers(self) -> Verdict:
        """That somebody asks for the session queue's workflow tasks and for its activities."""
        queue = self._client.task_queue
        return await self._polled(queue, {"workflows": WORKFLOW, "activities": ACTIVITY}, START_WORKER)

    async def signing_workers(self) -> Verdict:
        """That a signer asks for its queue; without one sessions do not end."""
        queue = contract.signing_queue(self._client.task_queue)
        do = f"{START_WORKER}; sessions wait for the signer at their end"
        return await self._polled(queue, {"activities": ACTIVITY}, do)

    async def clock(self) -> Verdict:
        """How far this machine's clock is from the server's, by the time at which the server saw a request of ours."""
        identity = f"doctor-{uuid.uuid4()}"
        before = time.time()
        async with self._polling(identity):
            seen = await self._seen(identity)
            after = time.time()
        early, late = before - seen, seen - after
        off = max(early, late, 0.0)
        if off < SKEW_S:
            return Verdict("ok", f"within {max(after - before, off):.1f} s of the server's")
        what = f"{off:.0f} s {'ahead of' if early > late else 'behind'} the server's"
        do = "synchronise both clocks (NTP); times in events are Temporal's, claimed times are an agent's"
        return Verdict("failed" if off >= BAD_SKEW_S else "warning", what, do)

    async def _polled(self, queue: str, kinds: dict[str, TaskQueueType.ValueType], do: str) -> Verdict:
        answers = await asyncio.gather(*(self._described(queue, type_) for type_ in kinds.values()))
        name, counts, newest = printable(queue), [], 0.0
        for kind, answer in zip(kinds, answers, strict=True):
            if not answer.pollers:
                return Verdict("failed", f"nobody polls {name} for {kind}", do)
            counts.append(f"{len(answer.pollers)} for {kind}")
            newest = max(newest, *(poller.last_access_time.ToNanoseconds() / 1e9 for poller in answer.pollers))
        what = f"{name} is polled: {', '.join(counts)}"
        if (silent := time.time() - newest) > STALE_S:
            return Verdict("warning", f"{what}, but not for {silent:.0f} s", do)
        return Verdict("ok", what)

    async def _described(self, queue: str, type_: TaskQueueType.ValueType) -> DescribeTaskQueueResponse:
        request = DescribeTaskQueueRequest(
            namespace=self._temporal.namespace, task_queue=TaskQueue(name=queue), task_queue_type=type_
        )
        return await self._service.describe_task_queue(request, timeout=CALL)

    @contextlib.asynccontextmanager
    async def _polling(self, identity: str) -> AsyncIterator[None]:
        """Ask for work of a queue that has none, for the length of a block."""
        request = PollActivityTaskQueueRequest(
            namespace=self._temporal.namespace, task_queue=TaskQueue(name=CLOCK_QUEUE), identity=identity
        )
        poll = asyncio.ensure_future(self._service.poll_activity_task_queue(request, timeout=POLL))
        try:
            yield
        finally:
            poll.cancel()
            with contextlib.suppress(asyncio.CancelledError, RPCError):
                await poll

    async def _seen(self, identity: str) -> float:
        """The server's time, in seconds since the epoch, at which it saw the poll of that identity."""
        while True:
            answer = await self._described(CLOCK_QUEUE, ACTIVITY)
            if times := list(_access_times(answer, identity)):
                return min(times)
            await asyncio.sleep(0.05)


def _access_times(answer: DescribeTaskQueueResponse, identity: str) -> Iterable[float]:
    return (each.last_access_time.ToNanoseconds() / 1e9 for each in answer.pollers if each.identity == identity)
