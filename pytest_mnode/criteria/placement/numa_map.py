"""Chart of CPUs, memory, accelerators, NICs and ranks by NUMA node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_mnode.charts import Item, Layout, Map, Place
from pytest_mnode.criteria.placement.near import CPUS, USED, Home, machine_from_rows
from pytest_mnode.evidence.row import RankRows, Row, row
from pytest_mnode.machine.cpus import format_cpulist, parse_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement

_GIB = 1 << 30
_DEVICES = ("accelerator", "NIC")


def hardware_rows(machine: Machine, nics: Sequence[str]) -> Iterator[Row]:
    """NUMA nodes of a node's accelerators, and of these NICs."""
    known = {one.name: one.numa_node for one in machine.interfaces or ()}
    known |= {one.name: one.numa_node for one in machine.rdma or ()}
    homes = [("accelerator", one.address, one.numa_node) for one in machine.pci.accelerators]
    homes += [("NIC", nic, known.get(nic.partition(":")[0])) for nic in dict.fromkeys(nics)]
    for kind, name, numa_node in homes:
        why = "" if numa_node is not None else "the kernel does not know it"
        yield row(f"NUMA node of {kind}", numa_node, device=name, why=why)


def numa_map(ranks: Sequence[RankRows], answers: Sequence[Measurement]) -> Map:
    """The chart of all nodes; nodes that are alike share one layout. answers: of each rank."""
    by_node: dict[str, list[tuple[RankRows, Measurement]]] = {}
    for rank, answer in zip(ranks, answers, strict=True):
        by_node.setdefault(rank.node, []).append((rank, answer))
    alike: dict[tuple[Place, ...], list[str]] = {}
    for node, here in by_node.items():
        alike.setdefault(tuple(_places(here)), []).append(node)
    layouts = tuple(Layout(tuple(nodes), places) for places, nodes in alike.items())
    return Map("Ranks, accelerators and NICs by NUMA node", layouts)


def _places(ranks: Sequence[tuple[RankRows, Measurement]]) -> Iterator[Place]:
    """Hardware of a node, of which the first rank tells, with the ranks on it."""
    first, _ = ranks[0]
    numa, held = machine_from_rows(first).numa, dict[str, list[Item]]()
    for node in numa.nodes:
        here = held.setdefault(_name(node.number), [])
        if node.cpus:
            here.append(Item("CPUs", format_cpulist(node.cpus)))
        if node.memory_bytes:
            here.append(Item("memory", f"{node.memory_bytes / _GIB:.4g} GiB"))
    for kind in _DEVICES:
        for name, numa_node in first.by_device(f"NUMA node of {kind}").items():
            held.setdefault(_name(numa_node), []).append(Item(kind, name))
    for local_rank, (rank, answer) in enumerate(ranks):
        cpus, sends = rank.value(CPUS), ", ".join(filter(None, rank.by_device(USED)))
        parts = (
            f"CPUs {cpus}" if cpus else "CPUs not known",
            f"for {Home.from_rows(rank).device}",
            f"sends over {sends}" if sends else "",
        )
        good = None if answer.verdict is None else answer.passed
        item = Item("rank", f"local rank {local_rank}", ", ".join(filter(None, parts)), good)
        runs_on = map(_name, sorted(numa.nodes_of(parse_cpulist(cpus) or ())))
        for name in [*runs_on] or ["no NUMA node known"]:
            held.setdefault(name, []).append(item)
    yield from (Place(name, tuple(items)) for name, items in held.items())


def _name(number: int | None) -> str:
    return "devices without a known NUMA node" if number is None else f"NUMA node {number}"
