"""Agent runs in ATIF, read as steps that can be reported."""

from affidavit.importing.carrying import NotARun
from affidavit.importing.run import RUN_LIMIT, ImportedRun, Sums, import_run, read_run

__all__ = ["RUN_LIMIT", "ImportedRun", "NotARun", "Sums", "import_run", "read_run"]
