"""What stays of a life that was pruned (`pruned.json`, formats.md 5), and what is said of it."""

from __future__ import annotations

from pydantic import BaseModel

from affidavit.evidence.scalars import iso_ms
from affidavit.evidence.text import printable


class Pruned(BaseModel):
    """The payload of `pruned.json`; times in epoch milliseconds."""

    session_id: str
    generation: str
    status: str
    mode: str
    closed_at: int
    erased_at: int

    def told(self) -> str:
        """One line: that it was pruned, and how it had ended."""
        return (
            f"session {printable(self.session_id)} ended {printable(self.status, 40)} at {iso_ms(self.closed_at)} "
            f"and was pruned at {iso_ms(self.erased_at)}: its evidence was erased on purpose"
        )
