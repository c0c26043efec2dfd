"""What is missing, doubled or out of place in an evidence store and on the embedded bus (behaviours G6).

An audit says whether the evidence is complete; whether a receipt is to be believed is for `verify`.
"""

from __future__ import annotations

from affidavit.evidence.audit.auditing import Audit
from affidavit.evidence.audit.findings import BUS, Counts, Finding, Findings, Kind
from affidavit.evidence.audit.folder import AuditedFolder, StoreFolder
from affidavit.evidence.audit.state import ATTESTED, STATUSES

__all__ = [
    "ATTESTED",
    "BUS",
    "STATUSES",
    "Audit",
    "AuditedFolder",
    "Counts",
    "Finding",
    "Findings",
    "Kind",
    "StoreFolder",
]
