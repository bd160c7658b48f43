"""NUMA nodes of a machine: their CPUs, memory, and how far each is from the others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import parse_cpulist, read_cpulist

_KB = re.compile(r"^Node \d+ (\w+):\s+(\d+) kB", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node.

    cpus: empty for memory without CPUs, None if unknown. distances: to each node by number,
    10 to itself, as the firmware reports them; empty if unknown. memory_bytes: 0 for CPUs
    without memory.
    """

    number: int
    cpus: frozenset[int] | None
    distances: Mapping[int, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numa:
    """NUMA nodes of a machine.

    nodes: ordered by number; empty if the kernel shows none: it was built without NUMA, or /sys
    is missing.
    """

    nodes: tuple[NumaNode, ...] = ()

    def node(self, number: int | None) -> NumaNode | None:
        """The node with this number; None if there is none."""
        return next((node for node in self.nodes if node.number == number), None)

    def nodes_of(self, cpus: Iterable[int]) -> frozenset[int]:
        """The nodes that these CPUs belong to; CPUs of no known node are left out."""
        wanted = frozenset(cpus)
        return frozenset(node.number for node in self.nodes if wanted & (node.cpus or frozenset()))

    def distance(self, one: int | None, other: int | None) -> int | None:
        """Distance as the firmware reports it, 10 for the same node; None if unknown."""
        node = self.node(one)
        if node is None or other is None:
            return None
        return node.distances.get(other)

    def nearest(self, number: int, has: Callable[[NumaNode], bool]) -> tuple[NumaNode, ...]:
        """The node itself if `has` holds for it, else the nearest for which it holds; empty if not
        known. Several are equally near."""
        node = self.node(number)
        if node is not None and has(node):
            return (node,)
        far = {n.number: self.distance(number, n.number) for n in self.nodes if has(n)}
        least = min((distance for distance in far.values() if distance is not None), default=0)
        return tuple(n for n in self.nodes if least and far.get(n.number) == least)

    @property
    def with_cpus(self) -> tuple[NumaNode, ...]:
        """Nodes that have CPUs: others are memory only, such as that of a GPU."""
        return tuple(node for node in self.nodes if node.cpus)


def read_numa(root: Path = Path("/")) -> Numa:
    """Nodes below `root`/sys/devices/system/node.

    Source: Linux, Documentation/ABI/stable/sysfs-devices-node.
    """
    folder = root / "sys/devices/system/node"
    paths = [path for path in sysfs.entries(folder) if re.fullmatch(r"node\d+", path.name)]
    numbers = [int(path.name[4:]) for path in paths]
    # A row of distances has one number for each online node in ascending order, even if the
    # node numbers have gaps.
    online = parse_cpulist(sysfs.text(folder / "online"))
    columns = sorted(online) if online else numbers
    return Numa(nodes=tuple(_node(path, columns) for path in paths))


def _node(folder: Path, columns: list[int]) -> NumaNode:
    memory = {name: int(kb) << 10 for name, kb in _KB.findall(sysfs.text(folder / "meminfo") or "")}
    row = [sysfs.number_of(part) for part in (sysfs.text(folder / "distance") or "").split()]
    complete = len(row) == len(columns)
    return NumaNode(
        number=int(folder.name[4:]),
        cpus=read_cpulist(folder / "cpulist"),
        distances={n: d for n, d in zip(columns, row, strict=True) if d} if complete else {},
        memory_bytes=memory.get("MemTotal"),
        free_bytes=memory.get("MemFree"),
    )


@dataclass(frozen=True, slots=True)
class NumaCores:
    """One NUMA node, with those of its CPUs that this process may use.

    cores: the CPUs, grouped by core.
    """

    number: int
    size_bytes: int
    cores: tuple[tuple[int, ...], ...]


def numa_cores(root: Path = Path("/"), usable: Iterable[int] | None = None) -> list[NumaCores]:
    """The NUMA nodes of the machine whose file system is at `root`.

    usable: CPUs; None for those that this process may use. A kernel that shows no NUMA nodes
    counts as one node, number 0.
    """
    cpus = sorted(os.sched_getaffinity(0) if usable is None else usable)
    numa = read_numa(root)
    sizes = {node.number: node.memory_bytes or 0 for node in numa.nodes} or {0: 0}
    homes = {cpu: node.number for node in numa.nodes for cpu in node.cpus or ()}
    cores: dict[int, dict[int, list[int]]] = {number: {} for number in sizes}
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        first = min(read_cpulist(topology / "thread_siblings_list") or (cpu,))
        cores[homes.get(cpu, min(sizes))].setdefault(first, []).append(cpu)
    return [
        NumaCores(number, sizes[number], tuple(tuple(core) for _, core in sorted(of.items())))
        for number, of in sorted(cores.items())
    ]
