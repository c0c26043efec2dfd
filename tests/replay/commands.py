"""The commands that workflow code gives to Temporal, in source order, taken from its syntax tree.

A running session is replayed from its history: the code must give the commands that the history holds, in their
order. What is listed for a function is each call that gives one (with the activity's name where it is a constant),
each call of another listed function, and each task that is started, because tasks run in the order of their start.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

WORKFLOWS: Final = Path(__file__).parents[2] / "workflows"
BASELINE: Final = Path(__file__).with_name("commands.txt")

GIVES_A_COMMAND: Final = frozenset(
    {
        "execute_activity",
        "execute_activity_class",
        "execute_activity_method",
        "start_activity",
        "start_activity_class",
        "start_activity_method",
        "execute_local_activity",
        "execute_local_activity_class",
        "execute_local_activity_method",
        "start_local_activity",
        "start_local_activity_class",
        "start_local_activity_method",
        "execute_child_workflow",
        "start_child_workflow",
        "get_external_workflow_handle",
        "continue_as_new",
        "upsert_search_attributes",
        "upsert_memo",
        "patched",
        "deprecate_patch",
        "sleep",
        "wait_for",
        "timeout",
        "call_later",
    }
)
"""Timers among them; `wait_condition` gives one only where it has a timeout."""

STARTS_A_TASK: Final = frozenset({"create_task", "gather", "ensure_future"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def called(call: ast.Call) -> str:
    """The last name of what is called: `sleep` of `workflow.sleep(1)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def is_command(call: ast.Call) -> bool:
    """Whether a call gives a command by itself."""
    if called(call) == "wait_condition":
        return any(keyword.arg == "timeout" for keyword in call.keywords)
    return called(call) in GIVES_A_COMMAND | STARTS_A_TASK


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Every function of a module by its qualified name, nested ones on their own, in source order."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
                yield from below(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{prefix}{child.name}.")
            else:
                yield from below(child, prefix)

    return below(tree, "")


def calls(function: Function) -> list[ast.Call]:
    """The calls in a function's own body, in source order."""

    def below(node: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(child, ast.Call):
                yield child
            yield from below(child)

    return sorted((call for part in function.body for call in below(ast.Module([part], []))), key=_place)


def _place(call: ast.Call) -> tuple[int, int]:
    # Where a call ends is when it is made: arguments come before it.
    return call.end_lineno or 0, call.end_col_offset or 0


def shown(call: ast.Call) -> str:
    """A call with what matters of it: the constant that names the activity, or the task that is started."""
    name = called(call)
    if name in STARTS_A_TASK:
        return f"{name}({', '.join(map(ast.unparse, call.args))})"
    if call.args and _is_name(call.args[0]):
        return f"{name}({ast.unparse(call.args[0])})"
    return name


def _is_name(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    return isinstance(node, ast.Attribute) and node.attr.startswith("ACTIVITY_")


def listing(folder: Path) -> str:
    """The commands of all modules in a folder, as the baseline holds them."""
    modules = {path.stem: ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))}
    found = {(module, name): function for module, tree in modules.items() for name, function in functions(tree)}
    giving: set[tuple[str, str]] = set()

    def gives(module: str, call: ast.Call) -> bool:
        # By the last name: more is listed than has to be, never less. A private name is its module's own.
        name = called(call)
        return is_command(call) or any(
            name == other.rpartition(".")[2] and (module == where or not name.startswith("_"))
            for where, other in giving
        )

    while True:
        now = {key for key, function in found.items() if any(gives(key[0], call) for call in calls(function))}
        if now == giving:
            break
        giving = now
    lines: list[str] = []
    for (module, name), function in found.items():
        if (module, name) in giving:
            lines.append(f"{module}.{name}:")
            lines += [f"    {shown(call)}" for call in calls(function) if gives(module, call)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    BASELINE.write_text(listing(WORKFLOWS))
    sys.stdout.write(f"{BASELINE.name} written\n")
