"""The spool file by itself: a full disk, damage, and a progress file that somebody else has put there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from affidavit.spool import Progress, SpoolError, SpoolWriter, joined, locked

GENERATION = "0198a7c0-0000-7000-8000-00000000000a"


def message(name: str) -> bytes:
    return b'{"steps":[{"kind":"tool_call","call_id":"%s"}]}' % name.encode()


@pytest.fixture
def writer(tmp_path: Path) -> SpoolWriter:
    return SpoolWriter(tmp_path, session_id="s", generation=None, spec={})


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The next write is cut after 30 bytes, and the one after it fails."""
    real, left = os.write, 0

    def write(file: int, data: bytes) -> int:
        nonlocal left
        left -= 1
        if left == 1:
            return real(file, data[:30])
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    def next_write_fails() -> None:
        nonlocal left
        left = 2

    monkeypatch.setattr(os, "write", write)
    return next_write_fails


def test_a_line_that_the_disk_had_no_room_for_does_not_swallow_the_next(
    writer: SpoolWriter, full_disk: Callable[[], None]
) -> None:
    writer.append(message("a"))
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        writer.append(message("b"))
    writer.append(message("c"))
    writer.end("close")
    with locked(writer.path) as file:
        spooled = file.read()
    assert spooled.messages == [message("a"), message("c")]
    assert (spooled.bad, spooled.torn, spooled.end) == (0, False, "close")


def test_a_file_that_cannot_be_put_right_takes_nothing_more(
    writer: SpoolWriter, full_disk: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(message("a"))

    def fails(_file: int, _size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", fails)
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        writer.append(message("b"))
    for _ in range(2):
        with pytest.raises(OSError, match="takes nothing more"):
            writer.append(message("c"))
    writer.close()
    with locked(writer.path) as file:
        spooled = file.read()
    assert (spooled.messages, spooled.torn, spooled.bad) == ([message("a")], True, 0)


def test_a_file_that_never_got_its_header_is_not_left_behind(tmp_path: Path, full_disk: Callable[[], None]) -> None:
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        SpoolWriter(tmp_path, session_id="s", generation=None, spec={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        message("x")[:30] + message("y"),  # glued
        message("x")[:-1],
        b'{"steps":[]}',
        b'{"steps":[1],"more":[2]}',
        b'{"end":"never"}',
        b'{"end":"close","steps":[]}',
        b"\xff",
        b"",
        b"[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_read_is_set_apart_and_spoils_no_other(writer: SpoolWriter, line: bytes) -> None:
    for each in (message("a"), line, message("b")):
        writer.append(each)
    writer.end("cancel")
    with locked(writer.path) as file:
        spooled = file.read()
    assert spooled.messages == [message("a"), message("b")]
    assert (spooled.bad, spooled.end) == (1, "cancel")
    ((count, together),) = joined(spooled.messages)
    assert (count, [step["call_id"] for step in json.loads(together)["steps"]]) == (2, ["a", "b"])


def test_progress_is_kept_and_a_note_that_was_cut_off_swallows_none(writer: SpoolWriter) -> None:
    writer.close()
    with locked(writer.path) as file:
        assert file.progress(0) == Progress()
        file.note(generation=GENERATION)
        with writer.path.with_suffix(".push").open("ab") as noted:
            noted.write(b'{"se')
        file.note(sent=2, rejected=1)
        assert file.progress(2) == Progress(generation=GENERATION, sent=2, rejected=1)
        with pytest.raises(SpoolError, match="more messages than there are"):
            file.progress(1)


@pytest.mark.parametrize(
    "text",
    [
        '{"sent":-1}',
        '{"sent":true}',
        '{"sent":1.5}',
        '{"__class__":1}',
        '{"generation":"../x"}',
        '{"closing":1}',
        "[]",
        "x",
    ],
)
def test_progress_that_no_push_writes_is_an_error(writer: SpoolWriter, text: str) -> None:
    writer.close()
    writer.path.with_suffix(".push").write_text(text + "\n")
    with locked(writer.path) as file, pytest.raises(SpoolError):
        file.progress(9)
    assert writer.path.exists()


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_progress_is_read_from_and_written_to_nothing_but_a_file(writer: SpoolWriter, kind: str) -> None:
    writer.close()
    place, other = writer.path.with_suffix(".push"), writer.path.with_suffix(".other")
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(other)
    if kind == "link":
        other.write_text('{"sent":1}\n')
    with locked(writer.path) as file:
        with pytest.raises(SpoolError, match="is no file"):
            file.progress(9)
        with pytest.raises(SpoolError, match="is no file"):
            file.note(sent=2)
    assert not other.exists() or other.read_text() == '{"sent":1}\n'
