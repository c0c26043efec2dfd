"""The worker's log: one line a record in both forms, foreign text escaped, of exceptions no paths and no source."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from workers.logs import ERROR_CHARS, HumanFormatter, JsonFormatter

FOREIGN = "a\x1b[31mred\nINFO root: forged \u202e\x85 line"


def record(message: str, *, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("affidavit.test", logging.WARNING, __file__, 1, "%s", (message,), None)
    made.created = 1_786_320_000.25
    made.exc_info = None if error is None else (type(error), error, error.__traceback__)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def raised() -> BaseException:
    try:
        try:
            raise OSError(5, "Input/output error", "/srv/secret-place/journal")
        except OSError as cause:
            raise ValueError("x" * 10_000 + FOREIGN) from cause
    except ValueError as error:
        return error


def test_i5_json_is_one_ascii_line_with_the_text_inside() -> None:
    line = JsonFormatter().format(record(FOREIGN))
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-08-10T00:00:00.250+00:00",
        "level": "WARNING",
        "logger": "affidavit.test",
        "message": FOREIGN,
    }


def test_i5_a_line_for_people_cannot_be_forged() -> None:
    line = HumanFormatter().format(record(FOREIGN))
    assert line.count("\n") == 0
    assert "\x1b" not in line
    assert line.endswith(r"WARNING affidavit.test: a\x1b[31mred\x0aINFO root: forged \u202e\x85 line")


def test_json_says_which_session_and_stage() -> None:
    place = {"workflow_id": "s-1", "run_id": "r-1", "activity_type": "journal", "attempt": 2, "namespace": "default"}
    line = json.loads(JsonFormatter().format(record("m", temporal_activity=place, fields={"first": 3, "last": 5})))
    assert {key: line[key] for key in ("session", "run", "stage", "attempt", "first", "last")} == {
        "session": "s-1",
        "run": "r-1",
        "stage": "journal",
        "attempt": 2,
        "first": 3,
        "last": 5,
    }


@pytest.mark.parametrize("formatter", [JsonFormatter(), HumanFormatter()])
def test_i5_an_exception_shows_base_names_and_a_bounded_message(formatter: logging.Formatter) -> None:
    text = formatter.format(record("failed", error=raised()))
    assert "test_logs.py:" in text
    assert "in raised" in text
    assert "/tests/" not in text
    assert "raise ValueError" not in text  # a line of source
    assert len(text) < 3 * ERROR_CHARS + 1500
    assert "\x1b" not in text
    if isinstance(formatter, JsonFormatter):
        assert [error["type"] for error in json.loads(text)["errors"]] == ["ValueError", "OSError"]
    else:
        assert all(line.startswith("    ") for line in text.splitlines()[1:])


@pytest.mark.parametrize("value", [object(), {1: object()}, float("nan"), b"\xff"])
def test_json_takes_whatever_stands_in_a_field(value: object) -> None:
    assert "x" in json.loads(JsonFormatter().format(record("m", fields={"x": value})))
