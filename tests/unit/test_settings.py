"""A worker's settings: behaviours I1."""

from __future__ import annotations

from pathlib import Path

import pytest

from affidavit.evidence.keys import SecretMissing, SecretTooOpen
from workers.settings import WorkerSettings


@pytest.mark.parametrize("secret", ["5e" * 32, "Xl5e/l5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl4=", "5e" * 2000])
def test_i1_a_secret_in_place_of_a_path_is_not_repeated(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("AFFIDAVIT_SIGNING_SEED_FILE", secret)
    monkeypatch.setenv("AFFIDAVIT_JOURNAL_KEY_FILES", secret)
    settings = WorkerSettings()
    why = "File name too long" if len(secret) > 255 else "No such file or directory"
    with pytest.raises(SecretMissing) as seed:
        settings.read_signer()
    assert str(seed.value) == f"AFFIDAVIT_SIGNING_SEED_FILE: a file that it names cannot be opened: {why}"
    with pytest.raises(SecretMissing) as key:
        settings.read_journal_keys()
    assert str(key.value) == f"AFFIDAVIT_JOURNAL_KEY_FILES: a file that it names cannot be opened: {why}"


def test_i1_a_file_that_is_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "open.seed").write_bytes(b"s" * 32)
    (tmp_path / "open.seed").chmod(0o644)
    monkeypatch.setenv("AFFIDAVIT_SIGNING_SEED_FILE", str(tmp_path / "open.seed"))
    with pytest.raises(SecretTooOpen, match=r"\Aopen\.seed is open to group or others"):
        WorkerSettings().read_signer()
