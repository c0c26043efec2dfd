"""JSON Schemas (draft 2020-12) of what the product writes, as package data."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any, Final

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.text import printable

_NAME: Final = re.compile(r"[a-z0-9_-]+")


class UnknownSchema(EvidenceError):
    """No schema has that name."""


def load(name: str) -> dict[str, Any]:
    """A schema by its short name, such as `event` for `event.schema.json`.

    Returns:
        A new dict at each call; the caller may change it.

    Raises:
        UnknownSchema: there is none of that name.
    """
    file = resources.files(__name__).joinpath(f"{name}.schema.json")
    if not _NAME.fullmatch(name) or not file.is_file():
        raise UnknownSchema(f"no schema named {printable(name)!r}")
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema
