"""The manifest of topics, and what a difference from it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from affidavit.kafka.admin import Found, differences
from affidavit.kafka.errors import KafkaSettingsError
from affidavit.kafka.manifest import Manifest, Topic

SIX = "".join(
    f"  agent.{name}: {{}}\n" for name in ("tool_call", "stop_reason", "receipt", "compression", "identity", "session")
)
CONFIGS = {
    "message.timestamp.type": "CreateTime",
    "cleanup.policy": "delete",
    "retention.ms": "2592000000",
    "max.message.bytes": "33554432",
    "min.insync.replicas": "2",
}


def test_the_default_is_what_formats_3_3_says() -> None:
    """8 partitions, 720 hours, the records' own time."""
    topics = Manifest.read().topics
    assert list(topics) == [
        "agent.tool_call",
        "agent.stop_reason",
        "agent.receipt",
        "agent.compression",
        "agent.identity",
        "agent.session",
    ]
    for topic in topics.values():
        assert (topic.partitions, topic.replication, topic.configs) == (8, 3, CONFIGS)


def test_defaults_and_what_differs() -> None:
    text = f"defaults: {{replication: 1, min_insync_replicas: 1}}\ntopics:\n{SIX}  agent.extra: {{partitions: 3}}\n"
    topics = Manifest.parse(text.encode(), "t.yaml").topics
    assert (topics["agent.extra"].partitions, topics["agent.extra"].replication) == (3, 1)
    assert topics["agent.session"].partitions == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topics: [", "t.yaml: not readable as YAML at line 1"),
        ("[]", "t.yaml: `defaults` and `topics` are wanted, and nothing else"),
        ("topics: {}\nbrokers: 3", "t.yaml: `defaults` and `topics` are wanted, and nothing else"),
        ("topics: []", "t.yaml: `defaults` and `topics` hold names and values"),
        ("topics: {}", "t.yaml: the topic agent.tool_call is missing"),
        (f"topics:\n{SIX}  x: {{partition: 3}}", "t.yaml: topics.x.partition: Extra inputs are not permitted"),
        (f"topics:\n{SIX}  x: {{partitions: '8'}}", "t.yaml: topics.x.partitions: Input should be a valid integer"),
        (f"topics:\n{SIX}  x: {{partitions: 0}}",
         "t.yaml: topics.x.partitions: Input should be greater than or equal to 1"),
        (f"topics:\n{SIX}  x: {{max_message_bytes: 1000000}}",
         "t.yaml: topics.x.max_message_bytes: Input should be greater than or equal to 1048576"),
        (f"topics:\n{SIX}  x: {{replication: 1}}",
         "t.yaml: topics.x: min_insync_replicas is more than replication: nothing could be published"),
        (f"topics:\n{SIX}  x: !!python/object/apply:os.getcwd []", "t.yaml: not readable as YAML at line 8"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(text: str, message: str) -> None:
    with pytest.raises(KafkaSettingsError) as refused:
        Manifest.parse(text.encode(), "t.yaml")
    assert str(refused.value) == message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KafkaSettingsError, match=r"\Atopics.yml cannot be read: No such file or directory\Z"):
        Manifest.read(tmp_path / "topics.yml")


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (None, ["topic t is missing; `affidavit topics provision` makes it"]),
        (Found(8, 3, CONFIGS), []),
        (Found(8, 4, {**CONFIGS, "retention.ms": "-1", "max.message.bytes": "99999999"}), []),
        (Found(8, 3, {}), []),
        (Found(9, 1, CONFIGS), ["topic t has 9 partitions, not 8", "topic t has 1 replicas, not 3"]),
        (
            Found(8, 3, {**CONFIGS, "message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"}),
            [
                "topic t has message.timestamp.type=LogAppendTime, not CreateTime",
                "topic t has cleanup.policy=compact, not delete",
            ],
        ),
        (
            Found(8, 3, {**CONFIGS, "retention.ms": "604800000", "max.message.bytes": "-1"}),
            ["topic t has retention.ms=604800000, not 2592000000", "topic t has max.message.bytes=-1, not 33554432"],
        ),
    ],
)
def test_each_difference_is_a_line(found: Found | None, lines: list[str]) -> None:
    assert differences("t", Topic(), found) == lines
