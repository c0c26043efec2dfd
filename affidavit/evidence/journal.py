"""Authenticated envelopes and the payloads they carry (formats.md 5).

An envelope says which journal it belongs to (the domain, under the MAC but not in the text) and at which place. The
MAC is checked before the place, with one text for every failure, so that nobody without the key can learn anything
by trying.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.layout import check_generation
from affidavit.evidence.scalars import MAX_INTEGER, check_session_id
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable

MAC_PREFIX: Final = b"agentvisor-journal-v1\0"
KEY_BYTES: Final = 32
JOURNAL_VERSION: Final = 3
TOKENS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens")
"""What is counted of a model call, by its name in metrics, totals and receipts."""
COUNTERS: Final = ("tool_calls", "tool_allowed", "tool_blocked", *TOKENS, "cost_usd_micros")
"""Increments that every journal record carries, in the order they are written."""

_MAC_TEXT_LIMIT = 128
_HEX = re.compile(r"[0-9a-fA-F]*")
_Model = TypeVar("_Model", bound=BaseModel)

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Word = Annotated[str, Field(min_length=1)]
Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]


class EnvelopeError(EvidenceError):
    """An envelope or its payload was refused."""


class EnvelopeParseError(EnvelopeError):
    """The bytes are JSON but not an envelope."""


class AuthenticationFailed(EnvelopeError):
    """No given key made this MAC. Always the same text: the place of a difference is no business of the asker."""

    def __init__(self) -> None:
        super().__init__("authentication failed")


class PositionMismatch(EnvelopeError):
    """The MAC is good but belongs to another place in the journal."""

    def __init__(self) -> None:
        super().__init__("position mismatch")


class RecordError(EnvelopeError):
    """An envelope's payload is not the record it should be."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope as read: nothing in it is authentic until `authenticate` has passed."""

    index: int
    payload: Any
    mac: str


def domain_active(session_id: str, generation: str) -> str:
    """Domain of the journal's records."""
    return _domain(session_id, generation, "active")


def domain_metadata(session_id: str, generation: str) -> str:
    """Domain of metadata.json."""
    return _domain(session_id, generation, "metadata")


def domain_lifecycle(session_id: str, generation: str) -> str:
    """Domain of the events numbered after the chain."""
    return _domain(session_id, generation, "lifecycle")


def domain_outcome(session_id: str, generation: str) -> str:
    """Domain of outcome.json."""
    return _domain(session_id, generation, "outcome")


def domain_trajectory(session_id: str, generation: str) -> str:
    """Domain of trajectory.provenance.json."""
    return _domain(session_id, generation, "trajectory")


def domain_pruned(session_id: str, generation: str) -> str:
    """Domain of pruned.json."""
    return _domain(session_id, generation, "pruned")


def domain_erased(session_id: str, generation: str) -> str:
    """Domain of erased.json."""
    return _domain(session_id, generation, "erased")


def seal(key: bytes, domain: str, index: int, payload: Any) -> bytes:
    """One envelope as compact JSON without a newline.

    The payload is written in canonical form, so that the same input always gives the same bytes.

    Args:
        key: the journal key, 32 bytes.
        domain: one of the ``domain_*`` texts.
        index: place in that domain, 0 … 2^53-1.
        payload: any JSON value; `CanonicalError` if it has no canonical form.
    """
    return _sealed(key, domain, index, canonicalize(payload))


def seal_record(key: bytes, domain: str, index: int, record: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The envelope of a journal record, as `seal` makes it, and the canonical form of its event.

    The event is most of a record, and the chain needs its form as well; so it is made once. The record has an identity.
    """
    canonical = canonicalize(dict(record))
    return _sealed(key, domain, index, canonical), _event_in(canonical)


def _sealed(key: bytes, domain: str, index: int, canonical: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise EnvelopeError(f"a journal key has {KEY_BYTES} bytes")
    if type(index) is not int or not 0 <= index <= MAX_INTEGER:
        raise EnvelopeError("envelope index is out of range")
    mac = _mac(key, domain, index, canonical)
    return b'{"index":%d,"payload":%b,"mac":"%b"}' % (index, canonical, mac.encode())


def parse_envelope(data: bytes) -> Envelope:
    """Read an envelope without believing it.

    Raises:
        StrictJsonError: not strict JSON.
        EnvelopeParseError: not exactly an index, a payload and a hexadecimal mac of at most 128 characters.
    """
    document = read_json(data)
    if not isinstance(document, dict) or document.keys() != {"index", "payload", "mac"}:
        raise EnvelopeParseError("an envelope has exactly the keys index, payload and mac")
    index, mac = document["index"], document["mac"]
    if not isinstance(mac, str) or len(mac) > _MAC_TEXT_LIMIT:
        raise EnvelopeParseError("envelope mac is not a text of at most 128 characters")
    if not _HEX.fullmatch(mac):
        raise EnvelopeParseError("envelope mac is not hexadecimal")
    if type(index) is not int or not 0 <= index <= MAX_INTEGER:
        raise EnvelopeParseError("envelope index is not an integer in range")
    return Envelope(index, document["payload"], mac)


def authenticate(envelope: Envelope, *, keys: Sequence[bytes], domain: str, index: int | None) -> None:
    """Check the MAC under the envelope's own index, then the place.

    Args:
        keys: journal keys, any of which may have made the MAC (rotation); all are tried, whatever the first says.
        domain: one of the ``domain_*`` texts.
        index: the place where the envelope was found, or None where the caller checks it.

    Raises:
        AuthenticationFailed, PositionMismatch, CanonicalError.
    """
    canonical = canonicalize(envelope.payload)
    found = False
    for key in keys:
        made = _mac(key, domain, envelope.index, canonical)
        found |= hmac.compare_digest(made.encode(), envelope.mac.encode())
    if not found:
        raise AuthenticationFailed
    if index is not None and index != envelope.index:
        raise PositionMismatch


def open_envelope(data: bytes, *, keys: Sequence[bytes], domain: str, index: int | None) -> Any:
    """Payload of an envelope, checked in the order of formats.md 5 (see `parse_envelope` and `authenticate`)."""
    envelope = parse_envelope(data)
    authenticate(envelope, keys=keys, domain=domain, index=index)
    return envelope.payload


_WRITTEN: Final = re.compile(rb'\{"index":(0|[1-9][0-9]{0,15}),"payload":(\{.*\}),"mac":"([0-9a-f]{64})"\}', re.DOTALL)
_EVENT: Final = b'"event":'
_AFTER_EVENT: Final = b',"identity":'


def _event_in(canonical: bytes) -> bytes:
    """The event's canonical form within that of its record; empty where it is no record.

    In canonical form members are in order, and a quote within a text is escaped: what is found are the keys. Neither
    `attempt`, before it, nor the identity behind it has a member of those names.
    """
    start, end = canonical.find(_EVENT), canonical.rfind(_AFTER_EVENT)
    return canonical[start + len(_EVENT) : end] if 0 < start < end else b""


def open_record(data: bytes, *, keys: Sequence[bytes], domain: str, index: int) -> tuple[Any, bytes]:
    """Payload of a journal record, and the canonical form of its event; for those who carry what they have journaled.

    As `open_envelope`, but a text that is as `seal` writes it is authenticated as it stands instead of being printed
    anew: who has the key has written exactly these bytes. Whoever attests to others uses `open_envelope`.

    Raises:
        EvidenceError: as `open_envelope`, and where there is no event.
    """
    written = _WRITTEN.fullmatch(data)
    if written is not None and int(written[1]) == index:
        canonical = written[2]
        found = False
        for key in keys:
            found |= hmac.compare_digest(_mac(key, domain, index, canonical).encode(), written[3])
        if found and (event := _event_in(canonical)):
            # Authentic, so it holds nothing that strict reading would refuse, and the fastest reader will do.
            return orjson.loads(canonical), event
    payload = open_envelope(data, keys=keys, domain=domain, index=index)
    return payload, canonicalize(payload.get("event")) if isinstance(payload, dict) else b""


class _Payload(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Attempt(_Payload):
    """The model attempt that a record opens or, if terminal, closes."""

    id: Word
    terminal: bool


class JournalRecord(_Payload):
    """Payload of one journal envelope: an event and what it adds to the totals (micro-USD, tokens, calls)."""

    event: dict[str, Any]
    identity: dict[str, Any]
    tool_calls: Count
    tool_allowed: Count
    tool_blocked: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    cost_usd_micros: Count
    stop_reason_id: Count | None
    attempt: Attempt | None

    @classmethod
    def read(cls, payload: Any, *, index: int) -> JournalRecord:
        """The record of an envelope whose index is ``index``; `RecordError` names the field that is wrong."""
        record = _read(cls, payload, "journal record")
        metadata = record.event.get("metadata")
        sequence = metadata.get("sequence") if isinstance(metadata, dict) else None
        if type(sequence) is not int or sequence != index:
            raise RecordError("journal record: the event's sequence is not the envelope's index")
        return record


class Metadata(_Payload):
    """Payload of metadata.json: what was fixed when the session was opened."""

    journal_version: Annotated[int, Field(ge=JOURNAL_VERSION, le=JOURNAL_VERSION)]
    session_id: Word
    generation: Word
    mode: Annotated[str, Field(pattern=r"\A(signed|unsigned)\z")]
    content: Annotated[str, Field(pattern=r"\A(digest|store|full)\z")]
    identity: dict[str, Any]
    product_version: Word
    trajectory_id: Word
    registration_sha256: Digest
    registration: dict[str, Any]

    @classmethod
    def read(cls, payload: Any) -> Metadata:
        """The metadata of a payload.

        Raises:
            RecordError: a field is wrong, or the registration is not the one its digest names.
        """
        metadata = _read(cls, payload, "metadata")
        if hashlib.sha256(canonicalize(metadata.registration)).hexdigest() != metadata.registration_sha256:
            raise RecordError("metadata: the registration does not have the digest stated for it")
        return metadata


def record_payload(
    *,
    event: Mapping[str, Any],
    identity: Mapping[str, Any],
    counts: Mapping[str, int],
    stop_reason_id: int | None,
    attempt: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Payload of a journal envelope, in the key order of formats.md 5.

    Args:
        event: the OCSF event as it will be published.
        identity: the latest identity of the agent.
        counts: increments by the names in `COUNTERS`; one that is left out is 0, another name is a `RecordError`.
        stop_reason_id: what the event records, if anything.
        attempt: ``{id, terminal}`` of the attempt it belongs to, if any.
    """
    if unknown := counts.keys() - set(COUNTERS):
        raise RecordError(f"journal record has no counter {printable(min(unknown))}")
    return {
        "event": dict(event),
        "identity": dict(identity),
        **{name: counts.get(name, 0) for name in COUNTERS},
        "stop_reason_id": stop_reason_id,
        "attempt": None if attempt is None else dict(attempt),
    }


def _domain(session_id: str, generation: str, kind: str) -> str:
    check_session_id(session_id)
    return f"{session_id}#{check_generation(generation)}:{kind}"


def _mac(key: bytes, domain: str, index: int, canonical: bytes) -> str:
    name = domain.encode()
    message = b"".join((MAC_PREFIX, _u64(len(name)), name, _u64(index), _u64(len(canonical)), canonical))
    # Not `hmac.digest`, which lets go of the interpreter for every record and has to wait for it again.
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _read(model: type[_Model], payload: Any, what: str) -> _Model:
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        path = printable(".".join(str(part) for part in first["loc"]))
        raise RecordError(f"{what}: {path or 'payload'}: {printable(first['msg'], 200)}") from None
