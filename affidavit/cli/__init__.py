"""The `affidavit` command, one module a group of commands.

Runs with the base install: whatever needs Temporal imports it inside the command. This module loads nothing of it
before it is asked to, so that Ctrl-C while it loads is no traceback.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from affidavit.exiting import interrupts_end, leave

__all__ = ["main", "run"]


def run(arguments: Sequence[str]) -> int:
    """Run one command; see `affidavit.cli.app.run`."""
    from affidavit.cli import app

    return app.run(arguments)


def main() -> NoReturn:
    """Entry point of the `affidavit` script."""
    with interrupts_end():
        from affidavit.cli import app
    leave(app.run(sys.argv[1:]))
