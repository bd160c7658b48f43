"""Faults of name look-up on one node."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.faults.acting import all_undone, inside, on_node, undone_once
from pytest_mnode.faults.registry import Undo, fault, whole, word
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.launchers.rack.plan import MAX_NODES

NOBODY = "127.0.1.1"
"""What a hosts file often says of the machine's own name."""


@fault(word("OTHER", "the node after it", "the name of a node"))
def wrong_hosts(rack: Rack, node: Node, other_name: str | None) -> Undo:
    """A node's /etc/hosts gives another node's name its own addresses.

    Where OTHER is the node itself: a loopback address, as many installers write it.
    """
    following = rack.nodes[(node.index + 1) % len(rack.nodes)]
    other = next((n for n in rack.nodes if n.name == (other_name or following.name)), None)
    if other is None:
        there = f"{rack.nodes[0].name} to {rack.nodes[-1].name}"
        raise UsageError(f"no node {other_name!r}; accepted: {there}")
    lines = on_node(rack, node, ["cat", "/etc/hosts"]).splitlines(keepends=True)
    return _edited(rack, node, "/etc/hosts", "".join(_misled(line, node, other) for line in lines))


def _misled(line: str, node: Node, other: Node) -> str:
    address, *names = line.split() or [""]
    plain = address.removeprefix("::ffff:")
    if not {other.name, f"{other.name}-fab"} & set(names) or plain == address[:0]:
        return line
    wrong = NOBODY if node == other else node.fabric_address
    if plain == other.address and node != other:
        wrong = node.address
    return line.replace(plain, wrong or NOBODY, 1)


@fault(whole("SECONDS", "2", most=30))
def slow_names(rack: Rack, node: Node, seconds: int | None) -> Undo:
    """A node asks a dead name server first, so that every look-up takes seconds, both ways."""
    nobody = rack.plan.address(MAX_NODES - 1, rack.plan.management.name)
    if len(rack.nodes) == MAX_NODES:
        raise UsageError(f"no address is left for a dead name server with {MAX_NODES} nodes")
    for path in ("/etc/resolv.conf", "/etc/nsswitch.conf"):
        if not Path(path).exists():
            raise UsageError(f"this machine has no {path} to change")
    inside(rack, node, "neighbour", nobody, rack.plan.management.name)
    limits = f"options timeout:{seconds or 2} attempts:1"
    switch = on_node(rack, node, ["cat", "/etc/nsswitch.conf"])
    asked_first = re.sub(r"(?m)^hosts:.*$", "hosts: dns files", switch)
    server = _edited(rack, node, "/etc/resolv.conf", f"nameserver {nobody}\n{limits}\n")
    return all_undone([server, _edited(rack, node, "/etc/nsswitch.conf", asked_first)])


def _edited(rack: Rack, node: Node, path: str, text: str) -> Undo:
    """Overwrite a file that every node has of its own."""
    before = on_node(rack, node, ["cat", path])
    inside(rack, node, "edit", path, data=text.encode())
    return undone_once(rack, lambda: _write_back(rack, node, path, before), node)


def _write_back(rack: Rack, node: Node, path: str, text: str) -> None:
    inside(rack, node, "edit", path, data=text.encode())
