"""P9: the shortcut past the check of a submission, which is taken only where no step can be a custom event."""

from __future__ import annotations

import pytest

from workflows.custom_events import _EVENT


@pytest.mark.parametrize(
    "kind", [b'"event"', b'"\\u0065vent"', b'"ev\\u0065\\u006e\\u0074"', b'"\\u0065\\u0076\\u0065\\u006Et"']
)
def test_p9_an_event_is_seen_however_its_kind_is_written(kind: bytes) -> None:
    assert _EVENT.search(b'{"steps":[{"kind":' + kind + b"}]}")


@pytest.mark.parametrize("text", [b'"Event"', b'"\\u0045vent"', b'"events"', b'"\\nevent"', b'"text\\u0065"'])
def test_p9_nothing_else_is_taken_for_one(text: bytes) -> None:
    assert not _EVENT.search(b'{"steps":[{"kind":' + text + b"}]}")
