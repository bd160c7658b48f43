"""The NICs over which each rank sends: the nearest to its accelerator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_mnode.checks.placement_check import Here, PlacementCheck
from pytest_mnode.criteria.placement.near import USED, Home, RankReading, candidate_nics
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import RankRows, Row, row
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import physical_below
from pytest_mnode.machine.pci import Distance
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.traffic import all_lower_devices, lower_devices_of
from pytest_mnode.spec import Spec

_FABRIC, _LEAST = "distance of fabric NIC", "least distance of NIC"
_BESIDE = "accelerators not across sockets from NIC"
_NUMA = 1000
"""Distances are in steps of `Distance`, and across sockets a thousandth of the firmware's more."""
_ACROSS, _SAME_NODE = float(Distance.NODE.rank), 10


@dataclass(frozen=True, slots=True)
class _NicDistance:
    """Distance of a NIC; `least` and `most` differ if it is not known, for the reason `why`."""

    name: str
    least: float
    most: float
    why: str = ""

    @classmethod
    def of(cls, rank: RankRows, metric: str) -> list[_NicDistance]:
        """Those of a metric."""
        least = rank.by_device(_LEAST)
        known = ((one, one.value) for one in rank.of(metric) if one.device)
        return [
            cls(one.device, value, value)
            if isinstance(value, int | float)
            else cls(one.device, least[one.device], math.inf, one.why)
            for one, value in known
        ]

    def __str__(self) -> str:
        """Name and distance, such as "mlx5_0 (PIX)"."""
        step = int(self.least)
        numa = round((self.least - step) * _NUMA)
        far = f", NUMA distance {numa}" if numa else ""
        return f"{self.name} ({self.why or list(Distance)[step].value + far})"


@check("numa.nic")
class RanksSendOverTheNearestNic(PlacementCheck):
    """Does every rank send over the NIC that is nearest to its accelerator?

    Judged is the number of used NICs that are farther than the nearest, by PCI path, then by NUMA
    distance. NICs that are equally near are equally good. A bond or VLAN counts as the devices
    below it. A NIC whose NUMA node is not known can be no nearer than another host bridge of the
    same NUMA node: if that bound does not decide, the answer is inconclusive. A NIC on another
    socket than all accelerators of the node fails.
    """

    promise: Literal["nearest"]
    """Each rank sends over the NIC that is nearest to its accelerator."""
    counted = "ranks that send over a NIC that is not the nearest"
    in_place, order = "ranks over their nearest NIC", 1
    sends = has_map = True

    def rows(self, here: RankReading) -> Iterator[Row]:
        runs_on = here.machine.numa.nodes_of(here.cpus or ())
        if here.accelerator is None and len(runs_on) == 1:
            here = replace(here, other=Home("where it runs", min(runs_on)))
        if here.nics is not None:
            here = replace(here, nics=sending_nics(here.machine, here.nics, self.spec))
        yield from here.cpu_rows
        yield from nic_rows(here, candidate_nics(here.machine, here.nics or (), self.spec))

    def judge_rank(self, rank: RankRows, here: Here) -> Measurement:  # noqa: ARG002
        home, used = Home.from_rows(rank), _NicDistance.of(rank, USED)
        candidates = _NicDistance.of(rank, _FABRIC)
        distances = [*{one.name: one for one in (*candidates, *used)}.values()]
        nearest = f"nearest to {home.device}"
        found = _words(used) or "not known"

        def unknown(reason: str) -> Measurement:
            return self.answer(rank, None, f"uses {found}; {reason}")

        if not used:
            return unknown(rank.why(USED))
        if not candidates:
            return unknown(f"{rank.node} shows none of the NICs that the rank could use")
        best = min(one.most for one in distances)
        expected = f"{_words([one for one in distances if one.most == best], ' or ')}, {nearest}"
        wrong = [one for one in used if one.least > best]
        unsure = [one for one in distances if one.least != one.most]
        if not wrong and any(u in unsure or one.least < u.most for u in used for one in unsure):
            why = f"the distance of these NICs is not known: {_words(unsure)}"
            return unknown("; ".join(filter(None, [home.why, why])))
        remedy = (
            "; name the NICs of each rank (NCCL_IB_HCA, NCCL_SOCKET_IFNAME), or let NCCL see the"
            " real topology (NCCL_TOPO_FILE in a guest)"
        )
        if not wrong:
            beside = rank.by_device(_BESIDE)
            wrong = [one for one in used if beside.get(one.name) == 0][:1]
            if wrong:
                expected = f"{wrong[0].name} on the socket of an accelerator"
            remedy = ""
        why = f"uses {found}; expected {expected}{remedy}"
        names = ", ".join(one.name for one in wrong)
        return self.answer(rank, len(wrong), why, found, expected, names)


def nic_rows(here: RankReading, candidates: Sequence[str]) -> Iterator[Row]:
    """Rows of the distances of NICs. candidates: those that the rank could use; without any, the
    nearest is not known."""
    yield from here.home.to_rows()
    used = here.nics or ()
    if not used:
        unread = here.no_nics or "it is not known which NIC it uses"
        yield row(USED, why=unread if here.nics is None else "it used no NIC")
    for metric, names in ((_FABRIC, candidates), (USED, used)):
        for name in names:
            far = _far(here, name)
            known = far.most if far.least == far.most else None
            yield row(metric, known, why=far.why, device=name)
            if known is None:
                yield row(_LEAST, far.least, device=name)
    for name in used:
        links = [address for address, _ in _places(here.machine, name)]
        if links and here.beside:
            count = sum(
                not all(_across_sockets(here.machine, link, one) for link in links)
                for one in here.beside
            )
            yield row(_BESIDE, count, device=name)


def _words(those: Sequence[_NicDistance], between: str = ", ") -> str:
    return between.join(map(str, those))


def _far(here: RankReading, name: str) -> _NicDistance:
    places = _places(here.machine, name)
    if not places:
        return _NicDistance(name, 0.0, math.inf, "no such device, or no physical device below it")
    # The farthest link of a bond counts: traffic may take any link.
    links = [_to_link(here, name, address, node) for address, node in places]
    return max(links, key=lambda one: (one.most, one.least))


def _places(machine: Machine, name: str) -> list[tuple[str | None, int | None]]:
    """PCI address and NUMA node of each device below a NIC."""
    for device in machine.rdma or ():
        if device.name == name.partition(":")[0]:
            return [(device.pci_address, device.numa_node)]
    known = machine.by_name
    below = physical_below(known[name], known) if name in known else ()
    return [(known[one].pci_address, known[one].numa_node) for one in below]


def _to_link(here: RankReading, name: str, address: str | None, node: int | None) -> _NicDistance:
    machine, own = here.machine, here.home.numa_node
    distance = machine.pci.distance(here.accelerator, address)
    if distance is None:
        if own is None or node is None:
            hosts = machine.pci.function(address) and machine.pci.function(here.accelerator)
            return _NicDistance(name, _ACROSS if hosts else 0.0, math.inf, "NUMA node unknown")
        distance = Distance.NODE if own == node else Distance.SYS
    if distance is not Distance.SYS:
        return _NicDistance(name, distance.rank, distance.rank)
    numa = machine.numa.distance(own, node)
    far = distance.rank + (_SAME_NODE if numa is None else numa) / _NUMA
    return _NicDistance(
        name, far, *((math.inf, "SYS, NUMA distance unknown") if numa is None else (far,))
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
