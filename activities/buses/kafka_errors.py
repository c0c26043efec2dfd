"""What a failure of Kafka means for a session: never (poisons it), or not now (it waits and shows as stalled).

The rule is Kafka's own: what its protocol calls retriable is retried, however long. Of what it does not, only that
is permanent which says something about these records, or about our right to write them (formats.md 3.3). The rest,
a wrong password or a producer whose numbering is lost, is somebody's to mend, and no session has to end for it.
"""

from __future__ import annotations

from typing import Final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from activities.errors import IntegrityError, PermanentPublishError, TransientError
from affidavit.errors import AffidavitError
from affidavit.evidence.text import printable

_PERMANENT: Final[dict[type[KafkaError], str]] = {
    MessageSizeTooLargeError: "a record is too large for the topic",
    RecordListTooLargeError: "a record is too large for the broker",
    InvalidTopicError: "the topic's name is not one Kafka takes",
    PolicyViolationError: "a policy of the broker forbids the record",
    TopicAuthorizationFailedError: "Kafka does not let this user write to the topic",
    ClusterAuthorizationFailedError: "Kafka does not let this user write to the cluster",
}


def missing(topic: str) -> TransientError:
    """A topic that is not there. Kafka calls it retriable, and it is: an operator makes it, and nothing is lost."""
    return TransientError(f"topic {printable(topic)} is missing; `affidavit topics provision` makes it")


def translated(error: BaseException, topic: str) -> Exception:
    """The error to raise for one that the client met.

    Args:
        error: of aiokafka, the network, or our own.
        topic: what was published to.

    Returns:
        `PermanentPublishError` or `TransientError`; one of these, or an `IntegrityError`, as it is. Messages name no
        host and repeat no text of another's.
    """
    if isinstance(error, PermanentPublishError | TransientError | IntegrityError):
        return error
    for kind, why in _PERMANENT.items():
        if isinstance(error, kind):
            return PermanentPublishError(f"{printable(topic)}: {why}")
    if isinstance(error, UnknownTopicOrPartitionError):
        return missing(topic)
    if isinstance(error, AffidavitError):  # the connection's own words
        return TransientError(str(error))
    if isinstance(error, TimeoutError):
        return TransientError(f"{printable(topic)}: Kafka has not acknowledged in time")
    return TransientError(f"{printable(topic)}: {type(error).__name__}")
