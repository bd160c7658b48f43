"""Judges whether a rank sends over the NIC nearest to its accelerator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.placement.rank_placement import Question, RankPlacement
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import physical_below
from pytest_mnode.machine.pci import Distance
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.traffic import all_lower_devices, lower_devices_of
from pytest_mnode.spec import Spec

_Key = tuple[int, float]
_NEAREST: _Key = (0, 0.0)
_ACROSS: _Key = (Distance.NODE.rank, 0.0)
_FARTHEST: _Key = (Distance.SYS.rank, math.inf)
_SAME_NODE = 10.0


@dataclass(frozen=True, slots=True)
class _NicDistance:
    """Distance of a NIC; `least` and `most` differ if it is not known. words: such as "PIX"."""

    name: str
    least: _Key
    most: _Key
    words: str


def judge_nics(
    machine: Machine,
    rank: RankPlacement,
    candidates: Sequence[str],
    beside: Sequence[str | None] = (),
) -> Measurement:
    """Number of used NICs that are farther than the nearest, by PCI path, then by NUMA distance.

    NICs that are equally near are equally good. A bond or VLAN counts as the devices below it.
    A NIC whose NUMA node is not known can be no nearer than another host bridge of the same NUMA
    node: if that bound does not decide, the measurement is inconclusive.

    candidates: NICs that the rank could use; if empty, the nearest is not known. beside: PCI
    addresses of the node's accelerators: a NIC on another socket than all of them fails.
    """
    reason = _why_unknown(rank, candidates)
    if reason is not None or not rank.nics:
        return _answer(rank, None, reason=reason or "it used no NIC")
    distances = [_far(machine, rank, name) for name in dict.fromkeys((*candidates, *rank.nics))]
    used = [far for far in distances if far.name in rank.nics]
    if farther := [u for u in used if any(c.most < u.least for c in distances)]:
        return _answer(rank, len(farther), used, distances, blamed=farther)
    unknown = [far for far in distances if far.least != far.most]
    if any(u in unknown or c.least < u.most for u in used for c in unknown):
        reason = f"the distance of these NICs is not known: {_words(unknown)}"
        return _answer(rank, None, used, distances, reason=reason)
    if off_socket := [far for far in used if _across_from_all(machine, far.name, beside)]:
        expected = f"{off_socket[0].name} on the socket of an accelerator"
        return _answer(rank, 1, used, blamed=off_socket[:1], expected=expected)
    return _answer(rank, 0, used, distances)


def _why_unknown(rank: RankPlacement, candidates: Sequence[str]) -> str | None:
    if rank.nics is None:
        return rank.unknown.get("nics") or "it is not known which NIC it uses"
    if rank.accelerator is None and rank.numa_node is None:
        return rank.unknown.get("accelerator") or "it is not known which accelerator it has"
    if not candidates:
        return f"{rank.node} shows none of the NICs that the rank could use"
    return None


def _far(machine: Machine, rank: RankPlacement, name: str) -> _NicDistance:
    bounds = [_bounds(machine, rank, address, node) for address, node in _places(machine, name)]
    # The farthest link of a bond counts: traffic may take any link.
    least, most, words = max(
        bounds,
        key=lambda bound: (bound[1], bound[0]),
        default=(_NEAREST, _FARTHEST, "no such device, or no physical device below it"),
    )
    return _NicDistance(name, least, most, words)


def _places(machine: Machine, name: str) -> list[tuple[str | None, int | None]]:
    """PCI address and NUMA node of each device below a NIC."""
    for device in machine.rdma or ():
        if device.name == name.partition(":")[0]:
            return [(device.pci_address, device.numa_node)]
    known = machine.by_name
    below = physical_below(known[name], known) if name in known else ()
    return [(known[one].pci_address, known[one].numa_node) for one in below]


def _bounds(
    machine: Machine, rank: RankPlacement, address: str | None, node: int | None
) -> tuple[_Key, _Key, str]:
    function = machine.pci.function(rank.accelerator)
    distance = machine.pci.distance(rank.accelerator, address)
    own = function.numa_node if function and function.numa_node is not None else rank.numa_node
    if distance is None:
        if own is None or node is None:
            hosts = machine.pci.function(address) and function
            return (_ACROSS if hosts else _NEAREST), _FARTHEST, "NUMA node unknown"
        distance = Distance.NODE if own == node else Distance.SYS
    if distance is not Distance.SYS:
        return (key := (distance.rank, 0.0)), key, distance.value
    numa = machine.numa.distance(own, node)
    if numa is None:
        return (distance.rank, _SAME_NODE), _FARTHEST, distance.value
    return (key := (distance.rank, float(numa))), key, f"{distance.value}, NUMA distance {numa}"


def _answer(
    rank: RankPlacement,
    value: int | None,
    used: Sequence[_NicDistance] = (),
    distances: Sequence[_NicDistance] = (),
    *,
    reason: str = "",
    blamed: Sequence[_NicDistance] = (),
    expected: str = "",
) -> Measurement:
    what = rank.accelerator or rank.anchor
    found = _words(used) or ", ".join(rank.nics or ()) or "not known"
    if value is None:
        expected = f"the NIC nearest to {what}"
        why = f"uses {found}; {reason}"
    else:
        best = min((far.most for far in distances), default=_FARTHEST)
        nearest = [far for far in distances if far.most == best]
        expected = expected or f"{_words(nearest, ' or ')}, nearest to {what}"
        why = f"uses {found}; expected {expected}"
    if value and distances:
        why += (
            "; name the NICs of each rank (NCCL_IB_HCA, NCCL_SOCKET_IFNAME), or let NCCL see the"
            " real topology (NCCL_TOPO_FILE in a guest)"
        )
    return rank.answer(
        Question.NIC,
        value,
        found=found,
        expected=expected,
        why=why,
        blamed=", ".join(far.name for far in blamed or used) or "NIC",
    )


def _words(those: Sequence[_NicDistance], between: str = ", ") -> str:
    return between.join(f"{far.name} ({far.words})" for far in those)


def _across_from_all(machine: Machine, name: str, beside: Sequence[str | None]) -> bool:
    """Whether a NIC, with all devices below it, is across sockets from all of `beside`.

    A socket may have several NUMA nodes: another node of the same socket is near enough. One NIC
    per node serves ranks on all sockets, and is as near as possible to those on its own socket.
    """
    links = [address for address, _ in _places(machine, name)]
    return bool(links and beside) and all(
        _across_sockets(machine, link, address) for link in links for address in beside
    )


def _across_sockets(machine: Machine, one: str | None, other: str | None) -> bool:
    """Whether two functions are known to be on different sockets."""
    if machine.pci.distance(one, other) is not Distance.SYS:
        return False
    a, b = _sockets(machine, one), _sockets(machine, other)
    return not (a and b) or a.isdisjoint(b)


def _sockets(machine: Machine, address: str | None) -> frozenset[int]:
    """Sockets of the CPUs on a function's NUMA node; empty if not known."""
    function = machine.pci.function(address)
    node = machine.numa.node(function.numa_node if function else None)
    cpus = node.cpus or frozenset() if node else frozenset()
    return frozenset(n for n, those in machine.cpus.packages.items() if not cpus.isdisjoint(those))


def fabric_nics(machine: Machine, used: Sequence[str], spec: Spec) -> tuple[str, ...]:
    """Fabric NICs that are not known to be down: RDMA ports if `used` has some, or is empty and
    RDMA is promised; else interfaces."""
    fabric = spec.fabric
    if any(":" in name for name in used) or (not used and fabric.protocol is not None):
        devices = machine.rdma or ()
        wanted = [d for d in devices if any(map(fabric.has_interface, (d.name, *d.netdevs)))]
        ports = (port for device in wanted for port in device.ports)
        fit = (port for port in ports if port.may_carry(fabric.protocol))
        return tuple(port.name for port in fit if port.active is not False)
    interfaces = machine.interfaces or ()
    return tuple(i.name for i in interfaces if fabric.has_interface(i.name) and i.up is not False)


def sending_nics(machine: Machine, used: Sequence[str], spec: Spec) -> tuple[str, ...]:
    """One of the interfaces that count the same bytes: the bond, not its links.

    If the spec names only one of these interfaces, that one.
    """
    named = {name for name in used if spec.fabric.has_interface(name)}
    lower = lower_devices_of(machine.interfaces or (), ())
    below = {name: all_lower_devices(name, lower) for name in used}

    def counts(name: str) -> bool:
        above = {other for other in used if name in below[other]}
        if name in named:
            return not above & named
        return not above and not below[name] & named

    return tuple(name for name in used if counts(name))
