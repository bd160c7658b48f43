"""What is near a rank's accelerator: CPUs, and the NUMA nodes that its memory should be on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_mnode.criteria.placement.facts import Machine, RankFacts
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.numa import NumaNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Around an accelerator. place: it in words. numa_node: its own, which may be without CPUs."""

    place: str
    numa_node: int
    cpus: frozenset[int]
    memory_nodes: frozenset[int]

    @property
    def cpus_text(self) -> str:
        """Such as "CPUs 0-31, local to 0000:17:00.0 on NUMA node 0"."""
        return f"CPUs {format_cpulist(self.cpus)}, local to {self.place}"


def near(machine: Machine, rank: RankFacts) -> Near | str:
    """What is near; a sentence's end that says why it is not known instead.

    An accelerator on a node without CPUs, or without memory, has the nearest node by the firmware's
    distances that has some.
    """
    number, cpus, what = rank.numa_node, None, "its accelerator"
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
    # Where firmware knows no better, a device's list has all CPUs of the machine.
    both = bool(cpus and node.cpus)
    cpus = cpus & node.cpus if cpus and node.cpus else cpus or _cpus(machine, node)
    if cpus is not None and online is not None:
        cpus &= online
    if not cpus:
        return f"the CPUs of NUMA node {number} are not known" + ", or others are local" * both
    # What a device has on a NUMA node of its own is not where a process keeps its memory.
    memory = _with(machine, node, lambda other: other.memory_bytes != 0 and bool(other.cpus))
    memory = memory or _with(machine, node, lambda other: other.memory_bytes != 0)
    around = {number, *(other.number for other in memory)}
    bare = {n.number for n in machine.numa.nodes if n.cpus == frozenset()}
    beside = {n for n in bare if _attached_to(machine, n) in around}
    return Near(
        place=f"{what} on NUMA node {number}",
        numa_node=number,
        cpus=cpus,
        # Memory of the device itself, where it is a node of its own, is as near as can be.
        memory_nodes=frozenset(around | beside),
    )


def _attached_to(machine: Machine, number: int) -> int | None:
    """The node with CPUs to which memory without CPUs is nearest; None where not known, or many.

    Pages of a process move to such memory, that of a GPU on its own NUMA node, when it is used.
    """
    far = {n.number: machine.numa.distance(number, n.number) for n in machine.numa.with_cpus}
    known = {n: distance for n, distance in far.items() if distance is not None}
    least = min(known.values(), default=None)
    nearest = [n for n, distance in known.items() if distance == least]
    return nearest[0] if len(nearest) == 1 and len(known) == len(far) else None


def _cpus(machine: Machine, node: NumaNode) -> frozenset[int] | None:
    found: frozenset[int] = frozenset()
    for other in _with(machine, node, lambda other: bool(other.cpus)):
        found |= other.cpus or frozenset()
    return found or None


def _with(
    machine: Machine, node: NumaNode, has: Callable[[NumaNode], bool]
) -> tuple[NumaNode, ...]:
    """The node itself if it has it, else those that have and are nearest; none if not known."""
    if has(node):
        return (node,)
    far = {n.number: machine.numa.distance(node.number, n.number) for n in machine.numa.nodes}
    those = [n for n in machine.numa.nodes if has(n) and far[n.number] is not None]
    least = min((far[n.number] or 0 for n in those), default=None)
    return tuple(n for n in those if far[n.number] == least)
