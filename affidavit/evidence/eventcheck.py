"""Whether events bear a receipt out: structure first, then the chain, then what the events say (behaviours G3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from affidavit.evidence import chain
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.journal import (
    AuthenticationFailed,
    authenticate,
    domain_active,
)
from affidavit.evidence.ocsf import EventClass, validate_event
from affidavit.evidence.receipt import (
    EventChain,
    Identity,
    Receipt,
)
from affidavit.evidence.receipt import (
    VerificationError as VerificationError,
)
from affidavit.evidence.report import (
    AlteredContent,
    EventGap,
    EventOrder,
    ExtraEvent,
    IdentityMismatch,
    InvalidChainEvent,
    JournalKeyMismatch,
    LifecycleMismatch,
    MixedGenerations,
    MixedSessions,
    OpeningMissing,
    Report,
    StopReasonMismatch,
    TailMissing,
    TotalsMismatch,
)
from affidavit.evidence.sources import (
    Found,
)
from affidavit.evidence.text import printable
from affidavit.evidence.totals import Totals, final_stop_reason

EVENT_CHECKS = (
    "session",
    "sequence",
    "chain",
    "opening",
    "event form",
    "identity",
    "totals",
    "stop reason",
    "lifecycle",
)
"""What `check_events` looks at in any case, in its order."""

_SESSION_CLOSED = 4
_SUCCESS = 1
_CLASSES = {"receipt": EventClass.RECEIPT.class_name, "closed": EventClass.SESSION.class_name}


def check_events(
    report: Report,
    receipt: Receipt,
    chained: Sequence[Found],
    after: Sequence[Found],
    promised: tuple[str, int] | None,
    keys: tuple[bytes, ...],
    generation: str | None = None,
) -> None:
    """Everything that follows from the events themselves, wherever they came from.

    Args:
        chained, after: the events of the chain and the lifecycle events numbered after it.
        promised: head and number of events that something other than a chain receipt states.
        generation: None for a dump, whose lines name it.
    """
    if isinstance(receipt.subject, EventChain):
        promised = (receipt.subject.chain_head, receipt.subject.event_count)
    count = len(chained) if promised is None else promised[1]
    bad: list[int] = []
    if keys:
        with report.checking("journal MACs", f"{len(chained)} records are authentic"):
            bad = _unauthentic(chained, keys, domain_active(receipt.session_id, generation or ""))
            if bad and len(chained) == count:
                raise AlteredContent(f"altered: {_words(_spans(bad))}", bad)
            if bad:
                # The number of events is wrong as well, which says more; `_structure` refuses and names the places.
                _structure(chained, count, bad)
    with report.checking("session", "all events are of the receipt's session and of one generation"):
        _one_session(receipt, [*chained, *after], generation)
    with report.checking("sequence", f"events 0 to {count - 1} are there, once each"):
        _structure(chained, count, bad)
    _chain(report, receipt, chained, promised, bool(keys))
    with report.checking("opening", "the first event opens this generation"):
        _opening(chained[0], generation or chained[0].generation)
    with report.checking("event form", f"{count} events are valid"):
        _valid(chained)
    totals = _meaning(report, receipt, chained)
    if not after:
        report.leave("lifecycle", "the source holds no lifecycle events")
        return
    with report.checking("lifecycle", f"{len(after)} lifecycle events agree with receipt and chain"):
        _lifecycle(receipt, chained, after, promised, cancelled=totals.cancel_requested)
    for absent in sorted({"receipt", "closed"} - {each.payload["action"] for each in after}):
        report.leave("lifecycle", f"the source holds no {absent} event")


def _unauthentic(chained: Iterable[Found], keys: tuple[bytes, ...], domain: str) -> list[int]:
    bad, good = [], 0
    for each in chained:
        assert each.envelope is not None
        try:
            authenticate(each.envelope, keys=keys, domain=domain, index=None)
            good += 1
        except AuthenticationFailed:
            bad.append(each.sequence)
    if bad and not good:
        raise JournalKeyMismatch("no record authenticates under the given journal keys for this session and generation")
    return bad


def _one_session(receipt: Receipt, found: Sequence[Found], generation: str | None) -> None:
    for each in found:
        if each.event.get("session_uid") != receipt.session_id:
            raise MixedSessions(f"event {each.sequence} ({each.place}) belongs to another session")
        if generation is None and each.generation != found[0].generation:
            raise MixedGenerations(f"event {each.sequence} ({each.place}) belongs to another generation")


def _structure(chained: Sequence[Found], count: int, bad: Sequence[int]) -> None:
    """Refuse anything but the sequences 0 … count-1, once each, in order."""
    sequences = [each.sequence for each in chained]
    named = f"; not authentic: {_words(_spans(bad))}" if bad else ""
    present = sorted(set(sequences))
    if len(present) != len(sequences):
        twice = sorted(number for number, times in Counter(sequences).items() if times > 1)
        raise ExtraEvent(f"extra event: {_words(_spans(twice))} stands more than once{named}")
    extra = [number for number in present if number >= count]
    missing = _missing(present, count)
    if missing and missing[0][0] == 0:
        raise OpeningMissing(f"the opening event (event 0) is missing{named}")
    if len(missing) == 1 and missing[0][1] == count - 1 and not extra:
        tail = count - missing[0][0]
        raise TailMissing(f"the last {tail} events are missing ({_words(missing)}){named}")
    if missing:
        raise EventGap(f"gap: {_words(missing)} missing{named}")
    if extra:
        raise ExtraEvent(f"extra event: {_words(_spans(extra))} is not covered by the receipt{named}")
    if sequences != present:
        raise EventOrder("the journal's records are out of order")


def _missing(present: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Spans of 0 … count-1 that are not in ``present``; spans, because a hostile receipt may claim 2^53 events."""
    spans, expected = [], 0
    for number in (*(each for each in present if each < count), count):
        if number > expected:
            spans.append((expected, number - 1))
        expected = number + 1
    return spans


def _chain(
    report: Report, receipt: Receipt, chained: Sequence[Found], promised: tuple[str, int] | None, authentic: bool
) -> None:
    if promised is None:
        report.leave("chain", "the receipt covers the trajectory, and no provenance ties the events to it")
        return
    with report.checking("chain", f"the head over {promised[1]} events is the one stated"):
        head = chain.genesis(receipt.session_id)
        for each in chained:
            head = chain.extend(head, each.event)
        if head.hex() != promised[0]:
            invalid = [each.sequence for each in chained if validate_event(each.event)]
            hint = f"; not valid: {_words(_spans(invalid))}" if invalid else ""
            how = "; the journal's MACs agree with the altered events" if authentic else ""
            raise AlteredContent(f"altered, place unknown{hint}{how}")


def _opening(first: Found, generation: str | None) -> None:
    if first.payload.get("action") != "opened":
        raise OpeningMissing("event 0 is not an opening event")
    if first.payload.get("generation") != generation:
        raise MixedGenerations("the opening event names another generation")


def _valid(found: Iterable[Found]) -> None:
    for each in found:
        if violations := validate_event(each.event):
            raise InvalidChainEvent(f"event {each.sequence} is not valid: {printable(str(violations[0]), 200)}")


def _meaning(report: Report, receipt: Receipt, chained: Sequence[Found]) -> Totals:
    agent = who(receipt.ai_agent)
    with report.checking("identity", "the agent is the same in all events and in the receipt"):
        for each in chained:
            if who(each.event.get("ai_agent")) != agent:
                raise IdentityMismatch(f"event {each.sequence} names another agent than the receipt")
            if each.record is not None and each.record.identity != each.event["ai_agent"]:
                raise IdentityMismatch(f"event {each.sequence} and its record name different agents")
    if chained[-1].event["ai_agent"].get("ttl_remaining_s") != receipt.ai_agent.ttl_remaining_s:
        report.leave("ttl_remaining_s", "differs from the last event's: renewed since, which no event records")
    with report.checking("totals", "calls, tokens and cost are the sums over the events"):
        totals, records = Totals(), Totals()
        for each in chained:
            totals = totals.add_event(each.event)
            records = records.add_record(each.record) if each.record else totals
            if differing := totals.differences(records):
                raise TotalsMismatch(f"event {each.sequence} and its record's increments differ in {differing[0]}")
        if (totals.tool_calls(), totals.cost()) != (receipt.tool_calls.model_dump(), receipt.cost.model_dump()):
            raise TotalsMismatch("the receipt's totals are not the sums over its events")
    follows = final_stop_reason(totals)
    with report.checking("stop reason", f"the receipt says {receipt.stop_reason}, and the events allow it"):
        if receipt.stop_reason_id not in (follows, _SESSION_CLOSED):
            raise StopReasonMismatch("the receipt's stop reason does not follow from the events")
    if receipt.stop_reason_id != follows:
        report.leave("stop reason", "Session Closed: an idle close, which no event records")
    return totals


def who(agent: Identity | Any) -> Any:
    """The identity triple in a comparable form (1 and True are not the same)."""
    document = agent.model_dump(exclude_none=True) if isinstance(agent, Identity) else agent
    if not isinstance(document, dict):
        return None
    return canonicalize({name: value for name, value in document.items() if name != "ttl_remaining_s"})


def _lifecycle(
    receipt: Receipt,
    chained: Sequence[Found],
    after: Sequence[Found],
    promised: tuple[str, int] | None,
    *,
    cancelled: bool,
) -> None:
    """All that can be said of events which no chain covers: whether they fit what one covers."""
    signed, count = isinstance(receipt.subject, EventChain), len(chained)
    opening, last = chained[0], chained[-1].event["time"]
    numbers = {"receipt": count if signed else count + 1, "closed": count + 1 if signed else count}
    seen: set[str] = set()
    _valid(after)
    for each in sorted(after, key=lambda each: each.sequence):
        action = str(each.payload["action"])
        if action not in numbers:
            raise LifecycleMismatch(f"the session is {action}: such a session has no receipt")
        if action in seen:
            raise ExtraEvent(f"extra event: there is a second {action} event ({each.place})")
        seen.add(action)
        if each.sequence != numbers[action]:
            raise LifecycleMismatch(f"the {action} event is numbered {each.sequence}, not {numbers[action]}")
        if who(each.event["ai_agent"]) != who(receipt.ai_agent):
            raise IdentityMismatch(f"the {action} event names another agent than the receipt")
        form = (_CLASSES[action], _SUCCESS, opening.event["metadata"]["product"])
        if (each.event["class_name"], each.event["status_id"], each.event["metadata"]["product"]) != form:
            raise LifecycleMismatch(f"the {action} event has another class, status or product than such an event has")
        if each.event["time"] < last:
            raise LifecycleMismatch(f"the {action} event is dated before the event that it follows")
        last = each.event["time"]
        if action == "receipt" and canonicalize(each.payload) != canonicalize(_announced(receipt)):
            raise LifecycleMismatch("the receipt event carries another receipt")
        closing = {
            "action": "closed",
            "mode": opening.payload.get("mode"),
            "outcome": "cancelled" if cancelled else "closed",
            "chain_head": promised[0] if promised else each.payload.get("chain_head"),
            "event_count": count,
        }
        if action == "closed" and canonicalize(each.payload) != canonicalize(closing):
            raise LifecycleMismatch("the closed event states another chain, mode or outcome than the events")


def _announced(receipt: Receipt) -> dict[str, Any]:
    document = receipt.document()
    return {
        "action": "receipt",
        "receipt_id": receipt.receipt_id,
        "key_id": receipt.key_id,
        "subject": document["subject"],
        "receipt": document,
    }


def _spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted numbers as spans, both ends included."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _words(spans: Sequence[tuple[int, int]]) -> str:
    """Such as ``events 3-5, 9``, cut after four spans."""
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:4]]
    several = len(spans) > 1 or spans[0][0] != spans[0][1]
    return f"event{'s' if several else ''} {', '.join(shown)}{', …' if len(spans) > 4 else ''}"
