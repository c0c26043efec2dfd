"""Affidavit: AI agents you can hand to an auditor.

This package is what an agent runtime (`affidavit.client`) or an auditor (`affidavit.evidence`) imports.
Importing it brings in neither Temporal nor numpy.
"""

from affidavit.version import PRODUCT, VENDOR, VERSION

__all__ = ["PRODUCT", "VENDOR", "VERSION"]
__version__ = VERSION
