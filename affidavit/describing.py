"""What the Temporal Web UI shows of a session from its start on: summary and details (pure).

Temporal takes 200 bytes of summary and 20 KB of details, and renders both as Markdown.
"""

from __future__ import annotations

from typing import Final

from affidavit.contract import Agent
from affidavit.markdown import literal

SUMMARY_BYTES: Final = 200
CHARTER_BYTES: Final = 120
VERSION_BYTES: Final = 40
"""With two spans, the mode and what stands between them at most 200 bytes, and never a span without its end."""


def summary(agent: Agent, mode: str) -> str:
    """`<agent> <version> · <mode>`, as Markdown of at most 200 bytes."""
    return f"{_short(agent.charter, CHARTER_BYTES)} {_short(agent.version, VERSION_BYTES)} · {mode}"


def details(agent: Agent, content: str) -> str:
    """Who acts and what is kept, as Markdown of at most 20 KB."""
    return (
        f"charter {literal(agent.charter, 255)}, version {literal(agent.version, 255)}, "
        f"instance {literal(agent.instance_uid, 255)}, content {content}"
    )


def _short(text: str, limit: int) -> str:
    """A literal of at most `limit` bytes and its two backticks."""
    characters = limit
    while len(shown := literal(text, characters).encode("utf-8")) > limit + 2:
        characters -= max((len(shown) - limit - 2) // 4, 1)
    return shown.decode("utf-8")
