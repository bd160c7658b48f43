"""What a node is, and what a launcher can do with nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_mnode.errors import ClusterError
from pytest_mnode.machine.sysfs import AS_IT_IS, SysfsView


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: something a command can be run on.

    name: host name, as the node itself reports it.
    index: 0 … N-1, the order in which worlds are filled.
    address: where other nodes reach it for control traffic (MASTER_ADDR).
    fabric_address: its address on the training fabric; None where not known.
    fabric_interface: what collectives should use (GLOO_SOCKET_IFNAME …); None: backend's choice.
    shown: where it shows its sockets and devices.
    """

    name: str
    index: int
    address: str
    fabric_address: str | None = None
    fabric_interface: str | None = None
    shown: SysfsView = AS_IT_IS


def count(number: int, noun: str = "node") -> str:
    """ "1 node", "4 nodes"."""
    return f"{number} {noun}{'s' * (number != 1)}"


CALLS = {
    "commands": "run commands on nodes",
    "power_off": "switch nodes off",
    "power_on": "switch nodes on",
    "rates_of": "say how fast a node's link is",
    "set_rate": "change the rate of a node's link",
    "set_pair_rate": "limit the rate between two nodes",
    "set_link": "switch a node's link up or down",
    "set_presence": "take a node's link away or give it back",
    "slurm_names": "say what Slurm calls a node",
}
"""What methods of launchers do, in words that follow "cannot"."""


def lacks(launcher: str, method: str) -> ClusterError:
    """The error for a launcher without this method."""
    what = CALLS.get(method, f"do what is asked of it ({method})")
    other = "slurm" if method == "slurm_names" else "rack"
    return ClusterError(
        f"the {launcher} launcher cannot {what}; use --mnode-launcher={other}, which can"
    )


class Launcher(Protocol):
    """Knows which local commands start one command on given nodes.

    Its methods may be called from any thread, and several at a time.
    """

    name: str
    """"local", "rack", …"""
    nodes: Sequence[Node]
    """Known after `start`."""
    shared_kernel: bool
    """All nodes are on this kernel, so one agent program can serve them all."""
    python: str
    """The Python that runs our programs on nodes."""
    shared_dir: Path | None
    """A directory that all nodes and this machine see, known after `start`; None where there is
    none. Where the kernel is shared every directory is, and this is not asked."""

    def start(self) -> None:
        """Bring the nodes up. Raises ClusterError that names what is missing."""

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """Local commands, one a node, that together run `argv` once on every node.

        Raises NodeLostError where one is off.

        The command keeps the caller's environment, working directory and standard streams, and
        ends with the exit status of `argv` (128 + signal where a signal ended it).
        """

    def agent_command(self, argv: Sequence[str]) -> list[str]:
        """The local command for the one agent program that serves all nodes (shared kernel)."""

    def doorway(self, node: Node) -> int | None:
        """Pid, as the agent program sees it, whose namespaces are the node; None: none to enter.

        Changes when the node is booted again. Raises NodeLostError where the node is off.
        """

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """Call `on_lost(node name, reason)` from any thread when a node is gone."""

    def close(self) -> None:
        """Take everything down; idempotent; bounded in time."""


class PowerSwitch(Protocol):
    """What launchers offer that can switch nodes off and on; it may take minutes."""

    def power_off(self, node: Node) -> None:
        """As a pulled plug: everything on the node is gone at once."""

    def power_on(self, node: Node) -> None:
        """Boot it again, with the same name, addresses and links."""
