"""What fails in one place is an answer there, and ends nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.certificate.files import parse_certificate
from pytest_mnode.criteria.launching.reports import read_nodes
from pytest_mnode.criteria.restart import run_files, warm_runs
from pytest_mnode.errors import NodeLostError, RankError, UsageError
from pytest_mnode.faults.tools import undone_once
from pytest_mnode.machine import sysfs

DEEP = '{"a":' * 100_000
"""JSON that Python's reader gives up with RecursionError, not ValueError."""


class Failing:
    """A cluster whose ranks fail with this text, and on whose nodes nothing is printed."""

    python = "python"

    def __init__(self, text: str = "") -> None:
        self.text, self.closed = text, False

    def world(self, *_: object) -> Failing:
        return self

    def run(self, *_: object, **__: object) -> list[Any]:
        if self.text:
            raise RankError(self.text)
        return [SimpleNamespace(ok=False, stdout="", stderr="no python")]

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CONFIG: Any = None


def killed(text: str) -> bool:
    """Whether the ranks are gone after the kill of a run."""
    cluster: Any = Failing(text)
    try:
        warm_runs.killed_after(cluster, CONFIG, ["n0"], 1, 4)
    finally:
        assert cluster.closed
    return bool(cluster.closed)


def finished(text: str) -> str:
    cluster: Any = Failing(text)
    return str(warm_runs.finished(cluster, CONFIG, ["n0"], 1))


def listed() -> object:
    cluster: Any = Failing()
    return run_files.list_store(cluster, "n0", "/run")


def undone(*pids: int | NodeLostError) -> int:
    """How often a change inside a node is undone by two calls. pids: its namespaces, by time."""
    left, count = list(pids), [0]

    def namespace_pid(_: object) -> int:
        found = left.pop(0)
        if isinstance(found, NodeLostError):
            raise found
        return found

    rack: Any = SimpleNamespace(daemon_pid=1, namespace_pid=namespace_pid)
    node: Any = "n0"

    def undo() -> None:
        count[0] += 1

    once = undone_once(rack, undo, node)
    once()
    once()
    return count[0]


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda: killed("rank 0 on n0 was killed by SIGKILL"), True),
        (lambda: killed("rank 0 on n0 is out of memory"), RankError),
        (lambda: finished("rank 0 on n0 has no shard"), "rank 0 on n0 has no shard"),
        (listed, None),
        (lambda: undone(7, 7), 1),
        (lambda: undone(7, 8), 0),
        (lambda: undone(7, NodeLostError("n0", "off")), 0),
        (lambda: parse_certificate(DEEP, "c.json"), UsageError),
        (lambda: parse_certificate("{", "c.json"), UsageError),
        (lambda: read_nodes({"n0": DEEP})[0], ()),
        (lambda: read_nodes({"n0": "{"})[0], ()),
        (lambda: sysfs.text(Path("/proc/no such file")), None),
        (lambda: sysfs.text(Path("/proc/\0")), None),
        (lambda: sysfs.text(Path("/proc")), None),
    ],
)
def test_an_error_is_an_answer(ask: Callable[[], object], answer: object) -> None:
    if isinstance(answer, type) and issubclass(answer, Exception):
        with pytest.raises(answer):
            ask()
    else:
        assert ask() == answer
