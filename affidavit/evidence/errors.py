"""The one base class of every named error of the evidence package."""

from __future__ import annotations


class EvidenceError(ValueError):
    """A document, value or identifier is not what its format demands; the message is one short line."""
