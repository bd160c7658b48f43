"""The steps of clean-up, each with a test that fails without it: `cleanup_steps.txt`.

`python -m tests.cleanup_steps [TEXT…]` shows that: for each step (whose line contains a TEXT) it
takes the step out of a copy of this repository, runs the test there, and prints whether it failed.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest_mnode
from pytest_mnode import processes

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pytest_mnode.__file__).parent
TABLE = Path(__file__).with_suffix(".txt")
KINDS = {
    *("process", "cgroup", "namespace", "mount", "file", "port", "pod", "job", "allocation"),
    *("key", "link", "node", "limit", "signal"),
}
EXCEPTIONS = {
    ("agent/fork_server.py:_end_as", "os.kill"): "ends itself, to report a signal",
    ("agent/rank_stacks.py:_python_stacks", "processes.kill"): "asks for stacks",
    ("agent/rank_stacks.py:_stacks_of_children", "processes.kill"): "asks for stacks",
    ("agent/terminal.py:Terminal.type", "processes.kill"): "a Ctrl-C that the user typed",
    ("criteria/restart/kill_run.py:KillRun._kill", "job.kill"): "the experiment",
    ("criteria/restart/warm_runs.py:train", "os.kill"): "the experiment",
    ("criteria/workload.py:_run.kill_once", "running.kill"): "the experiment",
    ("faults/processes.py:_signal", "os.kill"): "stops and continues processes",
    ("jobs/observer.py:_Notes.end_trace", "path.unlink"): "the folder of notes goes as a whole",
    ("jobs/node_processes.py:send_signal", "kill"): "signals of the user's test",
    ("jobs/slurm/submitted.py:SubmittedJob.preempt", "self._queued.slurm.run"): "a preemption",
    ("launchers/cleanup/queue_cleanup.py:main", "ctypes.CDLL(None).prctl"): "its name",
    ("launchers/remote/remote_exec.py:adopt_orphans", "ctypes.CDLL(None).prctl#2"): "its name",
    ("launchers/remote/remote_exec.py:keep", "adopt_orphans"): "one step with its prctl",
    ("launchers/remote/remote_exec.py:main", "adopt_orphans"): "each command's keeper does it too",
    ("launchers/dial_in/node.py:main", "remote_exec.adopt_orphans"): "as in remote_exec.main",
    (
        "launchers/rack/probe.py:_try_inside",
        "namespaces.die_with_parent",
    ): "its parent waits for it",
    (
        "launchers/remote/stdio_bridge.py:StdioBridge.end",
        "end_programs",
    ): "reaps what os.killpg has killed",
    (
        "launchers/dial_in/bridge.py:DialBridge.open",
        "self.programs[number].terminate",
    ): "the end of the bridge ends it too",
    ("measuring/port_meanwhile.py:main", "ctypes.CDLL(None).prctl"): "its name",
    (
        "measuring/tools/beside_nic.py:_watched",
        "end_programs",
    ): "its process ends next, and with it the program: die_with_parent",
    ("processes.py:set_name", "_libc.prctl"): "its name",
    ("contrib/coverage.py:RankCoverage.take", "path.unlink"): "its files go with the run",
    (
        "contrib/test_classes.py:Suites._have_child.run",
        "processes.die_with_parent",
    ): "the elastic launcher adopts and ends it; only the kill of both at once would show it",
}
"""Calls that look like steps of clean-up and are not, or that another step makes good; and why."""
_COPIED = ("pytest_mnode", "tests", "acceptance", "fixtures", "conftest.py", "pyproject.toml")
_LIMIT_S = 240.0
_MARK = "CLEANUP_STEP"


@dataclass(frozen=True, slots=True)
class Step:
    """A call that ends or removes something.

    kind: of what it ends. where: file and function, such as rack/cgroups.py:remove. call: what is
    called, and which call if the function has several, such as shutil.rmtree#2. test: the test that
    fails without the call, below tests/.
    """

    kind: str
    where: str
    call: str
    test: str

    @property
    def place(self) -> tuple[str, str]:
        return self.where, self.call


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the package: where it is, what is called, and its number of this name there."""

    where: str
    name: str
    number: int
    node: ast.Call
    is_context: bool

    @property
    def place(self) -> tuple[str, str]:
        return self.where, self.name if self.number == 1 else f"{self.name}#{self.number}"


def steps() -> list[Step]:
    """The rows of the table."""
    lines = [line.split() for line in TABLE.read_text().splitlines()]
    return [Step(*words) for words in lines if words and words[0] != "#"]


def calls(path: Path) -> list[Call]:
    """All calls in functions of a file of the package, in the order of its lines."""
    file, found = path.relative_to(PACKAGE), list[Call]()
    counted: dict[tuple[str, str], int] = {}

    def below(node: ast.AST, names: tuple[str, ...], context: bool) -> None:
        if isinstance(node, ast.Call):
            where = f"{file}:{'.'.join(names)}"
            name = _named(node.func)
            counted[where, name] = counted.get((where, name), 0) + 1
            found.append(Call(where, name, counted[where, name], node, context))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = (*names, node.name)
        for child in ast.iter_child_nodes(node):
            below(child, names, isinstance(node, ast.withitem))

    below(ast.parse(path.read_text()), (), False)
    return found


def _named(what: ast.expr) -> str:
    """Its text; ast.unparse alone would take seconds for all calls of the package."""
    if isinstance(what, ast.Attribute):
        return f"{_named(what.value)}.{what.attr}"
    return what.id if isinstance(what, ast.Name) else ast.unparse(what)


def without(step: Step) -> str:
    """The text of the step's file without the step."""
    path = PACKAGE / step.where.partition(":")[0]
    [call] = [one for one in calls(path) if one.place == step.place]
    lines = path.read_bytes().splitlines(keepends=True)
    node = call.node
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    instead = "None"
    if call.is_context:  # a directory that stays
        made = ast.unparse(node).replace(call.name, "__import__('tempfile').mkdtemp", 1)
        instead = f"__import__('contextlib').nullcontext({made})"
    return (before + instead.encode() + after).decode()


def survives(step: Step, copy: Path) -> str:
    """Why the step's test does not show that the step is there; "" if it fails without it."""
    changed = copy / PACKAGE.name / step.where.partition(":")[0]
    before, mark = changed.read_text(), uuid.uuid4().hex
    temporary = Path(tempfile.mkdtemp(prefix="step-"))
    changed.write_text(without(step))
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{step.test}"]
    env = {**os.environ, "PYTHONPATH": str(copy), "TMPDIR": str(temporary), _MARK: mark, "CI": ""}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=copy,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    finally:
        changed.write_text(before)
        processes.end_started_with(_MARK, mark, grace_s=0.0)
        shutil.rmtree(temporary, ignore_errors=True)
    if done.returncode == 1:
        return ""
    return f"status {done.returncode}: {done.stdout.strip().splitlines()[-1:]}"


def main(texts: Sequence[str]) -> int:
    chosen = [one for one in steps() if not texts or any(text in str(one) for text in texts)]
    alive = 0
    with tempfile.TemporaryDirectory(prefix="steps-") as made:
        for name in _COPIED:
            source, target = ROOT / name, Path(made, name)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        for step in chosen:
            began = time.monotonic()
            why = survives(step, Path(made))
            alive += bool(why)
            took_s = time.monotonic() - began
            print(f"{'SURVIVES' if why else 'fails'} {took_s:4.0f} s {step} {why}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} tests fail without their step")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
