"""From a batch of items to numbered entries (pure): everything that must repeat is decided here.

Works on a draft of the ledger. The caller makes the draft the ledger once the journal holds the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from affidavit.activity_api import Entry
from affidavit.assessment import Assessment
from affidavit.contract import SKEW_MS, SessionSpec, Totals
from affidavit.process_api import EventSummary
from affidavit.steps import ModelFailure, ModelRequest, ModelResponse
from affidavit.times import claimed_ms
from workflows import accounting
from workflows.accounting import Row
from workflows.attempts import Attempts, Inconsistent
from workflows.entries import entry_of
from workflows.inbox import Item
from workflows.state import Ledger


@dataclass(slots=True)
class Decision:
    """Entries with the draft ledger after them; `steps` are the texts that the entries point into.

    `fault` is why the next item poisons the session; that item and those behind it are in `left`.
    """

    entries: list[Entry]
    steps: list[str]
    ledger: Ledger
    left: Sequence[Item] = ()
    fault: str | None = None


def assessable(item: Item) -> bool:
    """Whether the breaker looks at it: an answer with text or calls that was not copied (formats.md 8)."""
    step = item.step
    return isinstance(step, ModelResponse) and not step.copied and bool(step.reasoning or step.text or step.tool_calls)


def decide(
    ledger: Ledger,
    spec: SessionSpec,
    items: Sequence[Item],
    assessments: Mapping[int, Assessment],
    attempts: Attempts,
    new_uid: Callable[[], str],
) -> Decision:
    """Number a batch. `assessments` by place in `items`; one that is missing was not assessed (D5).

    `attempts` is changed in place: what is decided here is decided for good, whatever the journal says of it.
    """
    # The copies are shallow: what hangs below is replaced, never changed in place.
    draft = ledger.model_copy(update={"breaker": ledger.breaker.model_copy()})
    entries: list[Entry] = []
    steps: list[str] = []
    for place, item in enumerate(items):
        try:
            _attempt(attempts, item)
        except Inconsistent as error:
            return Decision(entries, steps, draft, items[place:], str(error))
        row = _row(draft, item)
        assessment = assessments.get(place)
        if item.action == "model_response":
            row = _watch(draft, spec, item, row, assessment)
        try:
            totals = accounting.add(draft.totals, row.counts)
        except accounting.Overflow as error:
            return Decision(entries, steps, draft, items[place:], f"overflow of {error}")
        entries.append(_enter(draft, item, row, new_uid(), len(steps)))
        if item.step is not None:
            steps.append(item.text)
        _count(draft, item, row, totals)
    return Decision(entries, steps, draft)


def _attempt(attempts: Attempts, item: Item) -> None:
    step = item.step
    if not isinstance(step, ModelRequest | ModelResponse | ModelFailure) or step.attempt_id is None:
        return
    if isinstance(step, ModelRequest):
        attempts.request(step.attempt_id, item.admitted_ms)
    elif not (isinstance(step, ModelResponse) and step.copied):
        attempts.end(step.attempt_id)


def _row(draft: Ledger, item: Item) -> Row:
    if item.step is None:
        if item.action == "identity_refreshed":
            draft.agent = draft.agent.model_copy(update={"ttl_remaining_s": item.payload.get("ttl_remaining_s")})
        return accounting.own_row(item.action, item.payload)
    if item.step.ttl_remaining_s is not None:
        draft.agent = draft.agent.model_copy(update={"ttl_remaining_s": item.step.ttl_remaining_s})
    return accounting.account(item.step, draft.pending_estimate)


def _watch(draft: Ledger, spec: SessionSpec, item: Item, row: Row, assessment: Assessment | None) -> Row:
    """The breaker's word on one response; a trip replaces its row."""
    tokens = row.counts.get("prompt_tokens", 0) + row.counts.get("completion_tokens", 0)
    verdict = draft.breaker.step(spec.breaker, assessment or Assessment(failed=True), tokens)
    row.payload["assessed"] = verdict.assessed
    item.verdict = verdict.state
    if verdict.state != "tripped" or verdict.delta is None:
        return row
    draft.aborted = draft.aborted or spec.breaker.action == "abort"
    return accounting.tripped(
        row,
        delta=verdict.delta,
        streak=verdict.streak,
        tokens=verdict.tokens_consumed,
        action=spec.breaker.action,
    )


def _enter(draft: Ledger, item: Item, row: Row, uid: str, step: int) -> Entry:
    attempt = getattr(item.step, "attempt_id", None)
    payload = {**item.payload, **row.payload}
    if row.action == "wake":
        payload.setdefault("wake_id", uid)  # of one that goes out; one that came in has its sender's
    claimed = item.step.claimed_time if item.step is not None else None
    if claimed is not None and abs(claimed_ms(claimed) - item.admitted_ms) > SKEW_MS:
        payload["skewed"] = True
    return entry_of(
        row,
        sequence=draft.count,
        uid=uid,
        time=item.admitted_ms,
        payload=payload,
        step=None if item.step is None else step,
        ttl_remaining_s=draft.agent.ttl_remaining_s,
        attempt_id=attempt,
    )


def _count(draft: Ledger, item: Item, row: Row, totals: Totals) -> None:
    item.sequence = draft.count
    draft.count += 1
    draft.totals = totals
    if row.stop is not None:
        draft.stop_reason_id = row.stop[0]
    if item.step is not None:
        draft.steps += 1
    if item.action == "message_rejected":
        draft.rejected += 1
    if item.action == "breaker_reset":
        draft.breaker.reset()
        draft.aborted = False
    if isinstance(item.step, ModelRequest):
        draft.pending_estimate += row.metrics["prompt_tokens"]
    elif row.terminal:
        draft.pending_estimate = 0
    draft.summarise(
        EventSummary(sequence=item.sequence, time=item.admitted_ms, action=row.action, status_id=row.status_id)
    )
