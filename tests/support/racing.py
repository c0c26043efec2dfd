"""Writers that start at the same moment, and what each of them heard."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from affidavit.stores.errors import IntegrityError, StoreUnavailable


def raced(writers: int, write: Callable[[int], bool]) -> Counter[str]:
    """What so many concurrent writers heard, each in a thread of its own."""
    ready = threading.Barrier(writers)

    def one(number: int) -> str:
        ready.wait()
        for _ in range(5):  # as an activity would be, where the server has not answered
            try:
                return "created" if write(number) else "found"
            except IntegrityError:
                return "refused"
            except StoreUnavailable:
                time.sleep(0.5)
        return "unanswered"

    with ThreadPoolExecutor(writers) as pool:
        return Counter(pool.map(one, range(writers)))
