"""The processes of a job on a node: found by the job's mark in their environment, signalled, ended.

Each function is one short command there, of which Python's start is the longest part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError, NodeLostError

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import CommandResult, Nodes

# Ranks of a job by what torchrun told them; a child that a rank started has a parent with RANK.
_FIND = r"""
import os, signal, sys, time
job, node, wanted = sys.argv[1:4]
def env(pid):
    try:
        pairs = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
    except OSError:
        return {}
    return dict(p.decode(errors="replace").partition("=")[::2] for p in pairs if p)
def parent(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
    except OSError:
        return "0"
def find():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        e = env(pid)
        if e.get("MNODE_JOB") != job or int(pid) == os.getpid():
            continue
        if e.get("MNODE_JOB_NODE", node) != node:
            continue
        above = {} if wanted == "all" else env(parent(pid))
        if wanted == "all":
            yield int(pid)
        elif wanted == "torchrun":
            if "RANK" not in e and above.get("MNODE_JOB") != job:
                yield int(pid)
        elif e.get("RANK") == wanted and "RANK" not in above:
            yield int(pid)
"""
_PIDS = _FIND + "print(*find())"
_SIGNAL = (
    _FIND
    + """
for pid in list(find()):
    try:
        at = time.time()
        os.kill(pid, int(sys.argv[4]))
        print(pid, at)
    except ProcessLookupError:
        pass
"""
)
# What is started while we look is found in the next round; a corpse has no environment.
_END = (
    _FIND
    + """
limit = time.monotonic() + float(sys.argv[4])
killed, left = set(), set(find())
while left and time.monotonic() < limit:
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    killed |= left
    time.sleep(0.02)
    left = set(find())
print("killed", *sorted(killed))
print("left", *sorted(left))
"""
)
_ALIVE = r"""
import os, sys
def letter(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
def started(pid):
    with open("/proc/stat") as f:
        boot = next(int(l.split()[1]) for l in f if l.startswith("btime"))
    with open(f"/proc/{pid}/stat") as f:
        return boot + int(f.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
for word in sys.argv[1:]:
    pid, _, before = word.partition(":")
    try:
        if letter(pid) not in "XZ" and started(pid) <= float(before) + 1.0:
            print(pid)
    except OSError:
        pass
"""
_LIMIT_S = 20.0
_END_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """What was killed on a node, and what could not be: pids as the node sees them."""

    killed: tuple[int, ...]
    left: tuple[int, ...]


def pids(nodes: Nodes, on: Sequence[str], job: str, wanted: str) -> dict[str, tuple[int, ...]]:
    """Pids by node. wanted: a rank's number, "torchrun", or "all". Raises ClusterError."""
    found = _run(nodes, on, _PIDS, job, wanted)
    return {r.node: tuple(int(word) for word in r.stdout.split()) for r in found}


def signal(
    nodes: Nodes, on: Sequence[str], job: str, wanted: str, number: int
) -> dict[str, tuple[tuple[int, float], ...]]:
    """(pid, wall clock of the node right before) of each process signalled, by node."""
    found = _run(nodes, on, _SIGNAL, job, wanted, str(number))
    out = {}
    for result in found:
        lines = [line.split() for line in result.stdout.splitlines()]
        out[result.node] = tuple((int(pid), float(at)) for pid, at in lines)
    return out


def end(nodes: Nodes, on: Sequence[str], job: str) -> dict[str, Ended]:
    """SIGKILL all of a job's processes until none is found, by node. Raises ClusterError."""
    out = {}
    for result in _run(nodes, on, _END, job, "all", str(_END_LIMIT_S)):
        words = {w[0]: tuple(map(int, w[1:])) for w in map(str.split, result.stdout.splitlines())}
        out[result.node] = Ended(words["killed"], words["left"])
    return out


def alive(nodes: Nodes, known: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, set[int]]:
    """Which processes still run, by node; each is known by its pid and a time it ran at.

    A process that started later than that time is another one that was given the same pid.
    Raises ClusterError where a node does not answer.
    """
    argvs = {
        node: [nodes.python, "-S", "-c", _ALIVE, *(f"{pid}:{before}" for pid, before in processes)]
        for node, processes in known.items()
    }
    found = nodes.run_each(argvs, timeout=_LIMIT_S)
    return {result.node: set(map(int, _answered(result).stdout.split())) for result in found}


def living(nodes: Nodes, names: Iterable[str]) -> list[str]:
    """Those of these nodes that the launcher does not know to be gone."""
    there = []
    for name in names:
        with contextlib.suppress(NodeLostError):
            nodes.commands(["true"], name)
            there.append(name)
    return there


def is_there(nodes: Nodes, node: str) -> bool:
    """Whether commands run on a node."""
    try:
        [result] = nodes.run(["true"], node, timeout=_LIMIT_S)
    except NodeLostError:
        return False
    return result.ok


def _run(
    nodes: Nodes, on: Sequence[str], code: str, job: str, wanted: str, *more: str
) -> list[CommandResult]:
    """The code on nodes at the same time, each told its own name."""
    python = [nodes.python, "-S", "-c", code]
    argvs = {name: [*python, job, name, wanted, *more] for name in on}
    return [_answered(result) for result in nodes.run_each(argvs, timeout=_LIMIT_S)]


def _answered(result: CommandResult) -> CommandResult:
    if not result.ok:
        how = f"status {result.returncode}"
        if result.returncode is None:
            how = f"no answer within {_LIMIT_S:g} s"
        why = result.stderr.strip().splitlines() or [how]
        raise ClusterError(f"{result.node}: its processes could not be read: {why[-1]}")
    return result
