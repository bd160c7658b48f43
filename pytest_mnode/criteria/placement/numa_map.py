"""Chart of CPUs, memory, accelerators, NICs and ranks by NUMA node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_mnode.charts import Item, Layout, Map, Place
from pytest_mnode.criteria.placement.rank_placement import RankPlacement
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class RankOnMap:
    """One rank and its node. places: the hardware; runs_on: names of places with its CPUs."""

    node: str
    places: tuple[Place, ...]
    item: Item
    runs_on: frozenset[str]


def on_map(
    machine: Machine,
    rank: RankPlacement,
    local_rank: int,
    nics: Sequence[str],
    answer: Measurement,
) -> RankOnMap:
    """A rank and the hardware of its node. nics: of the fabric. answer: the rank's measurement."""
    cpus = "CPUs not known" if rank.cpus is None else f"CPUs {format_cpulist(rank.cpus)}"
    parts = (
        cpus,
        f"for {rank.accelerator}" if rank.accelerator else "",
        f"sends over {', '.join(rank.nics)}" if rank.nics else "",
    )
    good = None if answer.verdict is None else answer.passed
    item = Item("rank", f"local rank {local_rank}", ", ".join(filter(None, parts)), good)
    runs_on = map(_name, machine.numa.nodes_of(rank.cpus or ()))
    return RankOnMap(rank.node, _places(machine, nics), item, frozenset(runs_on))


def numa_map(ranks: Iterable[RankOnMap]) -> Map:
    """The chart of all nodes; nodes that are alike share one layout."""
    by_node: dict[str, list[RankOnMap]] = {}
    for one in ranks:
        by_node.setdefault(one.node, []).append(one)
    alike: dict[tuple[Place, ...], list[str]] = {}
    for node, here in by_node.items():
        known = {place.name for place in here[0].places}
        nowhere = [one.item for one in here if not one.runs_on & known]
        places = [
            replace(p, items=(*p.items, *(one.item for one in here if p.name in one.runs_on)))
            for p in here[0].places
        ]
        places += [Place("no NUMA node known", tuple(nowhere))] if nowhere else []
        alike.setdefault(tuple(places), []).append(node)
    layouts = tuple(Layout(tuple(nodes), places) for places, nodes in alike.items())
    return Map("Ranks, accelerators and NICs by NUMA node", layouts)


def _places(machine: Machine, nics: Sequence[str]) -> tuple[Place, ...]:
    held: dict[str, list[Item]] = {}
    for node in machine.numa.nodes:
        here = held.setdefault(_name(node.number), [])
        if node.cpus:
            here.append(Item("CPUs", format_cpulist(node.cpus)))
        if node.memory_bytes:
            here.append(Item("memory", f"{node.memory_bytes / _GIB:.4g} GiB"))
    for function in machine.pci.accelerators:
        held.setdefault(_name(function.numa_node), []).append(Item("accelerator", function.address))
    known = {one.name: one.numa_node for one in machine.interfaces or ()}
    known |= {one.name: one.numa_node for one in machine.rdma or ()}
    for nic in dict.fromkeys(nics):
        held.setdefault(_name(known.get(nic.partition(":")[0])), []).append(Item("NIC", nic))
    return tuple(Place(name, tuple(items)) for name, items in held.items())


def _name(number: int | None) -> str:
    return "devices without a known NUMA node" if number is None else f"NUMA node {number}"
