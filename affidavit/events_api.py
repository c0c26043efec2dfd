"""What passes between the session and the activity that checks custom events."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

CHECK_ATTEMPTS: Final = 3


class EventFaults(BaseModel):
    """What is wrong with the custom events of a record, by the place of the step; those in order are left out."""

    faults: dict[int, str] = {}
