"""A way into the delivery of wakes by workers of this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activities.waking import WakingActivity
from affidavit.waking_api import WakeToDeliver
from workflows import waking


class Sending:
    """Steps into the sending of wakes by workers of this process."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        self.before: Callable[[WakeToDeliver], None] = lambda _: None
        self.after: Callable[[WakeToDeliver], None] = lambda _: None
        send = WakingActivity._send

        async def stepped_in(activity: WakingActivity, wake: WakeToDeliver, message: bytes) -> None:
            self.before(wake)
            await send(activity, wake, message)
            self.sent.append(wake.wake_id)
            self.after(wake)

        patched.setattr(WakingActivity, "_send", stepped_in)
        patched.setattr(waking, "FIRST_PAUSE_S", 0.1)
        patched.setattr(waking, "LONGEST_PAUSE_S", 0.1)
