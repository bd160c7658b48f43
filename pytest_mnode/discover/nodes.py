"""Machines of a cluster's nodes, read on all nodes concurrently."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Literal

from pytest_mnode.backends import registry as backends
from pytest_mnode.criteria.preflight import survey
from pytest_mnode.errors import ClusterError, MnodeError
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.evidence.reading import CheckRows, ReadOrder
from pytest_mnode.evidence.row import Row
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.machine.encoding import decode
from pytest_mnode.machine.model import Machine
from pytest_mnode.protocol.address import towards

_LOOK_UP_LIMIT_S = 10.0
"""Time limit for looking up the names of all nodes: a name server may not answer."""
_PARTS = (
    *("interfaces", "rdma", "active_mtus", "pci", "accelerators", "numa", "shm_bytes", "mounts"),
    *("limits", "software", "kernel_log", "dmi"),
)
_EMULATED = {
    "rack": (
        "nodes are namespaces of one machine and share its kernel, cores and memory",
        "links are veth pairs shaped to their line rate at both ends (tbf)",
    ),
    "local": ("nodes are processes of one machine, which talk over its loopback",),
}
Kind = Literal["ethernet", "roce", "infiniband", "efa", "cxi"]


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node. machine: None if it could not be read, for the reason in `problem`.

    address: the address at which others reach it for control traffic. rows: of checks that draft
    their promise, by case; a check that could not be read is absent.
    """

    name: str
    address: str
    machine: Machine | None
    problem: str = ""
    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """All nodes of a cluster as read. launcher, reason: how its nodes were reached.

    emulated: facts about emulated parts, one line each. scheduler: see Backend.
    """

    nodes: tuple[FoundNode, ...]
    launcher: str
    reason: str
    made_at: str
    emulated: tuple[str, ...] = ()
    scheduler: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[FoundNode, ...]:
        """Nodes that could be read."""
        return tuple(node for node in self.nodes if node.machine is not None)

    @property
    def silent(self) -> tuple[FoundNode, ...]:
        """Nodes that could not be read."""
        return tuple(node for node in self.nodes if node.machine is None)


@dataclass(frozen=True, slots=True)
class FoundNetwork:
    """A network as one node shows it.

    interfaces: names of interfaces, or of RDMA devices. nics: number of ports that carry traffic.
    rate_mbits_s: of one NIC; None if unknown. mtu_bytes: of the interfaces, or of the RDMA ports if
    they have no interface (on InfiniBand, none with an address); None if unknown, or if they
    differ. addressed: whether they have IP addresses. why: reason why these were chosen.
    not_chosen: other interfaces and ports, with the reason.
    """

    kind: Kind
    interfaces: tuple[str, ...]
    nics: int
    rate_mbits_s: float | None
    mtu_bytes: int | None
    addressed: bool
    why: str
    not_chosen: tuple[str, ...] = ()
    gid_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks of one node; None for the reason in `no_fabric` or `no_management`."""

    fabric: FoundNetwork | None
    management: FoundNetwork | None
    no_fabric: str = ""
    no_management: str = ""


def machine_of(node: FoundNode) -> Machine:
    """The machine of a node that could be read."""
    assert node.machine is not None
    return node.machine


def read_nodes(nodes: Nodes, launcher: str, reason: str) -> FoundCluster:
    """Machines of all nodes. A node that does not answer has a `problem`, and no machine."""
    emulated = _EMULATED.get(launcher, ()) if len(nodes.nodes) > 1 else ()
    # On an emulated node, the scheduler is that of the machine that emulates it.
    parts = _PARTS if emulated else (*_PARTS, "scheduler")
    argv = [nodes.python, "-P", "-m", "pytest_mnode.machine", *parts]
    addresses = _addresses(nodes)
    off: dict[str, FoundNode] = {}
    for name in nodes.nodes:
        try:
            nodes.commands(argv, name)
        except MnodeError as error:  # no command can be run there
            off[name] = FoundNode(name, addresses.get(name, ""), None, str(error).splitlines()[0])
    able = [name for name in nodes.nodes if name not in off]
    rows = _read_checks(nodes, able)
    found = {
        result.node: node_of(result, addresses.get(result.node, ""))
        for result in nodes.run(argv, able, env=survey.search_path(nodes.python))
    }
    return FoundCluster(
        nodes=tuple(
            replace(found[name], rows=rows.get(name, {})) if name in found else off[name]
            for name in nodes.nodes
        ),
        launcher=launcher,
        reason=reason,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        emulated=emulated,
        scheduler=backends.named(launcher).scheduler(os.environ),
    )


def _read_checks(nodes: Nodes, able: Sequence[str]) -> dict[str, dict[str, tuple[Row, ...]]]:
    """Rows of checks that draft their promise, by node and case."""
    orders = [asdict(ReadOrder.of(one, None)) for one in catalogue("preflight") if one.drafts()]
    argv = [nodes.python, "-P", "-m", "pytest_mnode.evidence.reading", json.dumps(orders)]
    found: dict[str, dict[str, tuple[Row, ...]]] = {}
    for result in nodes.run(argv, able, env=survey.search_path(nodes.python)):
        line = next((one for one in result.stdout.splitlines() if one.startswith("[{")), "[]")
        with contextlib.suppress(ValueError):  # a node that died: its machine says why
            read = decode(list[CheckRows], line)
            found[result.node] = {one.case: one.rows for one in read if not one.why}
    return found


def node_of(result: CommandResult, address: str) -> FoundNode:
    """The machine that a node printed; other output of its shell is ignored."""
    line = next((one for one in result.stdout.splitlines() if one.startswith("{")), None)
    if result.returncode is None:
        problem = f"no answer within {round(result.duration_s, 1):g} s"
    elif line is None:
        errors = result.stderr.strip().splitlines()
        last = errors[-1] if errors else "no message"
        problem = f"reading it ended with status {result.returncode}: {last}"
    else:
        try:
            return FoundNode(result.node, address, decode(Machine, line))
        except ValueError as error:
            problem = f"its answer cannot be read: {' '.join(str(error).split())[:200]}"
    return FoundNode(result.node, address, None, problem)


def _addresses(nodes: Nodes) -> dict[str, str]:
    """IP addresses of the nodes by name; a node whose look-up fails or is late is absent.

    Names are looked up concurrently, by threads that are abandoned at the limit.
    """
    found: dict[str, str] = {}

    def look_up(name: str) -> None:
        if address := _address(nodes, name):
            found[name] = address

    threads = [threading.Thread(target=look_up, args=(n,), daemon=True) for n in nodes.nodes]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _LOOK_UP_LIMIT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    known = dict(found)
    own = [name for name, address in known.items() if ip_address(address).is_loopback]
    others = [address for name, address in known.items() if name not in own]
    here = ""
    with contextlib.suppress(ClusterError):
        here = towards(others[0]) if own and others else ""
    return known | dict.fromkeys(own, here) if others else known


def _address(nodes: Nodes, name: str) -> str:
    """IPv4 address of a node, else IPv6; "" if its name has neither."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return str(socket.getaddrinfo(nodes.address(name), None, family)[0][4][0])
        except (OSError, UnicodeError, MnodeError):
            continue
    return ""
