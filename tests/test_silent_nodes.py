"""Nodes on which no command ever ends: each is given up at its limit, and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.port_counters import watching
from pytest_mnode.criteria.restart import run_files
from pytest_mnode.discover import nodes as discovered
from pytest_mnode.errors import MnodeError
from pytest_mnode.faults import tools as fault_tools
from pytest_mnode.launchers import power
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.nodes import Nodes, RunDescription
from pytest_mnode.limits import Limits
from pytest_mnode.measuring import tools
from pytest_mnode.measuring.tools import perftest
from pytest_mnode.protocol.launcher_requests import DescribeRun
from pytest_mnode.spec import profile_spec
from tests.waiting import soon

SLEEP = ["sleep", "60"]
NODE = Node("n1", 0, "127.0.0.1")


def silent(request: Any) -> Any:
    """A launcher's answers; any command on its node sleeps."""
    if isinstance(request, DescribeRun):
        return RunDescription((NODE,), True, True, "", "", "python", None, limits=Limits(0.0, 0.2))
    return [SLEEP for _ in request.nodes]


class Asleep(Launcher):
    name = "ssh"
    shared_kernel = False
    nodes = (NODE,)

    def commands(self, nodes: Any, argv: Any) -> list[list[str]]:
        return [SLEEP]


NODES: Any = Nodes(silent, ("n1",))
RACK: Any = SimpleNamespace(agent_command=lambda _: SLEEP)
# None: the limit of the nodes themselves holds.
CASES: dict[str, tuple[ModuleType | None, str, Callable[[Path], object], str]] = {
    "counters": (
        *(None, ""),
        lambda _: watching.read_ports(NODES, profile_spec("rack").fabric),
        "{'n1': 'its counters were not read within 0.2 s'}",
    ),
    "discovery": (
        *(None, ""),
        lambda _: discovered.read_nodes(NODES, "ssh", "").nodes[0].problem,
        "no answer within 0.2 s",
    ),
    "records of a run": (
        *(None, "", lambda path: run_files.read_history(NODES, "n1", "/", path)),
        "n1: no answer",
    ),
    "checkpoints of a run": (
        *(None, "", lambda _: run_files.list_store(NODES, "n1", "/")),
        "None",
    ),
    "step of a run": (
        *(run_files, "_SPARE_S"),
        lambda _: run_files.await_steps(
            *(NODES, "n1", "/"), ranks=1, step=1, limit_s=0.2, over=bool
        ),
        "None",
    ),
    "program": (
        *(None, "", lambda _: tools.missing_on(NODES, "ib_write_bw")),
        "('n1',)",
    ),
    "RDMA devices": (
        *(None, "", lambda _: perftest.devices_of(NODES)),
        "{'n1': ()}",
    ),
    "fault": (
        *(fault_tools, "LIMIT_S", lambda _: fault_tools.on_switch(RACK, ["tc"], 0.2)),
        "switch: tc took more than 0.2 s",
    ),
    "recovery": (
        *(power, "ANSWER_S", lambda _: power.runs_commands(Asleep(), NODE, 0.2)),
        "False",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_a_node_that_never_answers(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, limit, call, outcome = CASES[what]
    if module is not None:
        monkeypatch.setattr(module, limit, 0.2)
    with soon():
        try:
            found = call(tmp_path)
        except MnodeError as error:
            found = error
    assert outcome in str(found)
