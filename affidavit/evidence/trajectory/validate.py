"""The validator of ATIF trajectories, v1.0 to v1.8, and their strict reading (formats.md 7).

Every rule is looked at, whatever else is wrong. An optional field that is null counts as absent, as in ATIF itself.
`Checker` looks at one object at a time, so that an export can be checked while it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.strict import read_json
from affidavit.evidence.text import printable
from affidavit.evidence.trajectory import fields as atif
from affidavit.evidence.trajectory.fields import Fields

MAX_ISSUES: Final = 4096
MAX_BYTES: Final = 256 << 20
"""Bytes of a trajectory that are read at most, unless the caller says otherwise."""

Profile = Literal["strict", "writer"]


class Issue(NamedTuple):
    """One violation; `path` is dotted, with list places from 0 (empty for the document itself)."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidTrajectory(EvidenceError):
    """The document is JSON but no valid trajectory; `issues` has all that was found, the message the first."""

    def __init__(self, issues: list[Issue]) -> None:
        more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
        super().__init__(f"not a valid trajectory: {issues[0]}{more}")
        self.issues = issues


def read_trajectory(data: bytes, *, max_bytes: int = MAX_BYTES, profile: Profile = "strict") -> dict[str, Any]:
    """A trajectory from the bytes of its file.

    Args:
        max_bytes: the greatest length allowed.

    Raises:
        StrictJsonError: not strict JSON, or too long; each subclass names one fault.
        InvalidTrajectory: the profile is violated.
    """
    document = read_json(data, max_bytes=max_bytes)
    if issues := validate(document, profile):
        raise InvalidTrajectory(issues)
    trajectory: dict[str, Any] = document
    return trajectory


def validate(document: Any, profile: Profile = "strict", *, around: Collection[str] = ()) -> list[Issue]:
    """Everything that is wrong with a trajectory, at most `MAX_ISSUES`; an empty list means it is one.

    Any JSON value may be given and nothing is raised.

    Args:
        profile: `strict` is the specification of the version that the document states; `writer` also wants token
            counts on each agent step that is not copied and whose `llm_call_count` is not 0. Embedded trajectories
            are somebody else's, so they only have to be `strict`.
        around: ids that references may name beside those embedded in the document itself.
    """
    issues: list[Issue] = []
    # Embedded trajectories wait here with the ids that a reference in them can name: no recursion, whatever the depth.
    waiting: list[tuple[str, Any, frozenset[str]]] = [("", document, frozenset(around))]
    while waiting and len(issues) < MAX_ISSUES:
        path, trajectory, around = waiting.pop()
        checker = Checker(trajectory, path=path, profile="strict" if path else profile, issues=issues)
        embedded = checker.root(trajectory)
        checker.embedded = around | embedded.keys()
        for place, step in enumerate(_items(trajectory, "steps")):
            checker.step(place, step)
        below = [(f"{path}subagent_trajectories.{i}.", each) for i, each in checker.subagents(trajectory)]
        waiting.extend((where, each, checker.embedded) for where, each in reversed(below))
    return issues[:MAX_ISSUES]


def are_parts(value: Any) -> bool:
    """Whether a value is a list of content parts of the latest version, at least one."""
    return isinstance(value, list) and bool(value) and all(is_part(part) for part in value)


def is_part(value: Any) -> bool:
    """Whether a value is a content part of the latest version: a text, an image or an audio reference."""
    checker = Checker({"schema_version": f"ATIF-v1.{atif.LATEST}"})
    checker.part("", value)
    return not checker.issues


class Checker:
    """Checks the objects of one trajectory against the version it states (the latest, if it states none).

    Attributes:
        issues: what was found so far.
        embedded: ids of embedded trajectories that a reference may name.
    """

    def __init__(
        self, trajectory: Any, *, path: str = "", profile: Profile = "strict", issues: list[Issue] | None = None
    ) -> None:
        version = trajectory.get("schema_version") if isinstance(trajectory, dict) else None
        self.minor = atif.VERSIONS.get(version, atif.LATEST) if isinstance(version, str) else atif.LATEST
        self.issues = [] if issues is None else issues
        self.embedded: Collection[str] = frozenset()
        self._path = path
        self._profile = profile

    def root(self, trajectory: Any) -> dict[str, int]:
        """The document without its steps and embedded documents; returns the places of the latter by id."""
        if not self._object("", trajectory, atif.TRAJECTORY):
            return {}
        if trajectory.get("steps") == []:
            self._add("steps", "must have at least one step")
        if isinstance(agent := trajectory.get("agent"), dict):
            self._object("agent", agent, atif.AGENT)
        if isinstance(final := trajectory.get("final_metrics"), dict):
            self._object("final_metrics", final, atif.FINAL_METRICS)
        places: dict[str, int] = {}
        for place, each in self.subagents(trajectory):
            given = each.get("trajectory_id") if isinstance(each, dict) else None
            path = f"subagent_trajectories.{place}.trajectory_id"
            if given is None:
                self._add(path, "is missing; an embedded trajectory has one")
            elif isinstance(given, str) and places.setdefault(given, place) != place:
                self._add(path, f"is already the id of subagent_trajectories.{places[given]}")
        return places

    @staticmethod
    def subagents(trajectory: Any) -> Iterable[tuple[int, Any]]:
        """The embedded trajectories with their places."""
        return enumerate(_items(trajectory, "subagent_trajectories"))

    def step(self, place: int, step: Any) -> None:
        """One step with all that is in it."""
        path = f"steps.{place}"
        if not self.head(place, step):
            return
        ids: dict[str, int] = {}
        for index, call in enumerate(_items(step, "tool_calls")):
            self.call(f"{path}.tool_calls.{index}", call, index, ids)
        for index, result in enumerate(_items(step.get("observation"), "results")):
            self.result(f"{path}.observation.results.{index}", result, ids)

    def head(self, place: int, step: Any) -> bool:
        """One step without the items of its calls and results; whether it is an object at all."""
        path = f"steps.{place}"
        if not self._object(path, step, atif.STEP):
            return False
        step_id, source = step.get("step_id"), step.get("source")
        if type(step_id) is int and step_id != place + 1:
            self._add(f"{path}.step_id", f"expected {place + 1} (sequential from 1), got {step_id}")
        self._content(f"{path}.message", step.get("message"))
        if isinstance(metrics := step.get("metrics"), dict):
            self._object(f"{path}.metrics", metrics, atif.METRICS)
        if isinstance(observation := step.get("observation"), dict):
            self._object(f"{path}.observation", observation, atif.OBSERVATION)
        if source == "agent":
            self._agent(path, step)
        elif source in ("user", "system"):
            for name in atif.AGENT_ONLY:
                if step.get(name) is not None:
                    self._add(f"{path}.{name}", f"is for agent steps only, this is a {source} step")
            if step.get("observation") is not None:
                if source == "user":
                    self._add(f"{path}.observation", "is for agent and system steps only, this is a user step")
                elif self.minor < atif.SYSTEM_OBSERVATION:
                    self._gate(f"{path}.observation", "on a system step", atif.SYSTEM_OBSERVATION)
        return True

    def call(self, path: str, call: Any, place: int, ids: dict[str, int]) -> None:
        """One tool call; `ids` holds those of the step so far, with their places, and takes this one's."""
        if not self._object(path, call, atif.TOOL_CALL):
            return
        call_id = call.get("tool_call_id")
        if isinstance(call_id, str) and ids.setdefault(call_id, place) != place:
            self._add(f"{path}.tool_call_id", f"is already the id of tool_calls.{ids[call_id]} of this step")

    def result(self, path: str, result: Any, ids: Collection[str]) -> None:
        """One result of an observation; `ids` are those of the step's calls."""
        if not self._object(path, result, atif.RESULT):
            return
        call_id = result.get("source_call_id")
        if isinstance(call_id, str) and call_id not in ids:
            self._add(f"{path}.source_call_id", f"names no call of this step: {printable(call_id)!r}")
        self._content(f"{path}.content", result.get("content"))
        for place, reference in enumerate(_items(result, "subagent_trajectory_ref")):
            self.reference(f"{path}.subagent_trajectory_ref.{place}", reference)

    def reference(self, path: str, reference: Any) -> None:
        """One reference to a subagent's trajectory. Before v1.7 its session id alone is enough."""
        if not self._object(path, reference, atif.REFERENCE) or self.minor < atif.SESSION_OPTIONAL:
            return
        named, file = reference.get("trajectory_id"), reference.get("trajectory_path")
        if named is None and file is None:
            self._add(path, "must have trajectory_id or trajectory_path")
        elif file is None and isinstance(named, str) and named not in self.embedded:
            self._add(f"{path}.trajectory_id", f"names no embedded trajectory: {printable(named)!r}")

    def part(self, path: str, part: Any) -> None:
        """One content part."""
        if not self._object(path, part, atif.PART):
            return
        kind, source = part.get("type"), part.get("source")
        if kind == "text":
            wanted, unwanted = "text", "source"
        elif kind in ("image", "audio"):
            wanted, unwanted = "source", "text"
            if kind == "audio" and self.minor < atif.AUDIO:
                self._gate(f"{path}.type", "audio", atif.AUDIO)
            if isinstance(source, dict):
                self._object(f"{path}.source", source, atif.IMAGE_SOURCE if kind == "image" else atif.AUDIO_SOURCE)
        else:
            return
        if part.get(wanted) is None:
            self._add(f"{path}.{wanted}", f"is missing; a part of type {kind} has one")
        if part.get(unwanted) is not None:
            self._add(f"{path}.{unwanted}", f"must be absent from a part of type {kind}")

    def _agent(self, path: str, step: Mapping[str, Any]) -> None:
        calls = step.get("llm_call_count")
        if type(calls) is int and calls == 0:
            for name in ("metrics", "reasoning_content"):
                if step.get(name) is not None:
                    self._add(f"{path}.{name}", "must be absent where llm_call_count is 0")
        elif self._profile == "writer" and step.get("is_copied_context") is not True:
            metrics = step.get("metrics")
            for name in ("prompt_tokens", "completion_tokens"):
                if not isinstance(metrics, dict) or metrics.get(name) is None:
                    self._add(f"{path}.metrics.{name}", "is missing; a step that a model made has token counts")

    def _content(self, path: str, content: Any) -> None:
        if not isinstance(content, list):
            return
        if self.minor < atif.CONTENT_PARTS:
            self._gate(path, "a list of content parts", atif.CONTENT_PARTS)
        for place, part in enumerate(content):
            self.part(f"{path}.{place}", part)

    def _object(self, path: str, value: Any, fields: Fields) -> bool:
        """The fields of one object: known, allowed in this version, present where required, of the right kind."""
        if not isinstance(value, dict):
            self._add(path, "must be an object")
            return False
        prefix = f"{path}." if path else ""
        for name, given in value.items():
            field = fields.get(name)
            if field is None:
                self._add(f"{prefix}{printable(str(name))}", "is not a field of ATIF")
            elif given is None and self.minor >= field.required_until:
                continue
            elif self.minor < field.since:
                self._gate(f"{prefix}{name}", "this field", field.since)
            elif message := field.check(given):
                self._add(f"{prefix}{name}", message)
        for name, field in fields.items():
            if self.minor < field.required_until and name not in value:
                self._add(f"{prefix}{name}", "is missing")
        return True

    def _gate(self, path: str, what: str, since: int) -> None:
        self._add(path, f"{what} needs ATIF-v1.{since} or later, the document is ATIF-v1.{self.minor}")

    def _add(self, path: str, message: str) -> None:
        if len(self.issues) < MAX_ISSUES:
            self.issues.append(Issue((self._path + path).removesuffix("."), message))


def _items(holder: Any, name: str) -> list[Any]:
    """The list under a name, or an empty one where there is none."""
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, list) else []
