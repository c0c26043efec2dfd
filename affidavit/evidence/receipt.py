"""Receipt v1: issuing, strict reading, verification (formats.md 6).

Reading refuses every document that is not exactly a receipt; verification then says, in a fixed order, why a receipt
is not to be trusted. Which keys are trusted is an argument: the key inside the receipt is none.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import copysign
from typing import Annotated, Any, Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keyring import Keyring, NotBase64, RingKey, decode_base64
from affidavit.evidence.keys import Signer, is_small_order, key_id_of
from affidavit.evidence.scalars import MAX_INTEGER, check_session_id, is_uuid7, iso_ms
from affidavit.evidence.stops import CAPTIONS
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable
from affidavit.evidence.totals import Totals

RECEIPT_LIMIT: Final = 16 << 20
"""Bytes of a receipt that are read at most."""

SIGNER_FIELDS: Final = frozenset({"key_id", "public_key_b64", "signature_b64"})
"""What only the signer sets."""


class VerificationError(EvidenceError):
    """Evidence was refused.

    ``report`` is the partial `affidavit.evidence.verify.Report` where that module raised it, else None.
    """

    report: Any = None


class ReceiptFormatError(VerificationError):
    """Not a receipt: a field is missing, has the wrong type or is out of range."""


class UnknownField(ReceiptFormatError):
    """A key that Receipt v1 does not have, at any level."""


class NullInReceipt(ReceiptFormatError):
    """A null; in a receipt absent is absent."""


class NegativeZero(ReceiptFormatError):
    """The number -0, which canonical JSON would turn into 0."""


class FractionInReceipt(ReceiptFormatError):
    """A number that is not written as an integer."""


class RetroactiveRule(ReceiptFormatError):
    """``retroactive`` is not literally true for a trajectory, or is there for a chain."""


class MirrorMismatch(ReceiptFormatError):
    """Two fields that say the same thing do not: time and text, reason and caption, calls and their sum."""


class NonCanonicalBase64(ReceiptFormatError):
    """Key or signature is not the one standard base64 text of its bytes, or has the wrong length."""


class UntrustedKey(VerificationError):
    """The key is not one that the keyring vouches for; the message always says "untrusted key"."""

    def __init__(self, why: str) -> None:
        super().__init__(f"untrusted key: {why}")


class SmallOrderKey(UntrustedKey):
    """The embedded key is a small-order point, under which anybody can sign."""


class KeyIdMismatch(UntrustedKey):
    """The embedded key is not the one that ``key_id`` names: it was swapped."""


class UnknownKey(UntrustedKey):
    """The keyring does not hold the key id."""


class KeyBytesDiffer(UntrustedKey):
    """The keyring holds other bytes under this key id."""


class KeyOutsideValidity(UntrustedKey):
    """The receipt was issued before the key's not_before or after its not_after."""


class KeyRevoked(UntrustedKey):
    """The receipt was issued when the key had been revoked."""


class SmallOrderSignature(VerificationError):
    """The signature's R is a small-order point."""


class SignatureMismatch(VerificationError):
    """The signature does not fit: a field was changed, or another key signed."""


_Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Word = Annotated[str, Field(min_length=1)]
_Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
_RETROACTIVE = "subject.retroactive must be true for a trajectory and absent for an event chain"
_One = Annotated[int, Field(ge=1, le=1)]  # not Literal[1]: that takes true as well


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Charter(_Part):
    """What the agent is for."""

    name: _Word
    type_id: _One


class Identity(_Part):
    """The latest identity of the agent."""

    version: _Word
    charter: Charter
    instance_uid: _Word
    ttl_remaining_s: _Count | None = None


class EventChain(_Part):
    """Subject of a signed session: the head of its chain and the number of events."""

    kind: Literal["event_chain"]
    chain_head: _Digest
    event_count: _Count


class AtifTrajectory(_Part):
    """Subject of a promoted session: the digest of its trajectory, signed afterwards."""

    kind: Literal["atif_trajectory"]
    trajectory_digest: _Digest
    step_count: _Count
    retroactive: bool


class ToolCalls(_Part):
    """Tool calls by verdict."""

    total: _Count
    allowed: _Count
    blocked: _Count


class Cost(_Part):
    """Tokens, and micro-USD."""

    prompt_tokens: _Count
    completion_tokens: _Count
    cached_tokens: _Count
    cost_usd_micros: _Count


class Receipt(_Part):
    """A receipt whose form is right. Whether it is to be trusted is what `verify` says."""

    receipt_version: _One
    receipt_id: str
    session_id: str
    issued_at: _Count
    issued_at_iso: str
    ai_agent: Identity
    subject: Annotated[EventChain | AtifTrajectory, Field(discriminator="kind")]
    tool_calls: ToolCalls
    cost: Cost
    stop_reason_id: _Count
    stop_reason: str
    key_id: str
    public_key_b64: str
    signature_b64: str

    def document(self) -> dict[str, Any]:
        """The receipt as the JSON object that was read."""
        return self.model_dump(exclude_none=True)

    def signed_bytes(self) -> bytes:
        """What the signature covers: the canonical form of every other field."""
        return canonicalize(_without_signature(self.document()))


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """A receipt that `verify` accepted, and the trusted key that signed it."""

    receipt: Receipt
    key: RingKey


def event_chain(chain_head: str, event_count: int) -> dict[str, Any]:
    """Subject of a receipt over a chain."""
    return {"kind": "event_chain", "chain_head": chain_head, "event_count": event_count}


def atif_trajectory(trajectory_digest: str, step_count: int) -> dict[str, Any]:
    """Subject of a receipt over a trajectory."""
    return {
        "kind": "atif_trajectory",
        "trajectory_digest": trajectory_digest,
        "step_count": step_count,
        "retroactive": True,
    }


def unsigned_body(
    *,
    receipt_id: str,
    session_id: str,
    issued_at: int,
    ai_agent: Mapping[str, Any],
    subject: Mapping[str, Any],
    totals: Totals,
    stop_reason_id: int,
) -> dict[str, Any]:
    """The eleven fields that the signer does not set; the mirrors (time text, caption) are derived here.

    Args:
        issued_at: epoch milliseconds.
        ai_agent: the latest identity.
        subject: from `event_chain` or `atif_trajectory`.
        totals: sums over the whole session.
        stop_reason_id: from `affidavit.evidence.totals.final_stop_reason`.
    """
    if stop_reason_id not in CAPTIONS:
        raise ReceiptFormatError("stop_reason_id: no such stop reason")
    return {
        "receipt_version": 1,
        "receipt_id": receipt_id,
        "session_id": session_id,
        "issued_at": issued_at,
        "issued_at_iso": iso_ms(issued_at),
        "ai_agent": dict(ai_agent),
        "subject": dict(subject),
        "tool_calls": totals.tool_calls(),
        "cost": totals.cost(),
        "stop_reason_id": int(stop_reason_id),
        "stop_reason": CAPTIONS[stop_reason_id],
    }


def issue(body: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """Sign a body.

    Returns:
        the receipt's document.

    Raises:
        ReceiptFormatError: the body sets key id, key or signature itself, or would not be read as a receipt.
    """
    if taken := sorted(SIGNER_FIELDS & body.keys()):
        raise ReceiptFormatError(f"{taken[0]} is set by the signer alone")
    document = {**body, "key_id": signer.key_id, "public_key_b64": signer.public_key_b64}
    receipt = _checked({**document, "signature_b64": ""})
    signature = signer.sign(receipt.signed_bytes())
    return {**receipt.document(), "signature_b64": base64.b64encode(signature).decode()}


def to_bytes(receipt: Receipt | Mapping[str, Any]) -> bytes:
    """A receipt as it is stored: two-space indent, UTF-8, a final newline."""
    document = receipt.document() if isinstance(receipt, Receipt) else dict(receipt)
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse(data: bytes) -> Receipt:
    """Read a receipt of at most 16 MiB strictly; nothing is said about its signature.

    Raises:
        StrictJsonError: not strict JSON (duplicate key, trailing bytes, nesting, size, parse error).
        ReceiptFormatError: a subclass names the rule.
    """
    return _checked(read_json(data, max_bytes=RECEIPT_LIMIT))


def verify(receipt: Receipt, keyring: Keyring) -> VerifiedReceipt:
    """Check a receipt against trusted keys, in the order of formats.md 6.

    Raises:
        NonCanonicalBase64, SmallOrderKey, KeyIdMismatch: the embedded key.
        UnknownKey, KeyBytesDiffer, KeyOutsideValidity, KeyRevoked: what the ring says of it.
        SmallOrderSignature, SignatureMismatch: the signature.
    """
    embedded = _embedded_key(receipt)
    trusted = keyring.find(receipt.key_id)
    if trusted is None:
        raise UnknownKey(f"key id {printable(receipt.key_id)} is not in the keyring")
    if trusted.public_key != embedded:
        raise KeyBytesDiffer(f"the keyring holds another key under the id {receipt.key_id}")
    if not trusted.within_validity(receipt.issued_at):
        raise KeyOutsideValidity(f"key {receipt.key_id} was not valid when the receipt was issued")
    if trusted.revoked(receipt.issued_at):
        raise KeyRevoked(f"key {receipt.key_id} had been revoked when the receipt was issued")
    _check_signature(receipt, trusted.public_key)
    return VerifiedReceipt(receipt, trusted)


def integrity(receipt: Receipt) -> None:
    """Check the signature under the receipt's own key.

    This shows that nothing changed since somebody signed, not who did: it never makes a receipt valid. Raises as
    `verify` does for the embedded key and the signature.
    """
    _check_signature(receipt, _embedded_key(receipt))


def _checked(document: Any) -> Receipt:
    if not isinstance(document, dict):
        raise ReceiptFormatError("a receipt is a JSON object")
    for path, value in _leaves(document, ""):
        if value is None:
            raise NullInReceipt(f"{printable(path)} is null")
        if isinstance(value, float):
            if value == 0 and copysign(1, value) < 0:
                raise NegativeZero(f"{printable(path)} is -0")
            raise FractionInReceipt(f"{printable(path)} is not written as an integer")
    try:
        receipt = Receipt.model_validate(document)
    except ValidationError as error:
        raise _named(error) from None
    _check_rules(receipt)
    return receipt


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Scalars with dotted paths; recursion is bounded by the reader's nesting limit."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{position}")
    else:
        yield path, value


def _named(error: ValidationError) -> ReceiptFormatError:
    """The one finding that says most, worded with a dotted path."""
    found = [
        (_path(each["loc"]), each["type"], each["msg"]) for each in error.errors(include_input=False, include_url=False)
    ]
    for path, kind, _ in found:
        if path == "subject.retroactive":
            return RetroactiveRule(_RETROACTIVE)
        if kind == "extra_forbidden":
            return UnknownField(f"unknown field {path}")
    path, _, message = found[0]
    return ReceiptFormatError(f"{path}: {printable(message, 120)}")


def _path(location: tuple[int | str, ...]) -> str:
    # pydantic puts the discriminator's value into the path; the document has no such level.
    parts = [str(part) for part in location]
    if parts[0] == "subject" and len(parts) > 1:
        del parts[1]
    return printable(".".join(parts))


def _check_rules(receipt: Receipt) -> None:
    if isinstance(receipt.subject, AtifTrajectory) and not receipt.subject.retroactive:
        raise RetroactiveRule(_RETROACTIVE)
    try:
        check_session_id(receipt.session_id)
        mirror = iso_ms(receipt.issued_at)
        receipt.signed_bytes()  # half a surrogate pair has no canonical form
    except EvidenceError as error:
        raise ReceiptFormatError(str(error)) from None
    if not is_uuid7(receipt.receipt_id):
        raise ReceiptFormatError("receipt_id is not a UUIDv7")
    if receipt.issued_at_iso != mirror:
        raise MirrorMismatch("issued_at_iso is not the text of issued_at")
    if CAPTIONS.get(receipt.stop_reason_id) != receipt.stop_reason:
        raise MirrorMismatch("stop_reason is not the caption of stop_reason_id")
    calls = receipt.tool_calls
    if calls.total != calls.allowed + calls.blocked:
        raise MirrorMismatch("tool_calls.total is not allowed plus blocked")


def _embedded_key(receipt: Receipt) -> bytes:
    key = _decoded(receipt.public_key_b64, "public_key_b64", 32)
    if is_small_order(key):
        raise SmallOrderKey("the embedded key is a small-order point")
    if key_id_of(key) != receipt.key_id:
        raise KeyIdMismatch("the embedded key is not the one that key_id names")
    return key


def _check_signature(receipt: Receipt, public_key: bytes) -> None:
    signature = _decoded(receipt.signature_b64, "signature_b64", 64)
    if is_small_order(signature[:32]):
        raise SmallOrderSignature("the signature's R is a small-order point")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, receipt.signed_bytes())
    except InvalidSignature:
        raise SignatureMismatch("the signature does not match: a field was changed or another key signed") from None


def _decoded(text: str, name: str, length: int) -> bytes:
    try:
        data = decode_base64(text)
    except NotBase64 as error:
        raise NonCanonicalBase64(f"{name} is {error}") from None
    if len(data) != length:
        raise NonCanonicalBase64(f"{name} does not hold {length} bytes")
    return data


def _without_signature(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "signature_b64"}
