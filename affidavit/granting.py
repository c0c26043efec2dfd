"""The client's face of the grant book: grant, revoke, transfer, list, and what is checked before one addresses.

What decides is what the book holds and what Temporal says of an execution itself, asked when it is needed. The
visibility store is never asked: it lags, and would show a session as running that has ended, or not show one at all.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecutionStatus
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from affidavit import contract, grants
from affidavit.answers import readable
from affidavit.converter import encode_json, raw_json
from affidavit.errors import SessionRefused
from affidavit.evidence.text import printable
from affidavit.grants import (
    Changed,
    DeletedHolder,
    Grant,
    GrantList,
    GrantRequest,
    HolderRequest,
    HolderRevoked,
    HoldsRequest,
    RevokeRequest,
    TransferRequest,
)
from affidavit.rpc import LONG_CALL, SHORT_CALL, asked, heard, persist, translated
from affidavit.validation import first_error

M = TypeVar("M", bound=BaseModel)

Listed = list[Grant]

UPDATES_AT_ONCE: Final = 4
"""Of one client: Temporal lets ten updates of a run be in flight, and the book has other clients too."""
DESCRIBED_AT_ONCE: Final = 16
"""Executions that are asked for at a time."""


class Grants:
    """The book of a namespace. Safe to share between tasks of one event loop."""

    def __init__(self, temporal: Client, task_queue: str, retry_timeout: float) -> None:
        """`task_queue` is where the book runs if this client is the first to need it."""
        self._temporal = temporal
        self._task_queue = task_queue
        self._retry_timeout = retry_timeout
        self._places = asyncio.Semaphore(UPDATES_AT_ONCE)

    # -- changes ---------------------------------------------------------------------------------------

    async def grant(self, holder: str, *sessions: str, descriptor: str = "", only_first: bool = False) -> int:
        """Let a holder address sessions; all of them or none are granted.

        Args:
            holder: a session id, or another name of that form.
            sessions: ids; they need not be open.
            descriptor: at most 200 bytes, shown with the grant. A grant that stands gets the new one.
            only_first: leave out sessions that somebody holds a grant of.

        Returns:
            How many grants are new or have another descriptor.

        Raises:
            SessionRefused: BadRequest, or GrantsFull (5 000).
            AffidavitUnavailable: no server or no worker answered.
        """
        request = _made(
            GrantRequest, holder=holder, sessions=list(sessions), descriptor=descriptor, only_first=only_first
        )
        return (await self._update(grants.UPDATE_GRANT, request, Changed)).changed

    async def revoke(self, holder: str, *sessions: str) -> int:
        """Take grants back; returns how many there were. A session without any holder goes on all the same."""
        request = _made(RevokeRequest, holder=holder, sessions=list(sessions))
        return (await self._update(grants.UPDATE_REVOKE, request, Changed)).changed

    async def transfer(self, from_holder: str, to_holder: str, *sessions: str) -> int:
        """Move grants to another holder with their descriptors, all or none; returns how many moved.

        Raises:
            SessionRefused: GrantMissing, naming sessions of which `from_holder` has no grant. A transfer that has been
                made is none: repeating it moves 0.
        """
        request = _made(TransferRequest, from_holder=from_holder, to_holder=to_holder, sessions=list(sessions))
        return (await self._update(grants.UPDATE_TRANSFER, request, Changed)).changed

    async def delete_holder(self, holder: str) -> DeletedHolder:
        """Revoke everything that a holder has; nothing is cancelled. Wake targets that name it are cleared on the next
        wake. A repeat finds nothing to revoke."""
        request = _made(HolderRequest, holder=holder)
        answer = await self._update(grants.UPDATE_DELETE_HOLDER, request, HolderRevoked)
        alone = [each.session_id for each in answer.sessions if not each.others]
        live = await self.live(alone)
        return DeletedHolder(
            holder=holder,
            revoked=[each.session_id for each in answer.sessions],
            orphaned=[session for session in alone if session in live],
            preserved=[each.session_id for each in answer.sessions if each.others],
        )

    # -- questions -------------------------------------------------------------------------------------

    async def list(self, holder: str, *, live_only: bool = False) -> Listed:
        """What a holder may address.

        Args:
            live_only: only sessions that run, by the word of each execution itself.
        """
        found = await self._query(grants.QUERY_LIST, GrantList, _argument(_made(HolderRequest, holder=holder)))
        listed: Listed = [] if found is None else found.grants
        if not live_only:
            return listed
        live = await self.live(grant.session_id for grant in listed)
        return [grant for grant in listed if grant.session_id in live]

    async def holders(self, session_id: str) -> Listed:
        """Who may address a session."""
        found = await self._query(grants.QUERY_HOLDERS, GrantList, session_id)
        listed: Listed = [] if found is None else found.grants
        return listed

    async def holds(self, holder: str, session_id: str) -> bool:
        """Whether a holder may address a session."""
        request = _made(HoldsRequest, holder=holder, session_id=session_id)
        return bool(await self._query(grants.QUERY_HOLDS, bool, _argument(request)))

    async def check(self, holder: str, session_id: str) -> None:
        """That a holder may address a session.

        Raises:
            SessionRefused: type NotGranted.
        """
        if not await self.holds(holder, session_id):
            raise SessionRefused(
                grants.REFUSED_NOT_GRANTED, f"{printable(holder)} holds no grant of session {printable(session_id)}"
            )

    async def deleted(self, holder: str) -> bool:
        """Whether a holder was deleted, and has been granted nothing since."""
        return bool(await self._query(grants.QUERY_DELETED, bool, holder))

    async def live(self, session_ids: Iterable[str]) -> set[str]:
        """Those of the sessions that run now: each execution is asked itself, so no lag of a list can show."""
        places = asyncio.Semaphore(DESCRIBED_AT_ONCE)

        async def runs(session_id: str) -> bool:
            async with places:
                return await self._runs(session_id)

        asked = list(dict.fromkeys(session_ids))
        answers = await asyncio.gather(*(runs(session_id) for session_id in asked))
        return {session_id for session_id, lives in zip(asked, answers, strict=True) if lives}

    # -- calls -----------------------------------------------------------------------------------------

    async def _runs(self, session_id: str) -> bool:
        with translated(session_id):
            try:
                found = await self._temporal.get_workflow_handle(session_id).describe(rpc_timeout=SHORT_CALL)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return False
                raise
        return found.workflow_type == contract.SESSION_WORKFLOW and found.status is WorkflowExecutionStatus.RUNNING

    async def _update(self, name: str, request: BaseModel, answer_type: type[M]) -> M:
        """Execute an update under one id across failures and rollovers; the book is started if there is none."""
        argument, update_id = _argument(request), str(uuid.uuid4())

        async def attempt() -> M:
            options: dict[str, Any] = {"id": update_id, "result_type": answer_type, "rpc_timeout": LONG_CALL}
            book = self._temporal.get_workflow_handle(grants.GRANT_BOOK_ID)
            try:
                answer: M = await book.execute_update(name, argument, **options)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                # Only then: the server does such a start and update together, one after the other.
                start = self._start()
                with heard(start):
                    answer = await self._temporal.execute_update_with_start_workflow(
                        name, argument, start_workflow_operation=start, **options
                    )
            return answer

        async def goes_on() -> bool:
            return True  # the next attempt meets the next run, or starts one

        async with self._places:
            return await self._persist(attempt, goes_on)

    async def _query(self, name: str, answer_type: type[Any], argument: Any) -> Any:
        """Ask the book; None where there is none, so nobody holds anything."""

        async def attempt() -> Any:
            book = self._temporal.get_workflow_handle(grants.GRANT_BOOK_ID)
            try:
                return await asked(lambda limit: book.query(name, argument, result_type=answer_type, rpc_timeout=limit))
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise

        async def goes_on() -> bool:
            return False

        return await self._persist(attempt, goes_on)

    async def _persist(self, attempt: Callable[[], Awaitable[M]], goes_on: Callable[[], Awaitable[bool]]) -> M:
        with translated(grants.GRANT_BOOK_ID):
            answer = await persist(attempt, within=self._retry_timeout, goes_on=goes_on)
        return readable(answer, "the answer of the grant book")

    def _start(self) -> WithStartWorkflowOperation[Any, Any]:
        return WithStartWorkflowOperation(
            grants.GRANT_WORKFLOW,
            id=grants.GRANT_BOOK_ID,
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary="grants: who may address which session",
        )


def _made(model: type[M], **fields: Any) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise SessionRefused(contract.REFUSED_BAD_REQUEST, first_error(error)) from None


def _argument(request: BaseModel) -> RawValue:
    return raw_json(encode_json(request.model_dump(mode="json")))
