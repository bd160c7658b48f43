"""Finds, signals and ends the processes of a job on its nodes.

Each function runs one short program on all nodes at once (`node_processes`); most of its time is
the start of Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.jobs import node_processes
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.processes import last_line

_LIMIT_S = 20.0
_END_LIMIT_S = 10.0


class Places(Protocol):
    """The places of a job's processes: the run's nodes, or the job's own pods on them."""

    @property
    def python(self) -> str:
        """The Python that runs this package's programs there."""

    def run_each(
        self, argvs: Mapping[str, Sequence[str]], *, timeout: float
    ) -> list[CommandResult]:
        """See Nodes; places where no process of the job can exist any more are left out."""

    def commands(self, argv: Sequence[str], nodes: str, /) -> object:
        """Raises NodeLostError if no command can be run."""


def pids(nodes: Places, on: Sequence[str], job: str, wanted: str) -> dict[str, tuple[int, ...]]:
    """Pids by node. wanted: a rank's number, "torchrun", or "all". Raises ClusterError."""
    found = _run(nodes, {name: ["pids", job, name, wanted] for name in on})
    return {name: tuple(map(int, text.split())) for name, text in found.items()}


def signal(
    nodes: Places, on: Sequence[str], job: str, wanted: str, number: int
) -> dict[str, tuple[tuple[int, float], ...]]:
    """(pid, node's wall clock just before the signal) of each signalled process, by node."""
    found = _run(nodes, {name: ["signal", job, name, wanted, str(number)] for name in on})
    lines = {name: [line.split() for line in text.splitlines()] for name, text in found.items()}
    return {name: tuple((int(pid), float(at)) for pid, at in some) for name, some in lines.items()}


def end(nodes: Places, on: Sequence[str], job: str) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """SIGKILL all of a job's processes until none is found, for 10 s at most.

    Returns killed pids by node, and processes still there, as "pid 7 on node1". Raises ClusterError
    if a node does not answer.
    """
    killed, left = {}, []
    found = _run(nodes, {name: ["end", job, name, str(_END_LIMIT_S)] for name in on})
    for name, text in found.items():
        words = {first: rest for first, *rest in map(str.split, text.splitlines())}
        killed[name] = tuple(map(int, words["killed"]))
        left += [f"pid {pid} on {name}" for pid in words["left"]]
    return killed, left


def alive(nodes: Places, known: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, set[int]]:
    """Pids that still run, by node. known: (pid, a time it ran at) by node.

    Raises ClusterError if a node does not answer.
    """
    argvs = {
        node: ["alive", *(f"{pid}:{ran_at}" for pid, ran_at in some)]
        for node, some in known.items()
    }
    return {node: set(map(int, text.split())) for node, text in _run(nodes, argvs).items()}


def living(nodes: Places, names: Iterable[str]) -> list[str]:
    """Nodes of `names` that the launcher does not report as lost."""
    there = []
    for name in names:
        with contextlib.suppress(NodeLostError):
            nodes.commands(["true"], name)
            there.append(name)
    return there


def answering(nodes: Nodes, names: Iterable[str]) -> set[str]:
    """Nodes of `names` that run a command within 20 s, all asked at the same time."""
    left = living(nodes, names)
    while left:
        try:
            results = nodes.run(["true"], left, timeout=_LIMIT_S)
        except NodeLostError:  # since it was called living
            left = living(nodes, left)
        else:
            return {result.node for result in results if result.ok}
    return set()


def _run(nodes: Places, words: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Run the program on nodes at the same time, each with its own arguments; output by node."""
    code = Path(node_processes.__file__).read_text()
    argvs = {name: [nodes.python, "-S", "-c", code, *some] for name, some in words.items()}
    found = {}
    for result in nodes.run_each(argvs, timeout=_LIMIT_S):
        if not result.ok:
            how = f"status {result.returncode}"
            if result.returncode is None:
                how = f"no answer within {_LIMIT_S:g} s"
            why = last_line(result.stderr) or how
            raise ClusterError(f"{result.node}: its processes could not be read: {why}")
        found[result.node] = result.stdout
    return found
