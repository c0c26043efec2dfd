"""The one place where a worker's log is set up: lines for people, or JSON objects for a collector.

Workflow code logs through Temporal's own logger, which is silent while a history is replayed. Foreign text is escaped
in both forms, so that nobody forges a line; of an exception the log keeps type, a short message and where it came from.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from temporalio import activity, workflow

from affidavit.evidence.text import printable

Format = Literal["human", "json"]
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

MESSAGE_CHARS: Final = 2_000
ERROR_CHARS: Final = 300
CAUSES: Final = 5
FRAMES: Final = 8

_OF_WORKFLOW: Final = {
    "workflow_id": "session",
    "run_id": "run",
    "workflow_type": "workflow",
    "activity_type": "stage",
    "attempt": "attempt",
    "task_queue": "task_queue",
}


def configure(form: Format, level: Level = "INFO", *, file: Path | None = None) -> None:
    """Set up the root logger, in place of what was there.

    Args:
        form: `human` or `json`, one object a line.
        file: where to append; standard error if left out.
    """
    handler: logging.Handler = logging.StreamHandler() if file is None else logging.FileHandler(file)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Who and where stands in fields of its own, not as a Python dictionary at the end of a message.
    if form == "json":
        workflow.logger.workflow_info_on_message = False
        activity.logger.activity_info_on_message = False


class JsonFormatter(logging.Formatter):
    """One JSON object a line, ASCII only: time, level, logger, message, then what the record says of its place."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage(), MESSAGE_CHARS),
        }
        for source in ("temporal_workflow", "temporal_activity"):
            for key, value in getattr(record, source, {}).items():
                if key in _OF_WORKFLOW:
                    line[_OF_WORKFLOW[key]] = value
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["errors"] = [
                {"type": kind, "message": message, "frames": frames}
                for kind, message, frames in _chain(record.exc_info[1])
            ]
        return json.dumps(line, ensure_ascii=True, default=lambda value: printable(str(value)))


class HumanFormatter(logging.Formatter):
    """A line for people; below it, indented, where an exception came from."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone()
        message = printable(record.getMessage(), MESSAGE_CHARS)
        lines = [f"{time.isoformat(sep=' ', timespec='milliseconds')} {record.levelname} {record.name}: {message}"]
        if record.exc_info and record.exc_info[1] is not None:
            for kind, text, frames in _chain(record.exc_info[1]):
                lines.append(f"    {kind}: {text}")
                lines += [f"        {frame}" for frame in frames]
        return "\n".join(lines)


def _chain(error: BaseException) -> list[tuple[str, str, list[str]]]:
    """Type, message and last frames of an exception and of what led to it.

    Files by their base names, and no line of source: a path or a value in it may be nobody's business.
    """
    found: list[tuple[str, str, list[str]]] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < CAUSES:
        frames = [
            f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
            for frame in traceback.extract_tb(seen.__traceback__)[-FRAMES:]
        ]
        found.append((type(seen).__name__, printable(str(seen), ERROR_CHARS), frames))
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return found


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
