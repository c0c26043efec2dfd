"""Ports for servers that have to be told one before they start."""

from __future__ import annotations

import contextlib
import random

from workers.devserver import DevServerError, check_free


def free_port() -> int:
    """See `free_ports`."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Ports that can be bound now.

    Below those that the system gives to outgoing connections, so that a server that starts later, or once more, finds
    them free; and at random, because several test runs may look for some at once.
    """
    found: set[int] = set()
    while len(found) < count:
        with contextlib.suppress(DevServerError):
            found.add(check_free(random.randrange(20_000, 32_000)))
    return list(found)
