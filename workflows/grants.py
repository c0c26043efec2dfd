"""`GrantBook`: the grants of a namespace, as one workflow under a fixed id (process.md P15, P16).

Every request is one update or one query on one object, so each is atomic without a lock: no handler awaits anything.
What is refused is refused by a validator and leaves no history. The book never ends; it hands itself on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from affidavit import contract
    from affidavit.converter import inline_json, raw_json
    from affidavit.grants import (
        GRANT_WORKFLOW,
        Changed,
        GrantList,
        GrantRequest,
        HolderRequest,
        HolderRevoked,
        HoldsRequest,
        RevokeRequest,
        TransferRequest,
    )
    from affidavit.offloading import Unavailable
    from workflows.grant_table import GrantTable, Refused
    from workflows.guards import refuse
    from workflows.messages import Unreadable, read_model

M = TypeVar("M", bound=BaseModel)


@workflow.defn(name=GRANT_WORKFLOW)
class GrantBook:
    """All grants; started by whoever grants first, with no argument."""

    # Any number of arguments, because a start with one too many would otherwise fail its first task for ever, and no
    # other book can have the id. The SDK takes them for untyped then, so they come decoded, and what cannot be decoded
    # ends the workflow (`OffloadingPayloadConverter`).
    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._updates = 0
        self._table, self._unreadable = GrantTable(), ""
        if len(args) > 1:
            self._unreadable = f"a grant book takes no arguments; {len(args)} were given"
        elif args and isinstance(args[0], Unavailable):
            if workflow.info().continued_run_id:
                # Not a failure: a worker that has the key or the object can go on, and an empty book would be a lie.
                raise RuntimeError(f"what the last run handed on cannot be opened{args[0].why}")
            self._unreadable = f"invalid state of a grant book: it cannot be opened{args[0].why}"
        elif args:
            try:
                self._table = GrantTable.load(args[0])
            except ValidationError as error:
                self._unreadable = f"invalid state of a grant book: {error.error_count()} errors"

    @workflow.run
    async def run(self, *args: Any) -> None:
        if self._unreadable:
            raise ApplicationError(self._unreadable, type=contract.REFUSED_BAD_REQUEST, non_retryable=True)
        self._show()
        while not self._is_due():
            # A cancel ends nothing: with the book every permission would be gone. Terminating it is possible.
            with contextlib.suppress(asyncio.CancelledError):
                await workflow.wait_condition(self._is_due)
        workflow.continue_as_new(args=[raw_json(self._table.dump())])

    # -- updates ---------------------------------------------------------------------------------------

    @workflow.update
    def grant(self, raw: RawValue) -> RawValue:
        """Give a holder sessions to address (`GrantRequest`, answer `Changed`)."""
        return self._changed(self._table.grant(read_model(raw.payload, GrantRequest)))

    @grant.validator
    def _check_grant(self, raw: RawValue) -> None:
        request = _checked(raw, GrantRequest)
        try:
            self._table.check_grant(request)
        except Refused as error:
            refuse(error.type, str(error))

    @workflow.update
    def revoke(self, raw: RawValue) -> RawValue:
        """Take grants back (`RevokeRequest`, answer `Changed`)."""
        return self._changed(self._table.revoke(read_model(raw.payload, RevokeRequest)))

    @revoke.validator
    def _check_revoke(self, raw: RawValue) -> None:
        _checked(raw, RevokeRequest)

    @workflow.update
    def transfer(self, raw: RawValue) -> RawValue:
        """Move grants to another holder, all or none (`TransferRequest`, answer `Changed`)."""
        return self._changed(self._table.transfer(read_model(raw.payload, TransferRequest)))

    @transfer.validator
    def _check_transfer(self, raw: RawValue) -> None:
        request = _checked(raw, TransferRequest)
        try:
            self._table.check_transfer(request)
        except Refused as error:
            refuse(error.type, str(error))

    @workflow.update
    def delete_holder(self, raw: RawValue) -> RawValue:
        """Revoke everything that a holder has (`HolderRequest`, answer `HolderRevoked`)."""
        request = read_model(raw.payload, HolderRequest)
        return self._answer(HolderRevoked(sessions=self._table.delete_holder(request.holder)))

    @delete_holder.validator
    def _check_delete_holder(self, raw: RawValue) -> None:
        _checked(raw, HolderRequest)

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query
    def list(self, raw: RawValue) -> RawValue:
        """What a holder may address (`HolderRequest`, answer `GrantList`)."""
        holder = read_model(raw.payload, HolderRequest).holder
        return _inline(GrantList(grants=self._table.of_holder(holder)))

    @workflow.query
    def holders(self, session_id: str) -> RawValue:
        """Who may address a session (answer `GrantList`)."""
        return _inline(GrantList(grants=self._table.of_session(session_id)))

    @workflow.query
    def holds(self, raw: RawValue) -> bool:
        """Whether a holder may address a session (`HoldsRequest`)."""
        request = read_model(raw.payload, HoldsRequest)
        return self._table.holds(request.holder, request.session_id)

    @workflow.query
    def deleted(self, holder: str) -> bool:
        """Whether a holder was deleted and has been granted nothing since."""
        return holder in self._table.deleted

    # -- small things ----------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() or self._updates >= contract.ROLLOVER_UPDATES

    def _changed(self, changed: int) -> RawValue:
        return self._answer(Changed(changed=changed))

    def _answer(self, answer: BaseModel) -> RawValue:
        self._updates += 1
        self._show()
        return _inline(answer)

    def _show(self) -> None:
        workflow.set_current_details(f"{self._table.count} grants, run {self._table.runs}")


def _checked(raw: RawValue, model: type[M]) -> M:
    try:
        return read_model(raw.payload, model)
    except Unreadable as error:
        refuse(contract.REFUSED_BAD_REQUEST, str(error))


def _inline(answer: BaseModel) -> RawValue:
    """An answer that stays in Temporal whatever its size: a client need not share the evidence store."""
    return inline_json(answer.model_dump_json().encode("utf-8"))
