"""The `affidavit` command, one module a group of commands.

Runs with the base install: whatever needs Temporal imports it inside the command.
"""

from affidavit.cli.app import main, run

__all__ = ["main", "run"]
