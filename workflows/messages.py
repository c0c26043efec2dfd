"""Reading foreign payloads inside workflow code: never an exception the engine sees, never a lost message.

Whatever arrives is either steps, each with the exact text it was reported as, or a rejection with its reason
and the digest of what came (behaviours B5, B6). The text is kept verbatim: it goes to the journal activity as
it is, so nothing can be altered by parsing and printing it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from affidavit.contract import (
    MESSAGE_VALUES,
    NESTING,
    READ_AT_ONCE_BYTES,
    RECORD_STEPS,
    SIGNAL_RECORD,
    STEP_SIGNALS,
    STORED_MESSAGE_BYTES,
)
from affidavit.density import too_dense
from affidavit.evidence.scalars import MAX_INTEGER, is_digest, sha256_hex
from affidavit.evidence.text import printable
from affidavit.offloading import UNAVAILABLE, is_size
from affidavit.steps import STEP, AnyStep, Woken
from affidavit.validation import first_error
from affidavit.waking_api import SIGNAL_ACK_WAKE, SIGNAL_WOKEN
from workflows.inbox import Item, Message

M = TypeVar("M", bound=BaseModel)

_RECORD_HEAD = re.compile(r'\s*\{\s*"steps"\s*:\s*\[\s*')
_RECORD_TAIL = re.compile(r"\s*\]\s*\}\s*\Z")
_COMMA = re.compile(r"\s*,\s*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LEVELS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_INTEGER_DIGITS = 4_000
"""Python refuses to read longer integers, at a limit that the environment can move; this one stands still."""
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_SEQUENCE_BYTES = 32
_LONG_NUMBER = b"0" * (_INTEGER_DIGITS + 1)


class Unreadable(Exception):
    """A message that cannot be read; the text is the reason that its event gives."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("duplicate key in an object")
    return found


def _bounded_int(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS:
        raise Unreadable(f"an integer of more than {_INTEGER_DIGITS} digits")
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
_BOUNDED_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_bounded_int)


def _decoder(text: str) -> json.JSONDecoder:
    # The hook costs a call an integer, so it is set only where a long run of digits stands. A search for one that is
    # done by a regular expression takes longer than the reading.
    return _BOUNDED_DECODER if _LONG_NUMBER in text.encode("utf-8", "replace").translate(_DIGITS) else _DECODER


def check_nesting(text: str, limit: int = NESTING) -> None:
    """That a JSON text is not nested deeper than a limit.

    Raises:
        Unreadable: it is.
    """
    # A text with fewer openings than the limit cannot be nested deeper; most are settled by this count.
    if text.count("[") + text.count("{") <= limit:
        return
    # Brackets outside of strings as +1 and -1: their largest running sum, found without a loop in Python.
    levels = _STRING.sub("", text).encode().translate(_LEVELS, _NO_BRACKETS)
    if max(accumulate(memoryview(levels).cast("b")), default=0) > limit:
        raise Unreadable(f"nested deeper than {limit}")


def _check_keys(text: str, value: Any) -> None:
    # Only an escape can bring a lone surrogate in, because the bytes were strict UTF-8.
    if not _SURROGATE_ESCAPE.search(text):
        return
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            for key in current:
                if not key.isascii() and any("\ud800" <= char <= "\udfff" for char in key):
                    raise Unreadable("a key holds a lone surrogate")
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)


def payload_text(payload: Payload) -> str:
    """The JSON text of a payload.

    Raises:
        Unreadable: the payload is not there, not JSON by its encoding, too large, or not UTF-8.
    """
    encoding = payload.metadata.get("encoding", b"")
    if encoding == UNAVAILABLE:
        raise Unreadable("payload unavailable")
    if encoding != b"json/plain":
        raise Unreadable(f"encoding {printable(encoding.decode('utf-8', 'replace')) or 'unknown'} is not json/plain")
    if len(payload.data) > STORED_MESSAGE_BYTES:
        raise Unreadable(f"{len(payload.data)} bytes, over the limit of {STORED_MESSAGE_BYTES}")
    if too_dense(payload.data):
        raise Unreadable(f"more than {MESSAGE_VALUES} values")
    try:
        return payload.data.decode("utf-8")
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8") from None


def parse(text: str) -> Any:
    """The value of a JSON text, read strictly but with any number that Python can hold.

    Raises:
        Unreadable: no JSON, a duplicate key, nested too deep, or a lone surrogate in a key.
    """
    check_nesting(text)
    try:
        value = _decoder(text).decode(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error.msg} at {error.pos}") from None
    _check_keys(text, value)
    return value


def record_texts(data: bytes) -> list[str]:
    """The texts of the steps in a record that was made of such texts."""
    return [text for text, _ in _record_texts(data.decode("utf-8"))]


def _record_texts(text: str) -> list[tuple[str, Any]]:
    """Each step of `{"steps": […]}` with the very slice of text it was written as."""
    check_nesting(text)
    head = _RECORD_HEAD.match(text)
    if head is None:
        raise Unreadable('a record is {"steps": [...]}')
    decoder = _decoder(text)
    found: list[tuple[str, Any]] = []
    position = head.end()
    if _RECORD_TAIL.match(text, position):
        return found
    while True:
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise Unreadable(f"not JSON: {error.msg} at {error.pos}") from None
        if len(found) == RECORD_STEPS:
            raise Unreadable(f"more than {RECORD_STEPS} steps in a record")
        found.append((text[position:end], value))
        comma = _COMMA.match(text, end)
        if comma is None:
            break
        position = comma.end()
    if not _RECORD_TAIL.match(text, end):
        raise Unreadable('a record is {"steps": [...]}, nothing before or after')
    return found


def read_step(text: str, value: Any) -> AnyStep:
    """A step from its parsed value.

    Raises:
        Unreadable: the first thing that is wrong with it.
    """
    _check_keys(text, value)
    if not isinstance(value, dict):
        raise Unreadable("a step is an object")
    try:
        return STEP.validate_python(value)
    except ValidationError as error:
        # The discriminator's own tag leads the path of every error; the reporter knows its kind.
        raise Unreadable(first_error(error, without=value.get("kind"))) from None


def one_argument(payloads: Sequence[Payload]) -> Payload:
    """The only argument of a message.

    Raises:
        Unreadable: there is none, or there are several.
    """
    if len(payloads) != 1:
        raise Unreadable(f"{len(payloads)} arguments, expected 1")
    return payloads[0]


def rejected(name: str, reason: str, data: bytes, admitted_ms: int) -> Item:
    """The item that stands for a message that could not be read (formats.md 3.2, ``message_rejected``)."""
    payload = {"name": printable(name), "reason": reason, "sha256": sha256_hex(data), "bytes": len(data)}
    return Item("message_rejected", admitted_ms, payload=payload)


def lost(payloads: Sequence[Payload]) -> dict[str, Any]:
    """Digest and size of a payload that the store has lost, as its reference gave them; nothing of any other."""
    if len(payloads) != 1 or payloads[0].metadata.get("encoding") != UNAVAILABLE:
        return {}
    sha256, size = (payloads[0].metadata.get(key, b"").decode("ascii", "replace") for key in ("sha256", "bytes"))
    return {"sha256": sha256, "bytes": int(size)} if is_digest(sha256) and is_size(size) else {}


def message(name: str, payloads: Sequence[Payload], admitted_ms: int, *, late: bool = False) -> Message:
    """A signal as it waits in the inbox, unread. How many steps it holds is guessed by a key that each of them has."""
    steps = sum(payload.data.count(b'"kind"') for payload in payloads)
    return Message(name, payloads, admitted_ms, weight=min(max(steps, 1), RECORD_STEPS), late=late)


def read_message(unread: Message) -> list[Item]:
    """Items for one signal, in the order reported: steps, and rejections where something cannot be read.

    One bad step in a record is rejected alone, in its place; a record that is none is rejected whole.
    """
    name, payloads, admitted_ms = unread.name, unread.payloads, unread.admitted_ms
    try:
        if name == SIGNAL_RECORD:
            return _read_record(payload_text(one_argument(payloads)), admitted_ms)
        if name == SIGNAL_WOKEN:
            return [_read_delivered(payload_text(one_argument(payloads)), admitted_ms)]
        if name == SIGNAL_ACK_WAKE:
            raise Unreadable("ack_wake takes the sequence of a wake")
        if name in STEP_SIGNALS:
            text = payload_text(one_argument(payloads))
            value = parse(text)
            step = read_step(text, value)
            if step.kind != name:
                raise Unreadable(f"a step of kind {step.kind} in a signal {name}")
            return [Item(step.kind, admitted_ms, step=step, value=value, text=text)]
        raise Unreadable("unknown signal")
    except Unreadable as error:
        item = rejected(name, str(error), unread.data, admitted_ms)
        item.payload |= lost(payloads)
        return [item]


def _read_delivered(text: str, admitted_ms: int) -> Item:
    value = parse(text)
    step = read_woken(value)
    payload = {"wake_id": step.wake_id, "source": step.source.model_dump()}
    return Item(step.kind, admitted_ms, step=step, value=value, text=text, payload=payload)


def read_woken(value: Any) -> Woken:
    """A wake that was delivered, from its parsed value.

    Raises:
        Unreadable: the first thing that is wrong with it.
    """
    try:
        return Woken.model_validate(value)
    except ValidationError as error:
        raise Unreadable(first_error(error)) from None


def _read_record(text: str, admitted_ms: int) -> list[Item]:
    items: list[Item] = []
    for place, (part, value) in enumerate(_record_texts(text)):
        try:
            step = read_step(part, value)
        except Unreadable as error:
            data = part.encode("utf-8")
            items.append(rejected(SIGNAL_RECORD, f"steps.{place}: {error}", data, admitted_ms))
        else:
            items.append(Item(step.kind, admitted_ms, step=step, value=value, text=part))
    if not items:
        raise Unreadable("a record without steps")
    return items


def read_submission(payload: Payload, admitted_ms: int) -> list[Item]:
    """The steps of a ``submit``; here nothing is accepted in part, because the caller hears the answer.

    Raises:
        Unreadable: what is wrong with the first bad step.
    """
    items = _read_record(payload_text(payload), admitted_ms)
    for item in items:
        if item.step is None:
            raise Unreadable(str(item.payload["reason"]))
    return items


def check_submission(payload: Payload) -> list[Item]:
    """Refuse a ``submit`` before it is accepted, as far as can be told without reading much; its items if it was read.

    Raises:
        Unreadable: what is wrong with it.
    """
    if len(payload.data) <= READ_AT_ONCE_BYTES:
        return read_submission(payload, 0)
    payload_text(payload)
    return []


def read_sequence(args: Sequence[RawValue]) -> int | None:
    """A sequence that is the only argument of a message; None where it is none."""
    try:
        payload = one_argument([arg.payload for arg in args])
        value = parse(payload_text(payload)) if len(payload.data) <= _SEQUENCE_BYTES else None
    except Unreadable:
        return None
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else None


def read_request(payload: Payload) -> Any:
    """The parsed argument of an update.

    Raises:
        Unreadable: it is no JSON value that can be read.
    """
    return parse(payload_text(payload))


def read_model(payload: Payload, model: type[M]) -> M:
    """The argument of an update as its model.

    Raises:
        Unreadable: the first thing that is wrong with it.
    """
    try:
        return model.model_validate(read_request(payload))
    except ValidationError as error:
        raise Unreadable(first_error(error)) from None
