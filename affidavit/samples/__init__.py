"""Sample agent runs in ATIF, as package data; `affidavit demo` replays one."""

from __future__ import annotations

from typing import Final

SUPPORT_AGENT: Final = "support-agent.json"
