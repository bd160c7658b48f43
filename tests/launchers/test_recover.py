"""A node that is lost is switched on again, unless it runs commands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.power import recover
from pytest_mnode.protocol.launcher_requests import LauncherRequest, PowerOn

NODE = Node("n1", 0, "10.0.0.1")


class Switchless(Local):
    """A launcher that knows its node to be there, or (no command) to be gone."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(1)
        self.name = "made"
        self.command = list(command)

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        if not self.command:
            raise NodeLostError("n1", "n1 is not there: powered off")
        return [self.command]


class Switched(Switchless):
    """One that can boot it."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self.switched: list[str] = []

    def ask(self, request: LauncherRequest) -> None:
        assert isinstance(request, PowerOn)
        self.switched.append(request.node)


def test_a_node_that_runs_commands_is_on() -> None:
    launcher = Switched(["true"])
    recover(launcher, NODE)
    assert launcher.switched == []


@pytest.mark.parametrize(
    "command",
    [[], ["sleep", "60"], ["false"], ["/no/such/program"]],
    ids=["known to be gone", "silent", "refused", "no way there"],
)
def test_a_node_that_runs_none_is_switched_on(command: list[str]) -> None:
    """Whatever the launcher still takes it for: Slurm, for minutes, for a node that is there."""
    launcher = Switched(command)
    recover(launcher, NODE, 0.3)
    assert launcher.switched == ["n1"]


def test_a_launcher_that_has_no_switch() -> None:
    recover(Switchless(["true"]), NODE)
    with pytest.raises(ClusterError, match=r"^the made launcher cannot switch nodes on; use"):
        recover(Switchless(["false"]), NODE)
