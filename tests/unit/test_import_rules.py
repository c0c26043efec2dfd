"""Imports run one way (design.md 1), and the base install needs neither Temporal nor numpy nor Kafka (G5)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "cryptography", "aiokafka"}

FORBIDDEN = {
    "affidavit": {"workflows", "activities", "workers", "tests"},
    "affidavit/evidence": {"temporalio", "numpy", "aiokafka", "typer", "rich"},
    "activities": {"workflows", "workers", "tests"},
    "workflows": {"activities", "workers", "tests", *HEAVY},
    "workers": {"tests"},
}
BASE = ("affidavit", "affidavit.cli", "affidavit.evidence.verify", "affidavit.importing", "affidavit.buslog")


def imports(path: Path, *, at_import: bool = False) -> Iterator[str]:
    """Full names that a module imports; with `at_import` only those that importing it brings in."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in _at_import(tree) if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of functions and of blocks for type checkers."""
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        if not typing_only and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _at_import(child)


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def source_of(name: str) -> Path | None:
    """The file of one of our own modules; None for another's, or for a name inside a module."""
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_run_one_way(folder: str) -> None:
    files = modules(folder)
    assert files
    found = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        if name.split(".")[0] in FORBIDDEN[folder]
    ]
    assert found == []


def test_workflows_reach_no_heavy_module_through_another() -> None:
    pending, seen = modules("workflows"), set[Path]()
    while pending:
        file = pending.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in imports(file, at_import=True):
            assert name.split(".")[0] not in HEAVY, f"{file.relative_to(ROOT)} brings {name} into a workflow"
            ours = source_of(name) or source_of(name.rpartition(".")[0])
            if ours is not None:
                pending.append(ours)
    assert len(seen) > len(modules("workflows"))


DETERMINISTIC = {
    *(
        "__future__",
        "asyncio",
        "base64",
        "collections",
        "contextlib",
        "contextvars",
        "dataclasses",
        "datetime",
        "decimal",
        "hashlib",
    ),
    *("enum", "functools", "itertools", "json", "math", "operator", "re", "struct", "types", "typing", "uuid", "zlib"),
}
"""What workflow code may use of the standard library: nothing in it looks at the machine, but for the names below."""
UNDETERMINED = {
    *("now", "utcnow", "today", "as_completed", "to_thread", "run_in_executor", "open", "input", "id"),
    *("uuid1", "uuid4"),
}
QUERIES = {("presenting.py", "time")}
"""A query is never replayed."""


def test_h3_workflow_code_reaches_for_no_clock_chance_file_or_process() -> None:
    found = set()
    for path in modules("workflows"):
        for name in imports(path):
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names - DETERMINISTIC:
                found.add((path.name, top))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name in UNDETERMINED and "workflow." not in ast.unparse(called):
                    found.add((path.name, name))
    assert found == QUERIES


SEEN_OTHERWISE = {
    "execute_local_activity": set(),
    "start_local_activity": set(),
    "uuid7": set(),
    "time_ns": set(),
    "now": {"clock.py"},
    "is_continue_as_new_suggested": {"budget.py", "grants.py"},
    "is_target_worker_deployment_version_changed": {"budget.py"},
    "wait_condition": {"turns.py", "grants.py"},
    "get_current_history_length": set(),
    "get_current_history_size": set(),
}
"""What the SDK tells a replay in another way than the run that it repeats, and where it is allowed for all that: see
`workflows/clock.py`, `workflows/turns.py`, `workflows/budget.py` and `workflows/stages.py`."""


def test_h3_what_a_replay_sees_otherwise_is_used_where_that_is_looked_after() -> None:
    found: dict[str, set[str]] = {name: set() for name in SEEN_OTHERWISE}
    for path in modules("workflows"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in SEEN_OTHERWISE:
                found[node.attr].add(path.name)
    assert found == SEEN_OTHERWISE


@pytest.mark.parametrize("module", BASE)
def test_g5_the_base_imports_without_temporal_numpy_and_kafka(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocked(f"import {module}")], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr


def blocked(code: str) -> str:
    """Code that runs where the extras' packages cannot be imported."""
    names = ("temporalio", "numpy", "aiokafka", "yaml", "pydantic_settings", "opentelemetry", "obstore")
    return f"import sys\nfor name in {names}: sys.modules[name] = None\n{code}\n"
