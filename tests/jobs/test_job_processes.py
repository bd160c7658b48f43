"""Nodes of a job that are asked whether they are there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.jobs import job_processes, node_processes
from pytest_mnode.jobs.job_processes import answering
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.nodes import Nodes, RunDescription

NAMES = ("n0", "n1", "n2", "n3", "n4")
ASKED_S = 0.5


class _Lost:
    """n0 is known to be lost; n1 turns out to be when all are asked; n2 does not answer."""

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
        return [["sh", "-c", f"sleep {ASKED_S}; test {name} != n2"] for name in request.nodes]


def test_nodes_are_asked_at_the_same_time() -> None:
    began = time.monotonic()
    assert answering(Nodes(_Lost(), NAMES), NAMES) == {"n3", "n4"}
    assert time.monotonic() - began < 3 * ASKED_S
    assert answering(Nodes(_Lost(), NAMES), ["n0"]) == set()


def test_nodes_that_never_answer_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_processes, "_LIMIT_S", 0.2)
    monkeypatch.setattr(f"{__name__}.ASKED_S", 60.0)
    nodes = Nodes(_Lost(), NAMES)
    began = time.monotonic()
    assert answering(nodes, ["n3"]) == set()
    with pytest.raises(ClusterError, match=r"n3: .* could not be read: no answer within 0\.2 s"):
        job_processes.pids(nodes, ["n3"], "job", "all")
    assert time.monotonic() - began < 20.0


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
