"""The client: open a session, report steps, wait for its outcome.

    client = await SessionClient.connect()
    async with client.session(SessionSpec(agent=agent)) as session:
        await session.record({"kind": "tool_call", "call_id": "1", "tool": "search", "allowed": True})
    print(session.outcome.receipt)

Needs the `client` extra (temporalio).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from temporalio import envconfig
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowFailureError
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from affidavit import contract
from affidavit.contract import AttachResult, PromotionRequest, PromotionResult, SessionOutcome, SessionSpec
from affidavit.converter import data_converter, encode_json, raw_json
from affidavit.errors import AffidavitUnavailable, SessionFailed, SessionRefused
from affidavit.evidence.scalars import session_stem
from affidavit.evidence.text import printable
from affidavit.exiting import settle_at_exit
from affidavit.granting import Grants
from affidavit.grants import holder_of
from affidavit.handle import SessionHandle
from affidavit.markdown import literal
from affidavit.offloading import opened_in
from affidavit.outgoing import Step, checked_id, checked_spec
from affidavit.rpc import RETRY_TIMEOUT_S, heard, persist, translated
from affidavit.stores.base import EvidenceStore
from affidavit.stores.errors import EvidenceStoreMismatch, IntegrityError
from affidavit.stores.local import DirectoryStore
from affidavit.validation import first_error

__all__ = ["SessionClient", "SessionHandle", "Step"]

DEFAULT_ADDRESS = "localhost:7233"
TASK_QUEUE_VARIABLE = "AFFIDAVIT_TASK_QUEUE"
"""The worker's setting of the same name, so that one environment serves both."""
CONNECT_TIMEOUT_S = 5.0
ADMIT_TIMEOUT_S = 5.0
"""How long an open or an admit may take before the client says what is missing (issue of the operator, not of the
agent)."""
DIAGNOSIS_TIMEOUT_S = 2.0


class SessionClient:
    """A connection to Temporal, seen as a place to open and find sessions.

    Safe to share between tasks of one event loop.
    """

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str = contract.TASK_QUEUE,
        admit_timeout: float = ADMIT_TIMEOUT_S,
        retry_timeout: float = RETRY_TIMEOUT_S,
        store: EvidenceStore | None = None,
        holder: str | None = None,
    ) -> None:
        """Takes a connected Temporal client whose data converter is `affidavit.converter.data_converter(store)`.

        Args:
            task_queue: where workers poll for sessions.
            admit_timeout: seconds that an open or an admit may take.
            retry_timeout: seconds that a call may fail on end, where failing may pass, before its caller is told.
            store: the workers' evidence store, where this client shares it.
            holder: who this client addresses sessions as. Sessions that it did not open itself it then awaits, looks
                at, cancels and wakes only with a grant (docs/addressing.md); None checks nothing.
        """
        self.temporal = client
        self.holder = None if holder is None else checked_id(holder)
        self.admit_timeout = admit_timeout
        self.retry_timeout = retry_timeout
        self._store = store
        self._task_queue = task_queue
        self.grants = Grants(client, task_queue, retry_timeout)

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        task_queue: str | None = None,
        admit_timeout: float = ADMIT_TIMEOUT_S,
        retry_timeout: float = RETRY_TIMEOUT_S,
        store: EvidenceStore | Path | None = None,
        holder: str | None = None,
    ) -> SessionClient:
        """Connect as the environment says (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, TLS, …), or to `address`.

        Args:
            task_queue: where workers poll for sessions; by default as `AFFIDAVIT_TASK_QUEUE` says.
            store: the workers' evidence store or its directory, where this machine has it too. A message may then
                have up to 16 MiB, because a big one goes there and not through Temporal.
            holder: who this client addresses sessions as, see `SessionClient`.

        Raises:
            AffidavitUnavailable: nothing answers there, or the directory holds no evidence store.
        """
        if isinstance(store, Path):
            store = _existing(store)
        config = envconfig.ClientConfig.load_client_connect_config()
        target = address or config.get("target_host") or DEFAULT_ADDRESS
        config["target_host"] = target
        if namespace is not None:
            config["namespace"] = namespace
        settle_at_exit()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                client = await Client.connect(**config, data_converter=data_converter(store))
        except (RuntimeError, TimeoutError, RPCError) as error:
            raise AffidavitUnavailable(
                f"no Temporal server answers at {printable(target)}; `affidavit dev` starts one"
            ) from error
        task_queue = task_queue or os.environ.get(TASK_QUEUE_VARIABLE) or contract.TASK_QUEUE
        return cls(
            client,
            task_queue=task_queue,
            admit_timeout=admit_timeout,
            retry_timeout=retry_timeout,
            store=store,
            holder=holder,
        )

    def message_bytes(self, session_id: str) -> int:
        """The largest message that a session takes from this client: more where both share an evidence store."""
        shared = self._store is not None and opened_in(self._store, session_stem(session_id))
        return contract.STORED_MESSAGE_BYTES if shared else contract.MESSAGE_BYTES

    async def open(
        self, spec: SessionSpec | Mapping[str, Any], *, session_id: str | None = None, reopen: bool = False
    ) -> SessionHandle:
        """Open a session, or join the living one of that id if it was opened with an equal spec.

        Args:
            spec: how to open it; a mapping is validated.
            session_id: 1-128 bytes of 0x21-0x7e without `#`; a fresh UUIDv7 if left out.
            reopen: start another life of an id whose last one ended `closed`.

        Returns:
            A handle, once the opening event is on disk; of a child (`originator` and `wake_target` in its spec) also
            its first grant, which goes to the wake target.

        Raises:
            SessionRefused: the id or the spec is bad, the session is bound to another spec, closing, or ended.
            AffidavitUnavailable: no server or no worker answered within `admit_timeout`.
        """
        session_id = checked_id(session_id)
        checked = checked_spec(spec, reopen=reopen)
        argument = raw_json(encode_json(checked.model_dump(mode="json", exclude_none=True)))

        async def attempt() -> AttachResult:
            start = self._start(session_id, checked, argument)
            with heard(start):
                answer: AttachResult = await self.temporal.execute_update_with_start_workflow(
                    contract.UPDATE_ATTACH,
                    argument,
                    start_workflow_operation=start,
                    result_type=AttachResult,
                    rpc_timeout=timedelta(seconds=self.admit_timeout),
                )
            return answer

        async def goes_on() -> bool:
            return True  # or the next attempt starts it, or is told why not

        with translated(session_id):
            try:
                async with asyncio.timeout(self.admit_timeout):
                    attached = await persist(attempt, within=self.admit_timeout, goes_on=goes_on)
            except TimeoutError as error:
                raise AffidavitUnavailable(await self.missing()) from error
        if checked.originator is not None and (holder := holder_of(checked.wake_target)) is not None:
            # The first grant of a child. Opening it again repeats what a crash has left out.
            await self.grants.grant(holder, session_id, descriptor="wake target", only_first=True)
        return SessionHandle(self, session_id, attached)

    @asynccontextmanager
    async def session(
        self, spec: SessionSpec | Mapping[str, Any], *, session_id: str | None = None, reopen: bool = False
    ) -> AsyncIterator[SessionHandle]:
        """Open a session for the length of a block: closed when it is left, cancelled when it raises."""
        handle = await self.open(spec, session_id=session_id, reopen=reopen)
        async with handle:
            yield handle

    def handle(self, session_id: str) -> SessionHandle:
        """A handle of a session that exists somewhere; nothing is asked of the server yet.

        Raises:
            SessionRefused: the id is none.
        """
        return SessionHandle(self, checked_id(session_id), None)

    async def check_grant(self, session_id: str) -> None:
        """That this client's holder may address a session.

        Raises:
            SessionRefused: type NotGranted.
        """
        if self.holder is not None:
            await self.grants.check(self.holder, session_id)

    async def promote(self, session_id: str, generation: str) -> PromotionResult:
        """Have the trajectory of an unsigned session attested, from what lies in the evidence store alone.

        Joins a promotion that is under way; a repeat gives the same receipt. A signed session gives its own.

        Raises:
            SessionRefused: the session has not ended, has nothing to attest, or its evidence is not what it was.
        """
        try:
            request = PromotionRequest(session_id=session_id, generation=generation)
        except ValidationError as error:
            raise SessionRefused(contract.REFUSED_BAD_REQUEST, first_error(error)) from None
        with translated(session_id):
            promotion = await self.temporal.start_workflow(
                contract.PROMOTION_WORKFLOW,
                raw_json(encode_json(request.model_dump())),
                id=contract.promotion_id(session_id, generation),
                task_queue=self._task_queue,
                result_type=PromotionResult,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=f"promotion of {literal(session_id, 128)}",
            )
            try:
                result: PromotionResult = await promotion.result()
            except WorkflowFailureError as error:
                if isinstance(cause := error.cause, ApplicationError):
                    raise SessionRefused(cause.type or "Refused", cause.message) from error
                raise SessionFailed(f"promotion of session {printable(session_id)}: {error.cause}") from error
        return result

    @property
    def task_queue(self) -> str:
        """Where workers poll for this client's sessions."""
        return self._task_queue

    async def task_queue_polled(self) -> bool:
        """Whether some worker has asked for workflow tasks of the task queue of late."""
        request = DescribeTaskQueueRequest(
            namespace=self.temporal.namespace,
            task_queue=TaskQueue(name=self._task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        with translated(self._task_queue):
            answer = await self.temporal.workflow_service.describe_task_queue(request)
        return bool(answer.pollers)

    async def missing(self) -> str:
        """What an open or an admit has waited for in vain."""
        seconds = f"{self.admit_timeout:g} s"
        try:
            async with asyncio.timeout(DIAGNOSIS_TIMEOUT_S):
                polled = await self.task_queue_polled()
        except (AffidavitUnavailable, TimeoutError):
            return f"the Temporal server did not answer within {seconds}"
        if not polled:
            return f"no worker polls task queue {printable(self._task_queue)}; `python -m workers` starts one"
        return f"no worker answered within {seconds}, though one polls {printable(self._task_queue)}"

    def _start(
        self, session_id: str, spec: SessionSpec, argument: RawValue
    ) -> WithStartWorkflowOperation[Any, SessionOutcome]:
        reuse = WorkflowIDReusePolicy
        return WithStartWorkflowOperation(
            contract.SESSION_WORKFLOW,
            argument,
            id=session_id,
            task_queue=self._task_queue,
            result_type=SessionOutcome,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=reuse.ALLOW_DUPLICATE if spec.reopen else reuse.REJECT_DUPLICATE,
            # At most 270 bytes, of the 400 that a server takes: cut characters, never a span's end.
            static_summary=f"{literal(spec.agent.charter, 40)} {literal(spec.agent.version, 20)} · {spec.mode}",
            static_details=f"charter {literal(spec.agent.charter)}, instance {literal(spec.agent.instance_uid)}, "
            f"content {spec.content}",
        )


def _existing(root: Path) -> EvidenceStore:
    try:
        return DirectoryStore(root, create=False)
    except (OSError, EvidenceStoreMismatch, IntegrityError) as error:
        raise AffidavitUnavailable(f"{printable(root.name)} holds no evidence store that can be used") from error
