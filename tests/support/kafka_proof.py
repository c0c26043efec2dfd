"""That what is on the topics is a session's evidence: each uid once, in order, and the receipt's own chain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from affidavit.contract import SessionOutcome
from tests.support import proof
from tests.support.kafka_topics import Row, events, in_topic_order
from tests.support.rig import Rig, actions


def of(found: Sequence[Row], session_id: str) -> list[Row]:
    return [row for row in found if row.headers["affidavit-session"] == session_id]


def check_once(found: Sequence[Row]) -> None:
    """Every uid of a session is on its topic once, and each topic has them by sequence."""
    counts = Counter(row.headers["affidavit-event-uid"] for row in found)
    assert {uid: count for uid, count in counts.items() if count > 1} == {}
    sequences = sorted(row.sequence for row in found)
    assert sequences == list(range(len(found)))
    for topic in {row.topic for row in found}:
        ordered = [row for row in in_topic_order(found) if row.topic == topic]
        assert len({row.partition for row in ordered}) == 1
        assert [row.sequence for row in ordered] == sorted(row.sequence for row in ordered)
    for row in found:
        event = row.event
        assert row.topic == event["class_name"]
        assert row.headers["affidavit-event-uid"] == event["metadata"]["uid"]
        assert row.timestamp == event["time"]


def check_receipt(rig: Rig, outcome: SessionOutcome, found: Sequence[Row]) -> None:
    """The chain recomputed from the topics is the one that the receipt attests, and the journal is the same."""
    receipt = json.loads((rig.folder(outcome.session_id) / "receipt.json").read_bytes())
    (key,) = json.loads((rig.data.keys / "public.json").read_bytes())
    proof.check_signature(receipt, [key])
    published = events(found)
    assert actions(published)[-2:] == ["receipt", "closed"]
    assert receipt["subject"]["chain_head"] == proof.chain_head(outcome.session_id, published)
    assert receipt["subject"]["event_count"] == len(published) - 2
    # By name: a worker that was killed while it wrote leaves a temporary file.
    segments = sorted((rig.folder(outcome.session_id) / "journal").glob("*.ndjson"))
    lines = [line for segment in segments for line in segment.read_text().splitlines()]
    assert [json.loads(line)["payload"]["event"] for line in lines] == published[:-2]
