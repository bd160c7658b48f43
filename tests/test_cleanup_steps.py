"""Every step of clean-up is in one table, with a test that fails without it."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from tests.cleanup_steps import EXCEPTIONS, KINDS, PACKAGE, ROOT, Call, calls, steps

ENDING = {
    *("kill", "killpg", "terminate", "send_signal", "pidfd_send_signal"),
    *("kill_descendants", "end_started_with", "end_programs"),
    *("die_with_parent", "adopt_orphans", "prctl"),
    *("unlink", "rmtree", "rmdir", "cleanup", "umount", "umount2", "unmount"),
    *("delete_key", "remove_all"),
}
"""Functions that end or remove something, or have the kernel do it."""
WORDS = {"DELETE", "delete", "del", "scancel"}
"""Arguments of requests and commands that do."""


def ends(call: Call) -> bool:
    """Whether a call ends or removes something, as far as its text shows."""
    last = call.name.rpartition(".")[2]
    given = [one for arg in call.node.args for one in getattr(arg, "elts", [arg])]
    words = {one.value for one in given if isinstance(one, ast.Constant)}
    in_with = call.is_context and last in ("TemporaryDirectory", "NamedTemporaryFile")
    return last in ENDING or in_with or bool(words & WORDS)


@cache
def found() -> dict[tuple[str, str], Call]:
    """All calls of the package by their places."""
    return {call.place: call for path in PACKAGE.rglob("*.py") for call in calls(path)}


def test_each_call_that_ends_something_is_in_the_table() -> None:
    listed = {step.place for step in steps()} | EXCEPTIONS.keys()
    missing = [f"{where} {name}" for (where, name), call in found().items()
               if ends(call) and (where, name) not in listed]  # fmt: skip
    assert not missing, f"add to cleanup_steps.txt, with a test: {missing}"


def test_each_step_is_listed_once_and_is_there() -> None:
    places = Counter(step.place for step in steps())
    places.update(EXCEPTIONS.keys())
    assert [place for place, count in places.items() if count > 1] == []
    assert [place for place in places if place not in found()] == []
    assert {step.kind for step in steps()} <= KINDS
    assert all(EXCEPTIONS.values())


@cache
def defined_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text()) if file.exists() else ast.parse("")
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_test_of_each_step_is_there() -> None:
    missing = []
    for test in sorted({step.test for step in steps()}):
        file, *_, name = test.split("::")
        if not name.startswith("test_") or name not in defined_in(ROOT / "tests" / file):
            missing.append(test)
    assert missing == []
