"""Nodes of a job that are asked whether they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.jobs import job_processes, node_processes
from pytest_mnode.jobs.job_processes import answering
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.nodes import Nodes, RunDescription
from tests.waiting import soon

NAMES = ("n0", "n1", "n2", "n3", "n4")
MEET = """cd "$0"; touch $1; while [ $(ls | wc -l) -lt 3 ]; do sleep 0.01; done; test $1 != n2"""


class _Lost:
    """n0 is known to be lost; n1 turns out to be when all are asked; n2 does not answer.

    argv: what others run, with their name as its last word.
    """

    def __init__(self, *argv: str) -> None:
        self.argv = argv

    lost: tuple[str, ...] = ("n0",)

    def __call__(self, request: Any) -> Any:
        if not hasattr(request, "nodes"):
            return RunDescription((), True, True, "", "", "", None)
        for name in request.nodes:
            if name in self.lost:
                raise NodeLostError(name, f"{name} is lost")
        if len(request.nodes) > 1 and "n1" not in self.lost:
            self.lost += ("n1",)
            raise NodeLostError("n1", "n1 is lost")
        return [[*self.argv, name] for name in request.nodes]


def test_nodes_are_asked_at_the_same_time(tmp_path: Path) -> None:
    """Those that are left answer once all of them are asked."""
    lost = _Lost("sh", "-c", MEET, str(tmp_path))
    assert answering(Nodes(lost, NAMES), NAMES) == {"n3", "n4"}
    assert answering(Nodes(lost, NAMES), ["n0"]) == set()


def test_nodes_that_never_answer_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_processes, "_LIMIT_S", 0.2)
    nodes = Nodes(_Lost("sh", "-c", "sleep 60"), NAMES)
    with soon():
        assert answering(nodes, ["n3"]) == set()
        why = r"n3: .* could not be read: no answer within 0\.2 s"
        with pytest.raises(ClusterError, match=why):
            job_processes.pids(nodes, ["n3"], "job", "all")


def test_processes_that_outlive_sigkill_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Here:
        """A node with a process in state D; its program runs in this process."""

        python = "python"

        def run_each(
            self, argvs: Mapping[str, Sequence[str]], *, timeout: float
        ) -> list[CommandResult]:
            [(node, (*_, what, job, _, limit_s))] = argvs.items()
            assert (what, float(limit_s) < timeout) == ("end", True)
            node_processes.end(job, node, limit_s)
            return [CommandResult(node, 0, capsys.readouterr().out, "", 0.0)]

        def commands(self, *_: object) -> None: ...

    monkeypatch.setattr(job_processes, "_END_LIMIT_S", 0.2)
    monkeypatch.setattr(node_processes, "find", lambda *_: iter([7]))
    monkeypatch.setattr(node_processes, "kill", lambda *_: True)
    assert job_processes.end(Here(), ["n1"], "job") == ({"n1": (7,)}, ["pid 7 on n1"])
