"""NUMA nodes of a machine, with the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine.cpus import read_cpulist
from pytest_mnode.machine.numa import read_numa


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
