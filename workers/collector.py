"""Python's garbage collector in a worker process."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (20_000, 10, 5)
"""Allocations before young objects are looked at, and how often older ones are: a batch makes thousands of objects, of
which reference counting frees nearly all. Sessions that have ended are freed by the collector alone, so it must not
look too seldom either."""


def spare() -> None:
    """Have the collector look less often, and never again at what is there now: modules and their classes.

    Python's own thresholds cost a worker a tenth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
