"""What a client sends, checked before it leaves: ids, specs, and steps as JSON text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from affidavit import contract
from affidavit.contract import SessionSpec, registration_hash
from affidavit.converter import encode_json
from affidavit.density import too_dense
from affidavit.errors import InvalidStep, MessageTooLarge, SessionRefused
from affidavit.evidence.canonical import CanonicalError
from affidavit.evidence.scalars import BadSessionId, check_session_id
from affidavit.evidence.text import printable
from affidavit.ids import new_session_id
from affidavit.steps import STEP, STEP_KINDS
from affidavit.validation import first_error

Step = Mapping[str, Any]

ENVELOPE_BYTES: Final = len(b'{"steps":[]}')
PRODUCER_CHARS: Final = 16
NUMBER_BYTES: Final = len(b',"producer":"","producer_seq":') + PRODUCER_CHARS + len(str(2**53))
"""What a producer's name and a number add to a step, at most."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A step as JSON text; `numbered` where the runtime has set a producer and a number of its own."""

    text: bytes
    numbered: bool

    @property
    def size(self) -> int:
        """Bytes that it takes in a message, at most: with its number and a comma."""
        return len(self.text) + 1 + (0 if self.numbered else NUMBER_BYTES)

    def with_number(self, producer: str, number: int) -> bytes:
        """Its text with a number, behind what the runtime has reported."""
        return self.text[:-1] + f',"producer":"{producer}","producer_seq":{number}}}'.encode()


Limit = Callable[[], int]
"""Bytes that a message may have; asked only of one that is larger than Temporal takes."""


def encoded(steps: Sequence[Step], limit: Limit) -> list[Encoded]:
    """Steps as JSON text, each of which fits into a message.

    Raises:
        InvalidStep: there is none, or one that the session would reject.
        MessageTooLarge: a step of more bytes than `limit` says, or of more values than a session reads in its time.
    """
    if not steps:
        raise InvalidStep("there is no step to report")
    found = [_encoded(place, step) for place, step in enumerate(steps)]
    for place, step in enumerate(found):
        try:
            _check_size(step.size - 1, limit)
            _check_density([step])
        except MessageTooLarge as error:
            raise MessageTooLarge(f"step {place}: {error}") from None
    return found


def check_one_message(steps: Sequence[Encoded], limit: Limit) -> None:
    """Check that steps fit into one message together.

    Raises:
        MessageTooLarge: they do not, by number or by size.
    """
    if len(steps) > contract.RECORD_STEPS:
        raise MessageTooLarge(f"{len(steps)} steps in one message, the limit is {contract.RECORD_STEPS}")
    _check_size(sum(step.size for step in steps) - 1, limit)
    _check_density(steps)


def record(parts: Sequence[bytes]) -> bytes:
    """The message that carries steps."""
    return b'{"steps":[' + b",".join(parts) + b"]}"


def checked_id(session_id: str | None) -> str:
    """A session id that is one; a fresh one for None.

    Raises:
        SessionRefused: it is none; the text names the rule.
    """
    if session_id is None:
        return new_session_id()
    try:
        return check_session_id(session_id)
    except BadSessionId as error:
        raise SessionRefused(contract.REFUSED_BAD_SPEC, str(error)) from None


def checked_spec(spec: SessionSpec | Mapping[str, Any], *, reopen: bool) -> SessionSpec:
    """A spec that a session would accept.

    Args:
        reopen: set in the spec, also where the given one does not.

    Raises:
        SessionRefused: what is wrong with it.
    """
    try:
        checked = spec if isinstance(spec, SessionSpec) else SessionSpec.model_validate(dict(spec))
        registration_hash(checked.registration())
    except ValidationError as error:
        reason = first_error(error)
    except CanonicalError as error:
        reason = str(error)
    else:
        return checked.model_copy(update={"reopen": True}) if reopen else checked
    raise SessionRefused(contract.REFUSED_BAD_SPEC, f"invalid session spec: {reason}")


def _check_size(steps_size: int, limit: Limit) -> None:
    size = steps_size + ENVELOPE_BYTES
    if size > contract.MESSAGE_BYTES and size > (most := limit()):
        raise MessageTooLarge(f"the message has {size} bytes, the limit is {most}")


def _check_density(steps: Sequence[Encoded]) -> None:
    # A number adds two values to its step.
    if too_dense(record([step.text for step in steps]), spare=2 * len(steps)):
        raise MessageTooLarge(f"the message holds more than {contract.MESSAGE_VALUES} values")


def _encoded(place: int, step: Step) -> Encoded:
    if isinstance(step, list | tuple):
        raise InvalidStep(f"step {place} is a list; pass steps one by one: submit(*steps)")
    if not isinstance(step, Mapping):
        raise InvalidStep(f"step {place} is no mapping, but of type {type(step).__name__}")
    try:
        STEP.validate_python(dict(step))
        return Encoded(encode_json(step), "producer" in step)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"].startswith("union_tag_"):
            raise InvalidStep(f"step {place}: {_unknown_kind(step)}") from None
        raise InvalidStep(f"step {place}: {first_error(error, without=step.get('kind'))}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidStep(f"step {place}: {printable(str(error), 160)}") from None


def _unknown_kind(step: Step) -> str:
    known = ", ".join(STEP_KINDS)
    return f"kind {printable(str(step['kind']), 40)} is none of {known}" if "kind" in step else f"no kind of {known}"
