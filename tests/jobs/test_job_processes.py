"""Nodes of a job that are asked whether they are there."""

from __future__ import annotations

import time
from typing import Any

from pytest_mnode.errors import NodeLostError
from pytest_mnode.jobs.job_processes import answering
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
