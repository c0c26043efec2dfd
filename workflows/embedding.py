"""The built-in embedder, as workflow code reaches it: a session's responses measured in its own workflow task.

Its vectors are a format (formats.md 8): the same bits for the same text on every machine, like a digest's. So a replay
finds what the session found, and no history has to say it. The arithmetic needs numpy, which workflow code does not
import; a worker provides it. Any other embedder is asked in an activity (`workflows.stages.embed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from affidavit.assessment import EmbedRequest, EmbedResult
from affidavit.contract import EMBED_AT_ONCE_BYTES, EMBED_AT_ONCE_VALUES
from workflows.inbox import Item

Assess = Callable[[EmbedRequest], EmbedResult]

_provided: Assess | None = None


def provide(assess: Assess) -> None:
    """Have the sessions of this process measured by a function: that of the built-in embedder, and no other."""
    global _provided
    _provided = assess


def assess(request: EmbedRequest) -> EmbedResult:
    """One assessment an item, in order, by the built-in embedder.

    Raises:
        RuntimeError: nobody has provided it. The workflow task fails and is tried again, where it may be: an answer
            that differs from the one before would be worse.
    """
    if _provided is None:
        raise RuntimeError("the built-in embedder is not provided in this process (workers.worker.workflow_runner)")
    return _provided(request)


def at_once(items: Iterable[Item]) -> bool:
    """Whether responses can be measured within a workflow task: by bytes, and by what may be values of arguments.

    Commas and openings are counted, those in texts too: what is counted too high is measured in an activity, with the
    same result.
    """
    size = values = 0
    for item in items:
        size += item.size
        values += sum(map(item.text.count, ",[{"))
    return size <= EMBED_AT_ONCE_BYTES and values <= EMBED_AT_ONCE_VALUES
