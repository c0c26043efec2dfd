"""The auditor's library: is this receipt to be believed, and do these events bear it out? (behaviours G)

Pure reading: no network, no clock, no Temporal. Which keys are trusted is an argument. A function returns a `Report`
of what was checked and what could not be, or raises a `VerificationError` whose ``report`` holds the part that was
reached. Structure is looked at before the chain, and the chain before the meaning of events, so that a missing tail, a
gap, an extra event and altered content are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from affidavit.evidence.bundle import README, Bundle, DirectoryReader, StoreReader, open_bundle
from affidavit.evidence.eventcheck import EVENT_CHECKS, check_events, who
from affidavit.evidence.journal import (
    Metadata,
    authenticate,
    domain_lifecycle,
    domain_metadata,
    domain_outcome,
    domain_trajectory,
    parse_envelope,
)
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.layout import (
    CAPTURES,
    JOURNAL,
    LIFECYCLE,
    METADATA,
    OUTCOME,
    PROVENANCE,
    PUBLIC_KEYS,
    RECEIPT,
    TRAJECTORY,
    check_generation,
    is_evidence,
)
from affidavit.evidence.receipt import EventChain, Receipt, VerificationError, integrity, parse, verify
from affidavit.evidence.report import (
    AlteredContent,
    CaptureMismatch,
    Check,
    EventGap,
    EventOrder,
    ExtraEvent,
    IdentityMismatch,
    InvalidChainEvent,
    JournalKeyMismatch,
    LifecycleMismatch,
    MetadataMismatch,
    MixedGenerations,
    MixedSessions,
    NoReceipt,
    OpeningMissing,
    Report,
    StopReasonMismatch,
    TailMissing,
    TotalsMismatch,
    TrajectoryMismatch,
    Unchecked,
    UnreadableEvidence,
)
from affidavit.evidence.scalars import sha256_hex
from affidavit.evidence.sources import (
    LIFECYCLE_ACTIONS,
    Found,
    count_lines,
    lines,
    looks_like_zip,
    numbered,
    optional,
    read_dump,
    read_lifecycle,
    read_segment,
)
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable

__all__ = [
    "AlteredContent",
    "CaptureMismatch",
    "Check",
    "EventGap",
    "EventOrder",
    "ExtraEvent",
    "IdentityMismatch",
    "InvalidChainEvent",
    "JournalKeyMismatch",
    "LifecycleMismatch",
    "MetadataMismatch",
    "MixedGenerations",
    "MixedSessions",
    "NoReceipt",
    "OpeningMissing",
    "Report",
    "Source",
    "StopReasonMismatch",
    "TailMissing",
    "TotalsMismatch",
    "TrajectoryMismatch",
    "Unchecked",
    "UnreadableEvidence",
    "VerificationError",
    "verify_receipt",
    "verify_with_events",
]

Source: TypeAlias = "Path | StoreReader"
"""A generation's folder, a bundle or a dump by path; or any reader of a generation's objects."""

_UNAUTHENTIC = "agrees with the receipt, but nothing but the journal key shows who wrote it"


def verify_receipt(receipt: bytes, keyring: Keyring | None, *, trajectory: bytes | None = None) -> Report:
    """Verify a receipt alone, or with the trajectory that it names.

    Args:
        receipt: the receipt as stored.
        keyring: the trusted keys; None checks integrity only and the report is not trusted.
        trajectory: the trajectory's file, for a receipt of that kind.

    Raises:
        VerificationError: with the partial report in ``report``.
    """
    report = Report()
    report.plan("receipt form", _signature(keyring), *(() if trajectory is None else ("trajectory",)))
    parsed = _receipt(report, receipt, keyring)
    if isinstance(parsed.subject, EventChain):
        report.leave("events", "no events were given; the receipt alone says nothing about their content")
    elif trajectory is None:
        report.leave("trajectory", "no trajectory was given")
    if trajectory is not None:
        _trajectory(report, parsed, trajectory)
    return report


def verify_with_events(
    receipt: bytes | None,
    source: Source,
    keyring: Keyring | None,
    journal_keys: Sequence[bytes] | None = None,
    *,
    trajectory: bytes | None = None,
) -> Report:
    """Verify a receipt together with the events it covers.

    Args:
        receipt: the receipt as stored; None takes the one in the folder or bundle.
        source: see `Source`. A dump is lines of ``{generation, event}``, in any order.
        keyring: the trusted keys; None checks integrity only and the report is not trusted.
        journal_keys: keys under which the journal's MACs are checked, and with which altered content is placed.
        trajectory: the trajectory's file where the source does not hold it.

    Raises:
        VerificationError: with the partial report in ``report``.
        OSError: the source cannot be read.
    """
    report, keys = Report(), tuple(journal_keys or ())
    report.plan("receipt present", "receipt form", _signature(keyring), "events", *EVENT_CHECKS)
    if isinstance(source, Path):
        if not source.is_dir() and not looks_like_zip(source):
            parsed = _given(report, receipt, keyring)
            with report.checking("events", "every line of the dump was read"):
                found = list(read_dump(source))
            report.generation = found[0].generation if found else None
            after = [each for each in found if each.payload.get("action") in LIFECYCLE_ACTIONS]
            chained = [each for each in found if each.payload.get("action") not in LIFECYCLE_ACTIONS]
            chained.sort(key=lambda each: each.sequence)  # topics are dumped one after the other
            check_events(report, parsed, chained, after, None, ())
            if after:
                report.leave("lifecycle MACs", _UNAUTHENTIC)
            report.leave("journal", "a dump holds neither MACs, captures nor metadata")
            return report
        report.plan("lifecycle records", "captures", "metadata")
        with report.checking("source", "the source was opened"):
            store: StoreReader = DirectoryReader(source) if source.is_dir() else open_bundle(source)
    else:
        report.plan("lifecycle records", "captures", "metadata")
        store = source
    try:
        with report.guarding("source"):  # any object of it may be damaged
            data = optional(store, RECEIPT) if receipt is None else receipt
            parsed = _given(report, data, keyring)
            _store(report, parsed, store, keys, trajectory)
    finally:
        if isinstance(store, Bundle) and isinstance(source, Path):
            store.close()
    return report


def _signature(keyring: Keyring | None) -> str:
    return "signature integrity" if keyring is None else "signature"


def _given(report: Report, data: bytes | None, keyring: Keyring | None) -> Receipt:
    with report.checking("receipt present", "a receipt is there"):
        if data is None:
            raise NoReceipt("no receipt was given and the source holds none")
    assert data is not None
    return _receipt(report, data, keyring)


def _receipt(report: Report, data: bytes, keyring: Keyring | None) -> Receipt:
    with report.checking("receipt form", "exactly a Receipt v1"):
        report.receipt = receipt = parse(data)
    if keyring is None:
        with report.checking("signature integrity", "nothing changed since the embedded key signed"):
            integrity(receipt)
        report.leave("signer", "integrity only, signer not trusted: no trusted key was given")
        return receipt
    with report.checking("signature", f"signed by the trusted key {printable(receipt.key_id)}"):
        key = verify(receipt, keyring).key
    report.trusted = True
    report.leave("time of issue", "issued_at is the signer's own clock")
    if key.revoked_at is not None:
        report.leave("revocation", "the key was revoked later; whoever has it since can date a receipt back")
    return receipt


def _trajectory(report: Report, receipt: Receipt, data: bytes) -> None:
    with report.checking("trajectory", "digest and number of steps are the receipt's"):
        subject = receipt.subject
        if isinstance(subject, EventChain):
            raise TrajectoryMismatch("the receipt covers a chain of events, not a trajectory")
        if sha256_hex(data) != subject.trajectory_digest:
            raise TrajectoryMismatch("the trajectory's digest is not the receipt's")
        document = read_json(data)
        steps = document.get("steps") if isinstance(document, dict) else None
        if not isinstance(steps, list) or len(steps) != subject.step_count:
            raise TrajectoryMismatch("the trajectory has another number of steps than the receipt says")


def _store(
    report: Report, receipt: Receipt, store: StoreReader, keys: tuple[bytes, ...], trajectory: bytes | None
) -> None:
    with report.checking("events", "every record of the journal was read"):
        segments = {name: list(read_segment(store, name)) for name in numbered(store, JOURNAL)}
        found = [each for segment in segments.values() for each in segment]
        report.generation = generation = _generation(store, found)
    if isinstance(receipt.subject, EventChain):
        promised: tuple[str, int] | None = (receipt.subject.chain_head, receipt.subject.event_count)
        if trajectory is not None:
            _trajectory(report, receipt, trajectory)
    else:
        promised = _promoted(report, receipt, store, keys, generation, trajectory)
    with report.checking("lifecycle records", "every lifecycle envelope was read"):
        lifecycle = [read_lifecycle(store, name) for name in numbered(store, LIFECYCLE)]
    check_events(report, receipt, found, lifecycle, promised, keys, generation)
    if keys and lifecycle:
        with report.checking("lifecycle MACs", f"{len(lifecycle)} lifecycle events are authentic"):
            domain = domain_lifecycle(receipt.session_id, generation)
            for each in lifecycle:
                assert each.envelope is not None
                authenticate(each.envelope, keys=keys, domain=domain, index=each.sequence)
    elif lifecycle:
        report.leave("lifecycle MACs", _UNAUTHENTIC)
    _captures(report, store, segments)
    _metadata(report, receipt, store, found[0], generation, keys)
    outcome = optional(store, OUTCOME)
    if outcome is not None and keys:
        with report.checking("outcome", "outcome.json is authentic"):
            _authentic(outcome, keys, domain_outcome(receipt.session_id, generation), None)
    elif outcome is not None:
        report.leave("outcome", "outcome.json was not read: nothing but the journal key shows who wrote it")
    else:
        report.leave("outcome", "the source does not hold outcome.json")
    if not keys and isinstance(receipt.subject, EventChain):
        report.leave(
            "journal MACs", "no journal key was given; the chain covers the events, but not what is written beside them"
        )
    elif not keys:
        report.leave("journal MACs", "no journal key was given; nothing that is signed covers the events")
    if PUBLIC_KEYS in store.list(""):
        report.leave("public.json", "came along with the evidence and was not used: it is no trust anchor")
    known = {README, PUBLIC_KEYS}
    if foreign := [name for name in store.list("") if name not in known and not is_evidence(name)]:
        report.leave("other files", f"{len(foreign)} that are not evidence, such as {printable(foreign[0])}")


def _authentic(data: bytes, keys: tuple[bytes, ...], domain: str, index: int | None) -> Any:
    """Payload of an envelope; its MAC only with keys, its place always."""
    envelope = parse_envelope(data)
    if keys:
        authenticate(envelope, keys=keys, domain=domain, index=index)
    elif index is not None and envelope.index != index:
        raise AlteredContent("an envelope does not stand in its place")
    return envelope.payload


def _generation(store: StoreReader, found: Sequence[Found]) -> str:
    """The generation that the folder claims to be; everything it is used for fails if the claim is false."""
    if not found:
        raise OpeningMissing("the source holds no events")
    metadata = optional(store, METADATA)
    payload = parse_envelope(metadata).payload if metadata is not None else found[0].payload
    generation = payload.get("generation") if isinstance(payload, dict) else None
    if not isinstance(generation, str):
        raise OpeningMissing("no opening event and no metadata name a generation")
    return check_generation(generation)


def _promoted(
    report: Report,
    receipt: Receipt,
    store: StoreReader,
    keys: tuple[bytes, ...],
    generation: str,
    trajectory: bytes | None,
) -> tuple[str, int] | None:
    """Check a promoted session's trajectory and return the chain head and count that its provenance states."""
    trajectory = optional(store, TRAJECTORY) if trajectory is None else trajectory
    if trajectory is None:
        report.leave("trajectory", "the source does not hold it")
    else:
        _trajectory(report, receipt, trajectory)
    provenance = optional(store, PROVENANCE)
    if provenance is None:
        return None
    with report.checking("provenance", "names this trajectory, this generation and the chain"):
        subject = receipt.subject
        assert not isinstance(subject, EventChain)
        payload = _authentic(provenance, keys, domain_trajectory(receipt.session_id, generation), None)
        if not isinstance(payload, dict) or (
            payload.get("trajectory_digest"),
            payload.get("step_count"),
            payload.get("generation"),
        ) != (subject.trajectory_digest, subject.step_count, generation):
            raise TrajectoryMismatch("the provenance names another trajectory or generation")
        head, count = payload.get("chain_head"), payload.get("event_count")
        if not isinstance(head, str) or type(count) is not int:
            raise TrajectoryMismatch("the provenance names no chain")
    if not keys:
        report.leave("provenance MAC", "no journal key was given; the receipt does not cover the events")
    return head, count


def _captures(report: Report, store: StoreReader, segments: Mapping[str, list[Found]]) -> None:
    names = numbered(store, CAPTURES)
    checked, missing = 0, 0
    with report.checking("captures", "each one that is there has the digest in its event"):
        for name in names:
            segment = segments.get(name.replace(CAPTURES, JOURNAL, 1))
            stored = store.read(name)
            if segment is None or count_lines(stored) != len(segment):
                raise CaptureMismatch(f"{name} does not go with a journal segment line by line")
            for found, line in zip(segment, lines(stored), strict=True):
                stated = found.payload.get("capture_sha256")
                if line != b"{}" if stated is None else sha256_hex(line) != stated:
                    raise CaptureMismatch(f"the capture of event {found.sequence} is not the one in its event")
                checked += stated is not None
        there = {name.replace(CAPTURES, JOURNAL, 1) for name in names}
        for name, segment in segments.items():
            missing += sum("capture_sha256" in each.payload for each in segment) if name not in there else 0
    if missing:
        report.leave("captures", f"{missing} are not in the source (content digest only, or deleted)")


def _metadata(
    report: Report,
    receipt: Receipt,
    store: StoreReader,
    opening: Found,
    generation: str,
    keys: tuple[bytes, ...],
) -> None:
    data = optional(store, METADATA)
    if data is None:
        report.leave("metadata", "the source does not hold metadata.json")
        return
    with report.checking("metadata", "session, agent, product version and registration are those of the opening event"):
        metadata = Metadata.read(_authentic(data, keys, domain_metadata(receipt.session_id, generation), 0))
        if metadata.session_id != receipt.session_id:
            raise MixedSessions("metadata.json belongs to another session")
        if metadata.generation != generation:
            raise MixedGenerations("metadata.json belongs to another generation")
        for name in ("mode", "content", "registration_sha256"):
            if getattr(metadata, name) != opening.payload.get(name):
                raise MetadataMismatch(f"metadata.json and the opening event differ in {name}")
        if who(metadata.identity) != who(opening.event["ai_agent"]):
            raise MetadataMismatch("metadata.json and the opening event differ in identity")
        if metadata.product_version != opening.event["metadata"]["product"]["version"]:
            raise MetadataMismatch("metadata.json and the opening event differ in product_version")
    if not keys:
        report.leave(
            "metadata MAC", "agrees with the opening event, but nothing but the journal key shows who wrote it"
        )
