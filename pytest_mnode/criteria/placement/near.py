"""CPUs local to a rank's accelerator, and the NUMA nodes on which its memory should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_mnode.criteria.placement.rank_placement import RankPlacement
from pytest_mnode.machine.cpus import Cpus, format_cpulist
from pytest_mnode.machine.fabric_nics import fabric_nics, nic_of_rank
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.numa import Numa
from pytest_mnode.spec.devices import Near


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """CPUs and memory near an accelerator.

    place: the accelerator, in words. numa_node: its own NUMA node, which may have no CPUs.
    """

    place: str
    numa_node: int
    cpus: frozenset[int]
    memory_nodes: frozenset[int]

    @property
    def cpus_text(self) -> str:
        """Text such as "CPUs 0-31, local to 0000:17:00.0 on NUMA node 0"."""
        return f"CPUs {format_cpulist(self.cpus)}, local to {self.place}"


def near_nodes(numa: Numa, cpus: Cpus, number: int, within: Near) -> frozenset[int]:
    """NUMA nodes with CPUs that `within` counts as near to node `number`; empty if not known.

    Of a node without CPUs (a GPU's memory) the nearest nodes with CPUs. A socket whose CPUs are not
    known is the node alone.
    """
    own = numa.nearest(number, lambda node: bool(node.cpus))
    found = frozenset(node.number for node in own)
    if within == "node":
        return found
    if within == "socket":
        here = frozenset[int]().union(*(node.cpus or () for node in own))
        sockets = [of for of in cpus.packages.values() if not of.isdisjoint(here)]
        return found | numa.nodes_of(cpu for of in sockets for cpu in of)
    far = {node.number: numa.distance(number, node.number) for node in numa.with_cpus}
    return found | {n for n, d in far.items() if d is not None and d <= within.distance}


def near(machine: Machine, rank: RankPlacement, within: Near) -> Locality | str:
    """CPUs and memory near a rank's accelerator; a str says why they are not known.

    If the accelerator's NUMA node has no CPUs or no memory, the nearest NUMA node that has some
    counts, by the firmware's distances. within: how far a NUMA node may be to count too.
    """
    number, cpus, what = rank.numa_node, None, rank.anchor
    if rank.accelerator is not None:
        what = rank.accelerator
        function = machine.pci.function(rank.accelerator)
        if function is None and number is None:
            return f"{what} is not among the PCI devices of {rank.node}"
        if function is not None and function.numa_node is not None:
            number, cpus = function.numa_node, function.local_cpus
        elif function is not None and number is None:
            return (
                f"the kernel does not know the NUMA node of {what} (numa_node is −1 or unreadable)"
            )
    if number is None:
        return rank.unknown.get("accelerator") or "it is not known which accelerator the rank has"
    node = machine.numa.node(number)
    if node is None:
        return f"{what} is on NUMA node {number}, which {rank.node} does not show"
    online = machine.cpus.online
    # Without better knowledge, firmware lists all CPUs of the machine as local to a device.
    both = bool(cpus and node.cpus)
    around = near_nodes(machine.numa, machine.cpus, number, within)
    if not cpus or (cpus & (node.cpus or cpus) and within != "node"):
        cpus = frozenset().union(*(n.cpus or () for n in machine.numa.nodes if n.number in around))
    elif node.cpus:
        cpus &= node.cpus
    if online is not None:
        cpus &= online
    if not cpus:
        return f"the CPUs of NUMA node {number} are not known" + ", or others are local" * both
    # A process does not keep its memory on a NUMA node that is a device's own memory.
    nearest = machine.numa.nearest
    memory = nearest(number, lambda other: other.memory_bytes != 0 and bool(other.cpus))
    memory = memory or nearest(number, lambda other: other.memory_bytes != 0)
    around |= {number, *(other.number for other in memory)}
    bare = {n.number for n in machine.numa.nodes if n.cpus == frozenset()}
    beside = {n for n in bare if _attached_to(machine, n) in around}
    return Locality(
        place=f"{what} on NUMA node {number}",
        numa_node=number,
        cpus=cpus,
        # A NUMA node that is the device's own memory is near too.
        memory_nodes=frozenset(around | beside),
    )


def beside_nic(
    machine: Machine,
    rank: RankPlacement,
    patterns: Sequence[str],
    local_rank: int,
    local_size: int,
) -> RankPlacement:
    """`rank`, which has no accelerator, with the NUMA node of a fabric NIC as its anchor.

    patterns: names and patterns of the fabric's interfaces. Of several NICs, the rank gets
    the one on the NUMA node where it runs; else the `local_size` ranks get them in order.
    """
    nics = fabric_nics(patterns, machine.interfaces or (), machine.rdma or ())
    runs_on = machine.numa.nodes_of(rank.cpus or ())
    at = min(runs_on) if len(runs_on) == 1 else None
    nic = nic_of_rank(nics, local_rank, local_size, at)
    if nic is not None and nic.numa_node is not None:
        return replace(rank, numa_node=nic.numa_node, anchor=f"its NIC {nic.name}")
    why = f"it has no accelerator, and {rank.node} shows no NIC of the fabric"
    if nic is not None:
        why = (
            "it has no accelerator, and the kernel does not know the NUMA node of its NIC"
            f" {nic.name} (numa_node is −1 or unreadable)"
        )
    return replace(rank, unknown={**rank.unknown, "accelerator": why})


def _attached_to(machine: Machine, number: int) -> int | None:
    """The NUMA node with CPUs nearest to one without CPUs; None if not known or not unique.

    Pages of a process move to such memory (a GPU's, on its own NUMA node) when the GPU uses them.
    """
    far = {n.number: machine.numa.distance(number, n.number) for n in machine.numa.with_cpus}
    known = {n: distance for n, distance in far.items() if distance is not None}
    least = min(known.values(), default=None)
    nearest = [n for n, distance in known.items() if distance == least]
    return nearest[0] if len(nearest) == 1 and len(known) == len(far) else None
