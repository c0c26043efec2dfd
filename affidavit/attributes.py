"""The search attributes and the memo of a session: which there are, and what their values may be (pure).

They stand in Temporal's visibility store as plain text, also where payloads are encrypted. Two hold texts that others
chose, the agent's charter and what a session waits for; nothing else in them comes from the content of a session. The
memo is a payload, and encrypted like every other.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from affidavit import contract
from affidavit.contract import SessionOutcome, Totals
from affidavit.evidence.text import printable

ValueType = Literal["Keyword", "Int", "Bool"]

SEARCH_ATTRIBUTES: Final[Mapping[str, ValueType]] = MappingProxyType(
    {
        contract.ATTRIBUTE_MODE: "Keyword",
        contract.ATTRIBUTE_AGENT: "Keyword",
        contract.ATTRIBUTE_STATUS: "Keyword",
        contract.ATTRIBUTE_STOP_REASON: "Keyword",
        contract.ATTRIBUTE_WAITING: "Keyword",
        contract.ATTRIBUTE_COST: "Keyword",
        contract.ATTRIBUTE_STEPS: "Int",
        contract.ATTRIBUTE_TOKENS: "Int",
        contract.ATTRIBUTE_BREAKER_TRIPPED: "Bool",
    }
)
"""All of them, with the type each is registered under."""

VALUE_BYTES: Final = 255
"""A longer value is cut: what the visibility stores index of a keyword, and far below the 2 048 bytes at which a
server ends the workflow."""

MICROS: Final = 1_000_000


def cut(text: str, limit: int = VALUE_BYTES) -> str:
    """The longest beginning of `text` whose UTF-8 form has at most `limit` bytes; controls are escaped before."""
    shown = printable(text[:limit], 8 * limit)
    return shown.encode("utf-8")[:limit].decode("utf-8", errors="ignore")


def cost(micros: int) -> str:
    """A sum of micro-USD as a decimal number of USD, always with six places."""
    return f"{micros // MICROS}.{micros % MICROS:06d}"


def tokens(totals: Totals) -> int:
    """What `AffidavitTokens` counts: prompt and completion; cached tokens are a part of the prompt's."""
    return totals.prompt_tokens + totals.completion_tokens


def terminal_facts(outcome: SessionOutcome) -> dict[str, Any]:
    """The memo of a session that has ended: its outcome without the receipt, which is in the result.

    What there is not is left out.
    """
    return outcome.model_dump(mode="json", exclude={"receipt"}, exclude_none=True)
