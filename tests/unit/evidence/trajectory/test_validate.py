"""The validator: each rule has a document that breaks it, each version gate one on both sides (formats.md 7)."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import atif
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from affidavit.evidence.strict import DuplicateKey, NestingTooDeep, ParseError, TooLarge, TrailingBytes
from affidavit.evidence.trajectory import InvalidTrajectory, Issue, read_trajectory, validate

Json = dict[str, Any]
GONE = object()


def trajectory(minor: int = 7) -> Json:
    """A valid document of a version that uses nothing of a later one."""
    return {
        "schema_version": f"ATIF-v1.{minor}",
        "session_id": "run-1",
        "agent": {"name": "agent", "version": "1.0", "model_name": "model", "extra": {"any": None}},
        "notes": "a note",
        "continued_trajectory_ref": "next.json",
        "final_metrics": {
            "total_prompt_tokens": 10,
            "total_completion_tokens": 2,
            "total_cached_tokens": 0,
            "total_cost_usd": 0.5,
            "total_steps": 3,
            "extra": {},
        },
        "steps": [
            {"step_id": 1, "timestamp": "2025-10-11T10:30:00Z", "source": "system", "message": "be good"},
            {"step_id": 2, "timestamp": "2025-10-11T10:30:00.123456+00:00", "source": "user", "message": ""},
            {
                "step_id": 3,
                "source": "agent",
                "message": "looking",
                "model_name": "model",
                "reasoning_effort": "low",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"tool_call_id": "c1", "function_name": "look", "arguments": {"q": 1}},
                    {"tool_call_id": "c2", "function_name": "look", "arguments": {}},
                ],
                "observation": {
                    "results": [
                        {"source_call_id": "c2", "content": "seen"},
                        {"subagent_trajectory_ref": [{"session_id": "run-2", "trajectory_path": "sub.json"}]},
                    ]
                },
                "metrics": {
                    "prompt_tokens": 10,
                    "completion_tokens": 2,
                    "cached_tokens": 0,
                    "cost_usd": 0.5,
                    "logprobs": [-0.5, -1],
                    "extra": {"more": True},
                },
                "extra": {"mine": {}},
                "is_copied_context": False,
            },
        ],
    }


def changed(document: Json, path: str, value: Any) -> Json:
    """A copy with one value replaced, added, or taken away."""
    copied = copy.deepcopy(document)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder: Any = copied
    for part in way:
        holder = holder[part]
    if value is GONE:
        del holder[last]
    elif isinstance(holder, list) and last == len(holder):
        holder.append(value)
    else:
        holder[last] = value
    return copied


def refused_by_atif(document: Json) -> bool:
    try:
        atif.Trajectory.model_validate(document)
    except pydantic.ValidationError:
        return True
    return False


@pytest.mark.parametrize("minor", range(9))
def test_a_document_of_each_version_is_valid(minor: int) -> None:
    assert validate(trajectory(minor)) == []
    assert validate(trajectory(minor), "writer") == []
    assert not refused_by_atif(trajectory(minor))


OBJECT = "must be an object"
# path, value, issue (path if it is another, message), whether the `atif` package refuses it too
RULES: list[tuple[str, Any, tuple[str, str], bool]] = [
    ("schema_version", GONE, ("", "is missing"), True),
    ("schema_version", 1.7, ("", "must be one of {versions}"), True),
    ("session_id", 5, ("", "must be a string"), True),
    ("agent", GONE, ("", "is missing"), True),
    ("agent", "agent", ("", OBJECT), True),
    ("agent.name", GONE, ("", "is missing"), True),
    ("agent.name", "", ("", "must be a non-empty string"), False),
    ("agent.version", "", ("", "must be a non-empty string"), False),
    ("agent.version", 1, ("", "must be a non-empty string"), True),
    ("agent.model_name", 1, ("", "must be a string"), True),
    ("agent.tool_definitions", ["x"], ("", "must be a list of objects"), True),
    ("agent.extra", [], ("", OBJECT), True),
    ("agent.model", "x", ("", "is not a field of ATIF"), True),
    ("steps", GONE, ("", "is missing"), True),
    ("steps", {}, ("", "must be a list"), True),
    ("steps", [], ("", "must have at least one step"), False),
    ("steps.0", None, ("", OBJECT), True),
    ("notes", ["n"], ("", "must be a string"), True),
    ("continued_trajectory_ref", 1, ("", "must be a string"), True),
    ("extra", "x", ("", OBJECT), True),
    ("trajectory_id", 1, ("", "must be a string"), True),
    ("final_metrics", 1, ("", OBJECT), True),
    ("final_metrics.total_steps", -1, ("", "must not be negative"), False),
    ("final_metrics.total_prompt_tokens", 1.5, ("", "must be an integer"), True),
    ("final_metrics.total_completion_tokens", True, ("", "must be an integer"), False),
    ("final_metrics.total_cached_tokens", "1", ("", "must be an integer"), False),
    ("final_metrics.total_cost_usd", math.inf, ("", "must be a finite number"), False),
    ("final_metrics.total", 1, ("", "is not a field of ATIF"), True),
    ("final_metrics.extra", 1, ("", OBJECT), True),
    ("reward", 1, ("", "is not a field of ATIF"), True),
    ("steps.0.step_id", 0, ("", "expected 1 (sequential from 1), got 0"), True),
    ("steps.2.step_id", 4, ("", "expected 3 (sequential from 1), got 4"), True),
    ("steps.1.step_id", "2", ("", "must be an integer"), False),
    ("steps.1.step_id", GONE, ("", "is missing"), True),
    ("steps.0.timestamp", "2025-02-30T10:00:00Z", ("", "must be an ISO 8601 time"), True),
    ("steps.0.timestamp", "yesterday", ("", "must be an ISO 8601 time"), True),
    ("steps.0.timestamp", "2025-10-11 10:30:00", ("", "must be an ISO 8601 time"), False),
    ("steps.0.timestamp", 1760178600, ("", "must be an ISO 8601 time"), True),
    ("steps.1.source", "tool", ("", "must be one of system, user, agent, got 'tool'"), True),
    ("steps.1.source", GONE, ("", "is missing"), True),
    ("steps.1.message", GONE, ("", "is missing"), True),
    ("steps.1.message", None, ("", "must be a string or a list of content parts"), True),
    ("steps.1.role", "user", ("", "is not a field of ATIF"), True),
    ("steps.1.extra", 1, ("", OBJECT), True),
    ("steps.1.is_copied_context", 1, ("", "must be true or false"), False),
    ("steps.1.llm_call_count", -1, ("", "must not be negative"), True),
    ("steps.1.reasoning_content", "hm", ("", "is for agent steps only, this is a user step"), True),
    ("steps.0.reasoning_effort", "low", ("", "is for agent steps only, this is a system step"), True),
    ("steps.1.model_name", "m", ("", "is for agent steps only, this is a user step"), True),
    ("steps.0.tool_calls", [], ("", "is for agent steps only, this is a system step"), True),
    ("steps.1.metrics", {}, ("", "is for agent steps only, this is a user step"), True),
    ("steps.1.observation", {"results": []}, ("", "is for agent and system steps only, this is a user step"), False),
    ("steps.2.reasoning_content", 1, ("", "must be a string"), True),
    ("steps.2.reasoning_effort", {}, ("", "must be a string or a finite number"), True),
    ("steps.2.reasoning_effort", math.nan, ("", "must be a string or a finite number"), False),
    ("steps.2.model_name", 1, ("", "must be a string"), True),
    ("steps.2.tool_calls.0", "c1", ("", OBJECT), True),
    ("steps.2.tool_calls.0.tool_call_id", GONE, ("", "is missing"), True),
    ("steps.2.tool_calls.0.tool_call_id", 1, ("", "must be a string"), True),
    ("steps.2.tool_calls.0.function_name", GONE, ("", "is missing"), True),
    ("steps.2.tool_calls.0.arguments", GONE, ("", "is missing"), True),
    ("steps.2.tool_calls.0.arguments", '{"q":1}', ("", OBJECT), True),
    ("steps.2.tool_calls.0.arguments", None, ("", OBJECT), True),
    ("steps.2.tool_calls.0.extra", 1, ("", OBJECT), True),
    ("steps.2.tool_calls.0.id", "x", ("", "is not a field of ATIF"), True),
    (
        "steps.2.tool_calls.2",
        {"tool_call_id": "c1", "function_name": "f", "arguments": {}},
        ("steps.2.tool_calls.2.tool_call_id", "is already the id of tool_calls.0 of this step"),
        False,
    ),
    ("steps.2.observation", [], ("", OBJECT), True),
    ("steps.2.observation.results", GONE, ("", "is missing"), True),
    ("steps.2.observation.results", "seen", ("", "must be a list"), True),
    ("steps.2.observation.extra", {}, ("", "is not a field of ATIF"), True),
    ("steps.2.observation.results.0", "seen", ("", OBJECT), True),
    ("steps.2.observation.results.0.source_call_id", "c3", ("", "names no call of this step: 'c3'"), True),
    ("steps.2.observation.results.0.source_call_id", 2, ("", "must be a string"), True),
    ("steps.2.observation.results.0.content", {"a": 1}, ("", "must be a string or a list of content parts"), True),
    ("steps.2.observation.results.0.ok", True, ("", "is not a field of ATIF"), True),
    ("steps.2.observation.results.1.subagent_trajectory_ref", {}, ("", "must be a list"), True),
    ("steps.2.observation.results.1.subagent_trajectory_ref.0", "sub.json", ("", OBJECT), True),
    (
        "steps.2.observation.results.1.subagent_trajectory_ref.0",
        {"session_id": "run-2"},
        ("", "must have trajectory_id or trajectory_path"),
        True,
    ),
    (
        "steps.2.observation.results.1.subagent_trajectory_ref.0",
        {"trajectory_id": "nowhere"},
        (
            "steps.2.observation.results.1.subagent_trajectory_ref.0.trajectory_id",
            "names no embedded trajectory: 'nowhere'",
        ),
        False,
    ),
    ("steps.2.observation.results.1.subagent_trajectory_ref.0.extra", 1, ("", OBJECT), True),
    ("steps.2.metrics", 1, ("", OBJECT), True),
    ("steps.2.metrics.prompt_tokens", -1, ("", "must not be negative"), False),
    ("steps.2.metrics.completion_tokens", 2.5, ("", "must be an integer"), True),
    ("steps.2.metrics.cached_tokens", False, ("", "must be an integer"), False),
    ("steps.2.metrics.cost_usd", math.nan, ("", "must be a finite number"), False),
    ("steps.2.metrics.cost_usd", "0.5", ("", "must be a finite number"), False),
    ("steps.2.metrics.logprobs", [None], ("", "must be a list of finite numbers"), True),
    ("steps.2.metrics.completion_token_ids", ["a"], ("", "must be a list of integers"), True),
    ("steps.2.metrics.prompt_token_ids", 1, ("", "must be a list of integers"), True),
    ("steps.2.metrics.reward", 1, ("", "is not a field of ATIF"), True),
    ("steps.2.metrics.extra", 1, ("", OBJECT), True),
]


@pytest.mark.parametrize(("path", "value", "issue", "atif_too"), RULES, ids=[f"{row[0]}={row[1]}" for row in RULES])
def test_each_rule_is_an_issue_of_its_own(path: str, value: Any, issue: tuple[str, str], atif_too: bool) -> None:
    document = changed(trajectory(), path, value)
    versions = ", ".join(f"ATIF-v1.{minor}" for minor in range(9))
    assert validate(document) == [Issue(issue[0] or path, issue[1].replace("{versions}", versions))]
    assert refused_by_atif(document) is atif_too


def test_results_name_no_call_where_there_are_none() -> None:
    unnamed = Issue("steps.2.observation.results.0.source_call_id", "names no call of this step: 'c2'")
    assert validate(changed(trajectory(), "steps.2.tool_calls", {})) == [
        Issue("steps.2.tool_calls", "must be a list"),
        unnamed,
    ]
    assert validate(changed(trajectory(), "steps.2.tool_calls", GONE)) == [unnamed]


@pytest.mark.parametrize("version", ["ATIF-v1.9", "ATIF-v2.0", "1.7", "ATIF-v1.07"])
def test_other_versions_are_refused_and_the_rest_is_still_looked_at(version: str) -> None:
    document = changed(changed(trajectory(), "schema_version", version), "agent.name", "")
    assert [issue.path for issue in validate(document)] == ["schema_version", "agent.name"]
    assert validate(document)[0].message.endswith(f"ATIF-v1.8, got {version!r}")


PNG = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
WAV = {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav", "duration_sec": 1.5}}
TEXT = {"type": "text", "text": "t"}
EMBEDDED = {
    "schema_version": "ATIF-v1.7",
    "trajectory_id": "sub",
    "agent": {"name": "a", "version": "1"},
    "steps": [{"step_id": 1, "source": "user", "message": "hi"}],
}
# The version that brought it, path, value, the path of the issue if it is another.
GATES: list[tuple[int, str, Any, str]] = [
    (1, "extra", {"k": 1}, ""),
    (2, "steps.0.observation", {"results": [{"content": "done"}]}, ""),
    (3, "steps.2.metrics.completion_token_ids", [1, 2], ""),
    (4, "steps.2.metrics.prompt_token_ids", [1], ""),
    (5, "agent.tool_definitions", [{"type": "function"}], ""),
    (6, "steps.1.message", [TEXT, PNG], ""),
    (6, "steps.2.message", [PNG], ""),
    (6, "steps.2.observation.results.0.content", [TEXT], ""),
    (7, "trajectory_id", "doc-1", ""),
    (7, "subagent_trajectories", [EMBEDDED], ""),
    (7, "steps.1.llm_call_count", 1, ""),
    (7, "steps.2.llm_call_count", 2, ""),
    (7, "steps.2.tool_calls.0.extra", {}, ""),
    (7, "steps.2.observation.results.0.extra", {}, ""),
    (7, "steps.2.observation.results.1.subagent_trajectory_ref.0.trajectory_id", "x", ""),
    (8, "steps.1.message", [WAV], "steps.1.message.0.type"),
    (8, "steps.2.observation.results.0.content", [WAV], "steps.2.observation.results.0.content.0.type"),
]


@pytest.mark.parametrize(("minor", "path", "value", "where"), GATES, ids=[f"v1.{row[0]} {row[1]}" for row in GATES])
def test_a_version_gate_flips_at_exactly_its_version(minor: int, path: str, value: Any, where: str) -> None:
    for version in range(9):
        issues = validate(changed(trajectory(version), path, value))
        if version >= minor:
            assert issues == []
        else:
            # Parts of any kind have a gate of their own.
            parts = [path] if where and version < 6 else []
            assert [issue.path for issue in issues] == [*parts, where or path]
            assert issues[-1].message.endswith(f"needs ATIF-v1.{minor} or later, the document is ATIF-v1.{version}")


@pytest.mark.parametrize("minor", range(9))
def test_a_session_id_is_required_up_to_v1_6(minor: int) -> None:
    reference = "steps.2.observation.results.1.subagent_trajectory_ref.0.session_id"
    for path in ("session_id", reference):
        for value, message in ((GONE, "is missing"), (None, "must be a string")):
            expected = [] if minor >= 7 else [Issue(path, message)]
            assert validate(changed(trajectory(minor), path, value)) == expected


def test_before_v1_7_a_reference_names_a_session() -> None:
    old = changed(trajectory(6), "steps.2.observation.results.1.subagent_trajectory_ref.0", {"session_id": "run-2"})
    assert validate(old) == []


@pytest.mark.parametrize(
    ("part", "issues"),
    [
        ("text", [("", OBJECT)]),
        ({}, [(".type", "is missing")]),
        ({"type": "video"}, [(".type", "must be one of text, image, audio, got 'video'")]),
        ({"type": "text"}, [(".text", "is missing; a part of type text has one")]),
        ({"type": "text", "text": "t", "source": None}, []),
        (
            {"type": "text", "text": "t", "source": PNG["source"]},
            [(".source", "must be absent from a part of type text")],
        ),
        ({"type": "image"}, [(".source", "is missing; a part of type image has one")]),
        ({**PNG, "text": "t"}, [(".text", "must be absent from a part of type image")]),
        ({**PNG, "alt": "t"}, [(".alt", "is not a field of ATIF")]),
        ({"type": "image", "source": {"media_type": "image/png"}}, [(".source.path", "is missing")]),
        (
            {"type": "image", "source": {"media_type": "image/bmp", "path": "a"}},
            [(".source.media_type", "must be one of image/jpeg, image/png, image/gif, image/webp, got 'image/bmp'")],
        ),
        (
            {"type": "audio", "source": {"media_type": "audio/wav", "path": "a", "duration_sec": -1}},
            [(".source.duration_sec", "must not be negative")],
        ),
        ({"type": "audio", "source": {"media_type": "audio/mp3", "path": "a"}}, []),
    ],
)
def test_content_parts(part: Any, issues: list[tuple[str, str]]) -> None:
    for path in ("steps.1.message", "steps.2.observation.results.0.content"):
        document = changed(trajectory(8), path, [TEXT, part])
        assert validate(document) == [Issue(f"{path}.1{where}", message) for where, message in issues]
        assert refused_by_atif(document) is bool(issues)


@pytest.mark.parametrize("name", ["metrics", "reasoning_content"])
def test_a_step_that_no_model_made_has_neither_metrics_nor_reasoning(name: str) -> None:
    document = changed(trajectory(), "steps.2.llm_call_count", 0)
    assert {issue.path for issue in validate(document)} == {"steps.2.metrics", "steps.2.reasoning_content"}
    del document["steps"][2]["metrics" if name == "reasoning_content" else "reasoning_content"]
    assert validate(document) == [Issue(f"steps.2.{name}", "must be absent where llm_call_count is 0")]
    assert refused_by_atif(document)


def test_the_writer_profile_wants_token_counts_on_what_a_model_made() -> None:
    missing = "is missing; a step that a model made has token counts"
    bare = changed(trajectory(), "steps.2.metrics", GONE)
    assert validate(bare) == []
    assert validate(bare, "writer") == [
        Issue("steps.2.metrics.prompt_tokens", missing),
        Issue("steps.2.metrics.completion_tokens", missing),
    ]
    half = changed(trajectory(), "steps.2.metrics.completion_tokens", GONE)
    assert validate(half, "writer") == [Issue("steps.2.metrics.completion_tokens", missing)]
    assert validate(changed(bare, "steps.2.is_copied_context", True), "writer") == []
    assert (
        validate(changed(changed(bare, "steps.2.reasoning_content", GONE), "steps.2.llm_call_count", 0), "writer") == []
    )
    assert len(validate(changed(bare, "steps.2.llm_call_count", 1), "writer")) == 2


def with_embedded(*embedded: Json) -> Json:
    return changed(trajectory(), "subagent_trajectories", list(embedded))


def test_embedded_trajectories_have_unique_ids_and_are_valid_themselves() -> None:
    assert validate(with_embedded(EMBEDDED, {**EMBEDDED, "trajectory_id": "other"})) == []
    twice = with_embedded(EMBEDDED, EMBEDDED)
    assert validate(twice) == [
        Issue("subagent_trajectories.1.trajectory_id", "is already the id of subagent_trajectories.0")
    ]
    assert refused_by_atif(twice)
    nameless = with_embedded({name: value for name, value in EMBEDDED.items() if name != "trajectory_id"})
    assert validate(nameless) == [
        Issue("subagent_trajectories.0.trajectory_id", "is missing; an embedded trajectory has one")
    ]
    assert refused_by_atif(nameless)
    broken = with_embedded(EMBEDDED, changed({**EMBEDDED, "trajectory_id": "other"}, "steps.0.step_id", 2))
    assert validate(broken) == [
        Issue("subagent_trajectories.1.steps.0.step_id", "expected 1 (sequential from 1), got 2")
    ]
    others = [{**EMBEDDED, "trajectory_id": name, "steps": []} for name in ("a", "b")]
    assert [issue.path for issue in validate(with_embedded(*others))] == [
        "subagent_trajectories.0.steps",
        "subagent_trajectories.1.steps",
    ]
    # Each by its own version.
    audio = changed({**EMBEDDED, "schema_version": "ATIF-v1.8"}, "steps.0.message", [WAV])
    assert validate(with_embedded(audio)) == []
    assert validate(with_embedded({**audio, "schema_version": "ATIF-v1.7"}))[0].path.startswith(
        "subagent_trajectories.0."
    )
    # Token counts are not asked of somebody else's.
    agent = changed(EMBEDDED, "steps.0.source", "agent")
    assert validate(with_embedded(agent), "writer") == []


def test_references_resolve_to_what_is_embedded_here_or_around() -> None:
    path = "steps.2.observation.results.1.subagent_trajectory_ref.0"
    assert validate(changed(with_embedded(EMBEDDED), path, {"trajectory_id": "sub"})) == []
    elsewhere = {"trajectory_id": "nowhere", "trajectory_path": "sub.json"}
    assert validate(changed(trajectory(), path, elsewhere)) == []
    inner = {**EMBEDDED, "trajectory_id": "inner", "steps": copy.deepcopy(trajectory()["steps"])}
    assert validate(with_embedded(EMBEDDED, changed(inner, path, {"trajectory_id": "sub"}))) == []
    assert validate(with_embedded(EMBEDDED, changed(inner, path, {"trajectory_id": "no"})))[0].path == (
        f"subagent_trajectories.1.{path}.trajectory_id"
    )


@pytest.mark.parametrize(
    "time",
    ["2025-10-11", "2025-10-11T10:30", "2025-10-11T10:30:00", "2025-10-11T10:30:00.5-05:00", "20251011T103000Z"],
)
def test_times_in_iso_8601(time: str) -> None:
    assert validate(changed(trajectory(), "steps.0.timestamp", time)) == []


def test_null_is_absent_where_a_field_is_optional() -> None:
    document = trajectory(0)
    document |= {"extra": None, "trajectory_id": None, "final_metrics": None, "notes": None}
    document["steps"][1] |= {"tool_calls": None, "metrics": None, "llm_call_count": None, "observation": None}
    document["steps"][2]["observation"]["results"].append({"source_call_id": None, "content": None})
    assert validate(document) == []


def test_all_issues_are_collected_up_to_4096() -> None:
    several = changed(changed(trajectory(), "agent.name", ""), "steps.2.metrics.cost_usd", "free")
    assert [issue.path for issue in validate(several)] == ["agent.name", "steps.2.metrics.cost_usd"]
    step = {"step_id": 0, "source": "nobody", "message": 1}
    assert len(validate(changed(trajectory(), "steps", [step] * 1000))) == 3000
    assert len(validate(changed(trajectory(), "steps", [step] * 1366))) == 4096
    assert len(validate({**trajectory(), **{f"k{place}": 1 for place in range(5000)}})) == 4096


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*trajectory(), *trajectory()["steps"][2], "subagent_trajectories", "results", "content", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
)


@given(VALUES)
def test_no_json_value_raises(value: Any) -> None:
    for document in (value, {**trajectory(), "steps": [value, value], "subagent_trajectories": [value]}):
        for issue in validate(document, "writer"):
            assert issue.message


def test_embedding_without_end_raises_nothing() -> None:
    document = trajectory()
    for _ in range(3000):
        document = {**EMBEDDED, "subagent_trajectories": [document]}
    assert 0 < len(validate(document)) <= 4096
    assert validate(10**400) == [Issue("", OBJECT)]
    assert validate(changed(trajectory(), "steps.2.metrics.cost_usd", 10**400)) == []


def test_foreign_names_are_shown_safely() -> None:
    document = changed(trajectory(), "bad\x1b[31m\nname" + "x" * 100, 1)
    (issue,) = validate(document)
    assert issue.path.startswith("bad\\x1b[31m\\x0aname")
    assert len(issue.path) == 64


def test_strict_reading() -> None:
    text = json.dumps(trajectory())
    assert read_trajectory(text.encode()) == trajectory()
    with pytest.raises(DuplicateKey, match="duplicate key 'notes'"):
        read_trajectory(text.replace('"notes"', '"notes": "x", "notes"').encode())
    with pytest.raises(TrailingBytes):
        read_trajectory(text.encode() + b"{}")
    with pytest.raises(ParseError):
        read_trajectory(text.encode()[:-1])
    with pytest.raises(NestingTooDeep):
        read_trajectory(text.replace('{"any": null}', "[" * 129 + "]" * 129).encode())
    with pytest.raises(TooLarge, match=f"document of {len(text)} bytes, at most {len(text) - 1} are read"):
        read_trajectory(text.encode(), max_bytes=len(text) - 1)
    assert read_trajectory(text.encode(), max_bytes=len(text))
    with pytest.raises(
        InvalidTrajectory, match=r"not a valid trajectory: steps: must have at least one step$"
    ) as raised:
        read_trajectory(json.dumps(changed(trajectory(), "steps", [])).encode())
    assert raised.value.issues == [Issue("steps", "must have at least one step")]
    bare = json.dumps(changed(trajectory(), "steps.2.metrics", {})).encode()
    assert read_trajectory(bare)
    with pytest.raises(InvalidTrajectory, match=r"\(and 1 more\)"):
        read_trajectory(bare, profile="writer")
