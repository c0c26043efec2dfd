"""What Temporal itself knows of a session without a worker: its search attributes, and the memo of its end.

Both are history events, so they are set on transitions only; numbers are as of the last one.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from affidavit import contract
from affidavit.attributes import cost, cut, terminal_facts, tokens
from affidavit.contract import SessionOutcome
from affidavit.evidence.stops import StopReason, caption
from workflows.registration import Registration
from workflows.state import SessionState, Shown
from workflows.turns import Turns

MODE = SearchAttributeKey.for_keyword(contract.ATTRIBUTE_MODE)
AGENT = SearchAttributeKey.for_keyword(contract.ATTRIBUTE_AGENT)
STATUS = SearchAttributeKey.for_keyword(contract.ATTRIBUTE_STATUS)
STOP_REASON = SearchAttributeKey.for_keyword(contract.ATTRIBUTE_STOP_REASON)
WAITING = SearchAttributeKey.for_keyword(contract.ATTRIBUTE_WAITING)
COST = SearchAttributeKey.for_keyword(contract.ATTRIBUTE_COST)
STEPS = SearchAttributeKey.for_int(contract.ATTRIBUTE_STEPS)
TOKENS = SearchAttributeKey.for_int(contract.ATTRIBUTE_TOKENS)
BREAKER_TRIPPED = SearchAttributeKey.for_bool(contract.ATTRIBUTE_BREAKER_TRIPPED)


def waiting_value(kind: str, name: str) -> str:
    """The value of `AffidavitWaiting` for a wait that was set."""
    return cut(f"{kind}: {name}")


class Attributes:
    """Tells Temporal of the transitions of one session.

    Nothing is set where the opening activity did not find all search attributes in the namespace: an unknown one would
    fail the workflow task for ever.
    """

    def __init__(self, registration: Registration, state: SessionState, turns: Turns) -> None:
        self._turns = turns
        self._registration = registration
        self._state = state
        self._ended = False

    async def follow(self) -> None:
        """Show each transition as it comes: opened, breaker tripped or reset, a wait set or cleared, closing."""
        while True:
            await self._turns.wait(self._is_news)
            self._show(self._now())

    def end(self, outcome: SessionOutcome) -> None:
        """Show the end, and remember its facts where no worker is needed to read them."""
        self._ended = True
        if self._state.attributes:
            self._show(Shown(status=outcome.status, tripped=self._state.ledger.breaker.open), outcome.stop_reason_id)
        if self._state.attributes is not None or not self._state.opened:
            workflow.upsert_memo({contract.MEMO_OUTCOME: terminal_facts(outcome)})

    def _is_news(self) -> bool:
        return bool(self._state.attributes) and not self._ended and self._now() != self._state.shown

    def _now(self) -> Shown:
        waiting = self._state.process.waiting
        return Shown(
            status="closing" if self._state.closing else "open",
            tripped=self._state.ledger.breaker.open,
            waiting=None if waiting is None else waiting_value(waiting.kind, waiting.name),
        )

    def _show(self, now: Shown, stop_reason_id: int | None = None) -> None:
        """Set what differs by kind from what is shown, and the numbers as they stand."""
        before, ledger = self._state.shown, self._state.ledger
        updates: list[SearchAttributeUpdate[Any]] = [
            STATUS.value_set(now.status),
            BREAKER_TRIPPED.value_set(now.tripped),
            STEPS.value_set(ledger.steps),
            TOKENS.value_set(tokens(ledger.totals)),
            COST.value_set(cost(ledger.totals.cost_usd_micros)),
        ]
        if before is None:
            updates += [
                MODE.value_set(self._registration.spec.mode),
                AGENT.value_set(cut(self._registration.spec.agent.charter)),
            ]
        if now.waiting is not None:
            updates.append(WAITING.value_set(cut(now.waiting)))
        elif before is not None and before.waiting is not None:
            updates.append(WAITING.value_unset())
        reason = ledger.stop_reason_id if stop_reason_id is None else stop_reason_id
        if reason or stop_reason_id is not None:
            updates.append(STOP_REASON.value_set(caption(StopReason(reason))))
        workflow.upsert_search_attributes(updates)
        self._state.shown = now
