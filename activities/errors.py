"""What an activity can fail with, and how it is told to Temporal.

A failure is stored in the workflow's history and shown in the Web UI, so its message holds neither a secret
nor a path: base names only, and text from outside escaped and cut (behaviours I1, I5).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from temporalio.exceptions import ApplicationError, FailureError

from affidavit.evidence.text import printable
from affidavit.stores.errors import EvidenceStoreMismatch, IntegrityError, TransientError

__all__ = [
    "EvidenceStoreMismatch",
    "IntegrityError",
    "OpeningRefused",
    "PermanentPublishError",
    "TransientError",
    "application_error",
    "told_to_temporal",
]


class PermanentPublishError(Exception):
    """The bus will never take these records: too large, a name that no topic can have, not allowed."""


class OpeningRefused(Exception):
    """The store remembers an earlier life of the id, after which it is not opened (again)."""


_PERMANENT = (IntegrityError, PermanentPublishError, OpeningRefused)
_RETRYABLE = (EvidenceStoreMismatch, TransientError)


def application_error(error: Exception) -> ApplicationError:
    """Turns any error of an activity into the one that Temporal is told.

    Args:
        error: What the activity met.

    Returns:
        A failure whose `type` is the class name. `IntegrityError` and `PermanentPublishError` (and their
        subclasses, under the name of those two) are non-retryable, all else is retryable. Only the messages
        of the product's own classes are repeated: another library's may quote a path, a host or a value.
    """
    for kind in (*_PERMANENT, *_RETRYABLE):
        if isinstance(error, kind):
            return ApplicationError(str(error), type=kind.__name__, non_retryable=kind in _PERMANENT)
    name = type(error).__name__
    if not isinstance(error, OSError):
        return ApplicationError(f"unexpected {name}", type=name)
    message = error.strerror or name
    if isinstance(error.filename, str | PurePath):
        message += f": {printable(PurePath(error.filename).name)}"
    return ApplicationError(message, type=name)


@contextmanager
def told_to_temporal() -> Iterator[None]:
    """Wraps an activity's body: errors leave it as `application_error` makes them.

    The original is not chained, because its message would be stored with it; its traceback is kept.
    """
    try:
        yield
    except FailureError:
        raise
    except Exception as error:  # noqa: BLE001 - this is the border
        raise application_error(error).with_traceback(error.__traceback__) from None
