"""What activities ask Temporal about the namespace that they work in."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from temporalio.client import Client

from affidavit import registering

logger = logging.getLogger("workers")

ANSWER_LIMIT_S: Final = 2.0
ASKED_AGAIN_S: Final = 15.0
SETTLED_S: Final = 75.0
"""A server's parts learn of a new search attribute within a minute, each at its own time. One that does not know it
yet would refuse the workflow task that sets it."""


class SearchAttributesThere:
    """Whether the namespace has all search attributes, asked from an activity's thread.

    Never raises and never waits long: what cannot be answered counts as no, for a moment. A yes holds as long as the
    worker, because attributes are not taken away while sessions run.
    """

    def __init__(
        self, client: Client, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._answer = False
        self._ask_at = 0.0
        self._missed = False
        self._seen_at: float | None = None

    def __call__(self) -> bool:
        """The answer. Who asks while somebody looks waits for what is found: sessions opened at once are alike."""
        with self._lock:
            now = self._clock()
            if not self._answer and now >= self._ask_at:
                self._answer = self._look()
                self._ask_at = now + ASKED_AGAIN_S
            return self._answer

    def _look(self) -> bool:
        try:
            found = asyncio.run_coroutine_threadsafe(registering.registered(self._client), self._loop).result(
                ANSWER_LIMIT_S
            )
        except Exception as error:  # noqa: BLE001 - whatever it is: a session does without them
            logger.warning("search attributes not looked up (%s); sessions set none", type(error).__name__)
            return False
        if not found.complete:
            if not self._missed:
                logger.warning("search attributes are not registered (`affidavit setup`); sessions set none")
            self._missed, self._seen_at = True, None
            return False
        if self._seen_at is None:
            self._seen_at = self._clock()
        return not self._missed or self._clock() - self._seen_at >= SETTLED_S
