"""Commands on nodes: one that hangs affects only its own node, in any order of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import CommandResult
from tests.lone_nodes import LoneNodes

LIMIT_S = 3.0
PIPE_BYTES = 1 << 16
DOES = {
    "hangs": "echo $$ > pid.new; mv pid.new pid; echo on; exec sleep 60",
    "prints": f"head -c {4 * PIPE_BYTES} /dev/zero | tr '\\0' x; echo err >&2; exit 3",
    "leaves": "sleep 60 & echo $! > left; echo done",
    "quick": "echo done",
}
"""The script of each node; the first one hangs."""
ENDS = {
    "hangs": (None, "on\n", ""),
    "prints": (3, "x" * 4 * PIPE_BYTES, "err\n"),
    "leaves": (0, "done\n", ""),
    "quick": (0, "done\n", ""),
}


class Here(LoneNodes):
    """Nodes that are this machine; each runs its own script, or the command given."""

    def __init__(self, directory: Path) -> None:
        super().__init__(tuple(DOES))
        self.directory = directory

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]:
        return [
            ["sh", "-c", f"cd {self.directory}; {DOES[name]}"] if argv == ["script"] else list(argv)
            for name in self._names(nodes)
        ]

    @property
    def run_id(self) -> str:
        return str(self.directory)


@pytest.fixture
def nodes(tmp_path: Path) -> Here:
    return Here(tmp_path)


@pytest.mark.parametrize(
    "run",
    [
        lambda nodes: nodes.run(["script"], timeout=LIMIT_S),
        lambda nodes: nodes.run_each({name: ["script"] for name in DOES}, timeout=LIMIT_S),
    ],
    ids=["run", "run_each"],
)
def test_a_node_that_hangs_does_not_affect_the_others(
    nodes: Here, run: Callable[[Here], list[CommandResult]]
) -> None:
    results = run(nodes)
    assert {r.node: (r.returncode, r.stdout, r.stderr) for r in results} == ENDS
    assert all((r.duration_s >= LIMIT_S) == (r.node == "hangs") for r in results)
    assert not psutil.pid_exists(int((nodes.directory / "pid").read_text()))
    left = psutil.Process(int((nodes.directory / "left").read_text()))
    left.kill()
    assert {path.name for path in nodes.directory.iterdir()} == {"pid", "left"}


def test_a_command_that_cannot_be_started_raises(nodes: Here) -> None:
    why = "^quick: cannot start /no/such/program on this machine: No such file or directory$"
    with pytest.raises(ClusterError, match=why):
        nodes.run(["/no/such/program"], "quick")
