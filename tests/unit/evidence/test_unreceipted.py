"""Why a session has nothing to bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from affidavit.evidence.bundle import DirectoryReader, NothingToBundle, write_bundle
from affidavit.evidence.layout import session_prefix

LIFE = "0198a7c0-0000-7000-8000-00000000000a"


def envelope(payload: Any) -> str:
    return json.dumps({"index": 0, "payload": payload, "mac": "0" * 64})


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "session s-1 has no receipt, and no journal"),
        ({"journal/000000000000.ndjson": "{}"}, "it has not ended; `affidavit close s-1` ends it"),
        (
            {"outcome.json": envelope({"status": "closed", "mode": "unsigned"})},
            "it is unsigned; `affidavit promote s-1` gets one first",
        ),
        (
            {"outcome.json": envelope({"status": "quarantined", "mode": "signed"})},
            "session s-1 has no receipt and there will be none: it ended quarantined",
        ),
        (
            {"outcome.json": envelope({"status": "abandoned", "mode": "unsigned"})},
            "session s-1 has no receipt and there will be none: it ended abandoned",
        ),
        ({"outcome.json": envelope({"status": "closed", "mode": "signed"})}, "the evidence is not complete"),
        ({"outcome.json": "torn"}, "its outcome cannot be read"),
        ({"pruned.json": envelope({})}, "session s-1 was pruned, its evidence was erased on purpose"),
    ],
)
def test_it_is_said_why_there_is_no_receipt(tmp_path: Path, files: dict[str, str], why: str) -> None:
    for name, text in files.items():
        path = tmp_path / session_prefix("s-1", LIFE) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(NothingToBundle) as told:
        write_bundle(DirectoryReader(tmp_path), "s-1", LIFE, tmp_path / "out.zip")
    assert str(told.value).endswith(why)
    assert not (tmp_path / "out.zip").exists()
