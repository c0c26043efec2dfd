"""Answers that this client cannot open: the one place that tells them from answers (behaviours I6)."""

from __future__ import annotations

from typing import TypeVar

from temporalio.exceptions import ApplicationError

from affidavit.codec_keys import KEY_FILES_VARIABLE
from affidavit.errors import AnswerUnreadable
from affidavit.offloading import UNAVAILABLE, Unavailable

T = TypeVar("T")


def readable(answer: T, what: str) -> T:
    """An answer, if it is one and not what the converter puts in its place.

    Args:
        what: what was asked for, for the message: `the answer of session x`.

    Raises:
        AnswerUnreadable: it is encrypted with a key that this client lacks, or was altered, or is lost.
    """
    if isinstance(answer, Unavailable):
        raise AnswerUnreadable(f"{what} cannot be read: {_why(answer)}", answer.unknown_key)
    return answer


def reason_of(error: ApplicationError) -> str:
    """Why something failed; of a failure whose message is encrypted, what it takes to read it."""
    failure = error.failure
    if failure is not None and failure.encoded_attributes.metadata.get("encoding") == UNAVAILABLE:
        return f"the reason cannot be read: {_why(Unavailable.of(failure.encoded_attributes))}"
    return error.message


def _why(lost: Unavailable) -> str:
    if lost.unknown_key is None:
        return "it was altered, or lies in an evidence store that has lost it"
    return f"it is encrypted with key {lost.unknown_key}, whose file {KEY_FILES_VARIABLE} has to name here too"
