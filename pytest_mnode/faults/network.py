"""Faults of links and paths, made at the switch: nodes see only the symptom."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.faults.registry import Schedule, Undo, fault, number, size, whole, word
from pytest_mnode.faults.tools import (
    IP,
    NFT,
    all_undone,
    at_switch,
    inside,
    on_node,
    on_switch,
    running,
    scheduled,
    undone_inside,
    undone_once,
)
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.launchers.rack.wiring import QUEUE_S, burst_bytes
from pytest_mnode.protocol.launcher_requests import (
    SetLinkPresent,
    SetLinkRate,
    SetLinkUp,
    SetPairRate,
)

RELAY = str(Path(__file__).with_name("relay.py"))
FLAP_EVERY_S, FLAP_S = 5.0, 0.2
CORRUPT_BYTES = 256 << 10
SLOW = 0.25
"""Default rate of a slow link, as a share of its full rate."""

LINK = word("LINK", "the fabric", "the name of a link", str.isalnum)
RATE = number("MBIT_S", "a quarter of the link's rate", up_to=34_000)


@fault(RATE, LINK)
def slow_link(rack: Rack, node: Node, rate_mbit_s: float | None, link: str | None) -> Undo:
    """Everything that a node sends or receives on a link is slow."""
    return _slow(rack, node, rate_mbit_s, link, "both")


@fault(RATE, LINK)
def slow_tx(rack: Rack, node: Node, rate_mbit_s: float | None, link: str | None) -> Undo:
    """What a node sends on a link is slow; what it receives is not."""
    return _slow(rack, node, rate_mbit_s, link, "tx")


@fault(RATE, LINK)
def slow_rx(rack: Rack, node: Node, rate_mbit_s: float | None, link: str | None) -> Undo:
    """What a node receives on a link is slow; what it sends is not."""
    return _slow(rack, node, rate_mbit_s, link, "rx")


def _slow(rack: Rack, node: Node, rate_mbit_s: float | None, link: str | None, way: str) -> Undo:
    name = link or rack.plan.fabric.name
    full_mbit_s, slow_mbit_s = _rates(rack, name, rate_mbit_s)
    rack.ask(SetLinkRate(node.name, name, slow_mbit_s, way))
    return undone_once(rack, lambda: rack.ask(SetLinkRate(node.name, name, full_mbit_s, way)))


def _rates(rack: Rack, link: str, rate_mbit_s: float | None) -> tuple[float, float]:
    """A link's full and slow rate, in Mbit/s. Raises UsageError if the second is not lower."""
    full_mbit_s = rack.plan.link(link).rate_mbit_s
    if rate_mbit_s is not None and rate_mbit_s >= full_mbit_s:
        raise UsageError(
            f"{rate_mbit_s:g} Mbit/s does not slow {link}, whose rate is {full_mbit_s:g} Mbit/s"
        )
    return full_mbit_s, rate_mbit_s or full_mbit_s * SLOW


@fault(RATE, LINK, nodes=2)
def slow_pair(
    rack: Rack, one: Node, other: Node, rate_mbit_s: float | None, link: str | None
) -> Undo:
    """A link is slow between these two nodes, both ways; each is fast with every other node."""
    forth = slow_path(rack, one, other, rate_mbit_s, link)
    return all_undone([forth, slow_path(rack, other, one, rate_mbit_s, link)])


@fault(RATE, LINK, nodes=2)
def slow_path(
    rack: Rack, source: Node, target: Node, rate_mbit_s: float | None, link: str | None
) -> Undo:
    """A link is slow from the first node to the second, and in no other direction."""
    name = link or rack.plan.fabric.name
    _, slow_mbit_s = _rates(rack, name, rate_mbit_s)
    rack.ask(SetPairRate(source.name, target.name, name, slow_mbit_s))
    return undone_once(rack, lambda: rack.ask(SetPairRate(source.name, target.name, name, None)))


@fault(number("MBIT_S", "the link's rate", up_to=34_000), LINK, program=IP)
def narrow_uplink(rack: Rack, node: Node, rate_mbit_s: float | None, link: str | None) -> Undo:
    """All traffic between the nodes before this one and the others shares one rate each way.

    As on two leaves with few uplinks: the others are on a switch of their own. Undone for a node
    when it is switched off.
    """
    name = link or rack.plan.fabric.name
    rate_bits_s = int((rate_mbit_s or rack.plan.link(name).rate_mbit_s) * 1e6)
    if node.index == 0:
        raise UsageError(f"no node is before {node.name}; accepted: one of {rack.nodes[1].name} on")
    leaf, ends = f"{name}-leaf", (f"{name}-up", f"{name}-down")
    moved = [rack.switch_port(one, name) for one in rack.nodes[node.index :]]
    burst = burst_bytes(rate_bits_s / 1e6)
    queue = (
        f"tbf rate {rate_bits_s}bit burst {burst} limit {int(rate_bits_s / 8 * QUEUE_S) + burst}"
    )
    script = [
        f"ip link add {leaf} type bridge stp_state 0 forward_delay 0",
        f"ip link add {ends[0]} type veth peer name {ends[1]}",
        f"ip link set {ends[0]} master {name}",
        *(f"ip link set {one} master {leaf}" for one in (ends[1], *moved)),
        *(f"tc qdisc add dev {end} root {queue}" for end in ends),
        *(f"ip link set {one} up" for one in (*ends, leaf)),
    ]
    back = [
        *(f"ip link set {port} master {name} || true" for port in moved),
        *(f"ip link del {one}" for one in (ends[0], leaf)),
    ]
    where = f"PATH={Path(IP.path()).parent}:$PATH"
    on_switch(rack, ["sh", "-ec", "\n".join([where, *script])])

    def undo() -> None:
        on_switch(rack, ["sh", "-ec", "\n".join([where, *back])])

    return undone_once(rack, undo)


@fault(number("PERCENT", "5", up_to=100), LINK, program=NFT)
def lossy_link(rack: Rack, node: Node, percent: float | None, link: str | None) -> Undo:
    """Packets to and from a node are lost at random.

    TCP loses whole segments of up to 64 kB: they cross a virtual switch in one piece.
    """
    port = rack.switch_port(node, link or rack.plan.fabric.name)
    lost = f"numgen random mod 100000 < {round((percent or 5.0) * 1000)} drop"
    return at_switch(rack, [f'iifname "{port}" {lost}', f'oifname "{port}" {lost}'])


@fault(number("MS", "5", up_to=10_000), number("JITTER_MS", "0", up_to=10_000), LINK)
def delay(
    rack: Rack, node: Node, delay_ms: float | None, jitter_ms: float | None, link: str | None
) -> Undo:
    """Packets to and from a node take longer, each way; with jitter they overtake each other.

    Ends when the node is switched off. A link has one delay or corrupt_payload at a time. While it
    lasts, lossy_link, one_way, mtu_hole and port_dropped have no effect on this link.
    """
    return _relayed(rack, node, link, "delay", delay_ms or 5.0, jitter_ms or 0.0)


@fault(size("SIZE", "256 KiB"), LINK)
def corrupt_payload(rack: Rack, node: Node, every_bytes: int | None, link: str | None) -> Undo:
    """One byte in SIZE of a node's TCP payload, both ways, changes without a checksum error.

    Ends when the node is switched off; as with delay, the switch drops nothing while it lasts.
    """
    return _relayed(rack, node, link, "corrupt_payload", 0.0, 0.0, every_bytes or CORRUPT_BYTES)


def _relayed(rack: Rack, node: Node, link: str | None, what: str, *values: float) -> Undo:
    """Run a relay beside the node's port; values: delay, jitter (ms), bytes per corrupt byte."""
    name = link or rack.plan.fabric.name
    texts = [str(value) for value in (*values, 0.0)][:3]
    words = [sys.executable, "-P", RELAY, rack.switch_port(node, name), name, *texts]
    return undone_once(rack, running(rack.agent_command(words), f"{node.name}: {what}"))


@fault(LINK)
def link_down(rack: Rack, node: Node, link: str | None) -> Undo:
    """The switch port of a link is down: its node sees no carrier."""
    name = link or rack.plan.fabric.name
    rack.ask(SetLinkUp(node.name, name, up=False))
    return undone_once(rack, lambda: rack.ask(SetLinkUp(node.name, name, up=True)))


@fault(number("EVERY_S", "5", above=FLAP_S, up_to=3600), LINK)
def flapping_link(rack: Rack, node: Node, every_s: float | None, link: str | None) -> Undo:
    """The switch port of a link goes down for 200 ms, again and again."""
    name, every = link or rack.plan.fabric.name, every_s or FLAP_EVERY_S
    rack.ask(SetLinkUp(node.name, name, up=True))  # raises for a link that does not exist
    when = Schedule(every - FLAP_S, FLAP_S, every)
    return scheduled(rack, lambda: link_down(rack, node, name), when)


@fault(LINK)
def interface_missing(rack: Rack, node: Node, link: str | None) -> Undo:
    """A node has no interface for a link."""
    name = link or rack.plan.fabric.name
    rack.ask(SetLinkPresent(node.name, name, present=False))
    return undone_once(rack, lambda: rack.ask(SetLinkPresent(node.name, name, present=True)))


@fault(LINK, nodes=2, program=NFT)
def one_way(rack: Rack, source: Node, target: Node, link: str | None) -> Undo:
    """No IP packet reaches the second node from the first; the other direction works."""
    name = link or rack.plan.fabric.name
    ports = rack.switch_port(source, name), rack.switch_port(target, name)
    return at_switch(rack, [f'iifname "{ports[0]}" oifname "{ports[1]}" ether type ip drop'])


@fault(
    word("LINK", "the management network", "the name of a link", str.isalnum), nodes=2, program=NFT
)
def few_connections(rack: Rack, source: Node, target: Node, link: str | None) -> Undo:
    """The first node opens one TCP connection a minute to the second; further attempts vanish."""
    name = link or rack.plan.management.name
    ports = rack.switch_port(source, name), rack.switch_port(target, name)
    opening = "tcp flags & (syn | ack) == syn limit rate over 1/minute burst 1 packets drop"
    path = f'iifname "{ports[0]}" oifname "{ports[1]}" ether type ip'
    return at_switch(rack, [f"{path} {opening}"])


@fault(LINK, nodes=2, program=IP)
def refused_route(rack: Rack, source: Node, target: Node, link: str | None) -> Undo:
    """The first node has a blackhole route to the second."""
    address = rack.plan.address(rack.nodes.index(target), link or rack.plan.fabric.name)
    return _added(rack, source, "route", "blackhole", address)


def _added(rack: Rack, node: Node, what: str, *words: str) -> Undo:
    """Add a route or an address to a node."""
    on_node(rack, node, [IP.path(), what, "add", *words])

    def undo() -> None:
        on_node(rack, node, [IP.path(), what, "del", *words])

    return undone_once(rack, undo, on=node)


@fault(nodes=2, program=IP)
def other_route(rack: Rack, source: Node, target: Node) -> Undo:
    """The first node's route to the second's fabric address leads to the management network."""
    address = rack.plan.address(rack.nodes.index(target), rack.plan.fabric.name)
    return _added(rack, source, "route", address, "dev", rack.plan.management.name)


@fault(LINK, nodes=2, program=IP)
def same_address(rack: Rack, node: Node, other: Node, link: str | None) -> Undo:
    """The first node has the second one's address on a link, beside its own."""
    name = link or rack.plan.fabric.name
    taken = f"{rack.plan.address(rack.nodes.index(other), name)}/24"
    return _added(rack, node, "address", taken, "dev", name)


@fault(LINK)
def no_offloads(rack: Rack, node: Node, link: str | None) -> Undo:
    """A node cuts and joins the segments of a link one by one: tso, gso and gro are off."""
    name = link or rack.plan.fabric.name
    inside(rack, node, "offloads", name, "0")
    return undone_inside(rack, node, "offloads", name, "1")


@fault(whole("BYTES", "100 less than the link's MTU", least=68, most=9216), LINK, program=NFT)
def mtu_hole(rack: Rack, node: Node, size_bytes: int | None, link: str | None) -> Undo:
    """IP packets to and from a node that exceed this size vanish without an ICMP message."""
    name = link or rack.plan.fabric.name
    largest = size_bytes or rack.plan.link(name).mtu - 100
    port = rack.switch_port(node, name)
    big = f"ether type ip ip length > {largest} drop"
    return at_switch(rack, [f'iifname "{port}" {big}', f'oifname "{port}" {big}'])


@fault(whole("PORT", "every port", most=65535), program=NFT)
def port_dropped(rack: Rack, node: Node, tcp_port: int | None) -> Undo:
    """No TCP connection can be opened to a node's control address; the attempts vanish."""
    port = rack.switch_port(node, rack.plan.management.name)
    which = f"tcp dport {tcp_port} " if tcp_port is not None else ""
    first = f"ip daddr {node.address} {which}tcp flags & (syn | ack) == syn drop"
    return at_switch(rack, [f'oifname "{port}" ether type ip {first}'])
