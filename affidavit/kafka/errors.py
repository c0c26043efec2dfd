"""What the use of a Kafka cluster can meet before anything is published. One line each, without a secret."""

from __future__ import annotations

from affidavit.errors import AffidavitError, AffidavitUnavailable


class KafkaSettingsError(AffidavitError):
    """A setting, or the manifest of topics, is missing or does not fit."""


class KafkaUnreachable(AffidavitUnavailable):
    """No broker answers at the configured addresses."""


class KafkaRefused(AffidavitError):
    """A broker answers, and does not let us in: credentials, certificate or rights."""


class TopicsWrong(AffidavitError):
    """The cluster's topics are not what the manifest says; `differences` has a line for each."""

    def __init__(self, differences: list[str]) -> None:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        super().__init__(f"{differences[0]}{more}; see `affidavit topics check`")
        self.differences = differences
